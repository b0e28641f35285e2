"""Starts Ray for a run and holds it, ``python ray_head.py CPUS WORKER``, until it is ended.

Flower's simulation would start Ray itself, but only once it has been started and has imported everything, and Ray takes
another four seconds from there. So it is started in a process of its own, meanwhile. ``WORKER`` is the program that Ray
executes instead of its ``setup_worker.py``, to have a worker forked (:mod:`fedpfl.simulation_forks`).
"""

from __future__ import annotations

import signal
import sys
from functools import partialmethod
from inspect import signature
from pathlib import Path

import ray
from ray._private.node import Node
from ray._private.parameter import RayParams

# Processes for clusters that grow, for logs that a driver shows and for the dashboard: each would take a second of a
# core from the start of the run, and the second one some of every round. Ray has no setting against them.
SPARED = ("start_monitor", "start_log_monitor", "start_api_server")

if __name__ == "__main__":
    for start in SPARED:
        if hasattr(Node, start):  # a Ray that calls it otherwise just starts it
            setattr(Node, start, lambda *_, **__: None)
    # Likewise: a Ray that knows no such program, or a run without it, starts its workers itself.
    if Path(sys.argv[2]).is_file() and "setup_worker_path" in signature(RayParams).parameters:
        RayParams.__init__ = partialmethod(RayParams.__init__, setup_worker_path=sys.argv[2])  # type: ignore[assignment]
    ray.init(num_cpus=int(sys.argv[1]), include_dashboard=False, log_to_driver=False)
    signal.pause()
