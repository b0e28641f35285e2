"""Starts Ray for a run and holds it, ``python ray_head.py CPUS``, until it is ended.

Flower's simulation would start Ray itself, but only once it has been started and has imported everything, and Ray takes
another four seconds from there. So it is started in a process of its own, meanwhile.
"""

from __future__ import annotations

import signal
import sys

import ray

if __name__ == "__main__":
    ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
    signal.pause()
