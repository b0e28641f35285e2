"""Grids of runs: the papers' tables and figures from their files in ``experiments/``, and sweeps over settings."""
