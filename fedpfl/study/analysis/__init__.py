"""Analyses: what can be read from the folders of runs, one short file each.

``ANALYSES[name].make(runs)`` returns tables and figures as plain data; ``fedpfl analyse`` prints and writes them.
"""

from __future__ import annotations

from .registry import ANALYSES, Analysis, NotRecorded, Result, analysis

__all__ = ["ANALYSES", "Analysis", "NotRecorded", "Result", "analysis"]
