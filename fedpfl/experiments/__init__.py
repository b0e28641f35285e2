"""Grids of runs: the papers' tables and figures from their files in ``experiments/``, and sweeps over settings."""

from .description import SCALES, Cell, Experiment, load
from .grid import Grid, Job, Watcher
from .store import PlannedRun, State, Store, plan
from .sweep import Sweep
from .tables import tables

__all__ = [
    "SCALES", "Cell", "Experiment", "Grid", "Job", "PlannedRun", "State", "Store", "Sweep", "Watcher", "load", "plan",
    "tables",
]  # fmt: skip
