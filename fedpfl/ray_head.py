"""Starts Ray for a run and holds it, ``python ray_head.py CPUS``, until it is ended.

Flower's simulation would start Ray itself, but only once it has been started and has imported everything, and Ray takes
another four seconds from there. So it is started in a process of its own, meanwhile.
"""

from __future__ import annotations

import signal
import sys

import ray
from ray._private.node import Node

# Processes for clusters that grow, for logs that a driver shows and for the dashboard: each would take a second of a
# core from the start of the run, and the second one some of every round. Ray has no setting against them.
SPARED = ("start_monitor", "start_log_monitor", "start_api_server")

if __name__ == "__main__":
    for start in SPARED:
        if hasattr(Node, start):  # a Ray that calls it otherwise just starts it
            setattr(Node, start, lambda *_, **__: None)
    ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
    signal.pause()
