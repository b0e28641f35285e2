"""A study: grids of runs for the papers' tables and for sweeps, comparisons, analyses, reports and the live page."""
