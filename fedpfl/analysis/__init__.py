"""Analyses: what can be read from the folders of runs, one short file each.

``analyses()[name].make(runs)`` returns tables and figures as plain data; ``fedpfl analyse`` prints and writes them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from .registry import Analysis, NotRecorded, Result, analysis, sorted_analyses

__all__ = ["Analysis", "NotRecorded", "Result", "analyses", "analysis"]


def analyses() -> Mapping[str, Analysis]:
    """Return all analyses by name; each file of this package registers its own."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sorted_analyses()
