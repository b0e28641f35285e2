"""The methods, one file each. A new file in this folder is a new method; nothing else needs to know of it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from ..core.errors import ConfigError
from .base import Method

__all__ = ["Method", "find", "methods", "names"]


@lru_cache(maxsize=1)
def methods() -> dict[str, type[Method]]:
    """Return every method of this package by name, in alphabetical order."""
    found: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Method) and "name" in vars(value):
                found[value.name] = value
    return dict(sorted(found.items()))


def names() -> list[str]:
    """Return the names and aliases that users may write."""
    return [word for method in methods().values() for word in (method.name, *method.aliases)]


def find(name: str) -> type[Method]:
    """Return the method called ``name``.

    Raises
    ------
    ConfigError
        There is none.
    """
    for method in methods().values():
        if name == method.name or name in method.aliases:
            return method
    raise ConfigError("method", name, "must be one of " + ", ".join(names()))
