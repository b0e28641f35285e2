"""One Flower Strategy for each aggregation rule; a method names its rule in ``Method.aggregation``."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from .base import Client, PersonalisedStrategy

__all__ = ["Client", "PersonalisedStrategy", "strategies"]


@lru_cache(maxsize=1)
def strategies() -> dict[str, type[PersonalisedStrategy]]:
    """Return every strategy of this package by the name of its rule."""
    found: dict[str, type[PersonalisedStrategy]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, PersonalisedStrategy) and "rule" in vars(value):
                found[value.rule] = value
    return found
