"""Custom code: a model, a data set or a method that is not part of this package.

A setting names it in three ways:

* ``MODULE:NAME``, an attribute of a module: a file in the app's folder, where Flower has unpacked the app, or an
  installed package;
* the name of an entry point of an installed package (:data:`GROUPS`);
* ``python:…``, an object of this process (``fedpfl/setup/objects.py``), which only forked processes have as well.

``fedpfl/core/user_code.py`` imports and calls what they name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Iterable, Iterator, Mapping

# The setting → the group of entry points under which installed packages register theirs.
GROUPS = {"model": "fedpfl.models", "dataset": "fedpfl.datasets", "method": "fedpfl.methods"}
# What errors call the form of a custom name.
FORM = "MODULE:NAME for one of your own"
PYTHON = "python"

_WORD = r"[^\W\d]\w*"
_REFERENCE = re.compile(rf"{_WORD}(?:\.{_WORD})*:{_WORD}(?:\.{_WORD})*(?:#\d+)?")
# Clients that a part of a setting is for, and labels that a loss is for.
_CLIENTS = re.compile(r"\A(?:\d+(?:-\d+)?:|(?:mse|multi-label|segmentation):(?=[^:]+:))")
# The share of a model's channels that a client has.
_SHARE = re.compile(r"@[\d.]+\Z")
# Objects of this process by the texts that name them; fedpfl/setup/objects.py puts them here.
objects: dict[str, Any] = {}


def is_reference(text: str) -> bool:
    """Tell whether a setting's value has the form ``MODULE:NAME``."""
    return _REFERENCE.fullmatch(text) is not None


def is_own(text: str) -> bool:
    """Tell whether a setting's value is ``MODULE:NAME`` once :func:`without_clients` has taken its clients."""
    return is_reference(without_clients(text))


def references(values: Mapping[str, Any], kinds: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (setting, ``MODULE:NAME``) for each of the user's own parts that the settings ``kinds`` name."""
    for kind in kinds:
        for text in map(str.strip, str(values.get(kind, "")).split(",")):
            if is_reference(text := without_clients(text)):
                yield kind, text


def without_clients(text: str) -> str:
    """Return a part of a setting without what stands around ``MODULE:NAME``: ``0-9:`` or ``mse:``, and ``@0.5``."""
    return _SHARE.sub("", _CLIENTS.sub("", text.strip()))


def entry_point_names(kind: str) -> list[str]:
    """Return the names under which installed packages register a kind (``model``, ``dataset``, ``method``), sorted."""
    return sorted(entry_points_of(kind))


def is_custom(kind: str, text: str) -> bool:
    """Tell whether a setting's value has the form of a custom name, or is an entry point; nothing is imported."""
    return is_reference(text) or text in entry_points_of(kind)


def as_named(method: Any) -> Any:
    """Return a method's name as this package writes it, where papers write FedAvg; other things as they are."""
    return method if not isinstance(method, str) or is_custom("method", method) else method.lower()


def article(thing: object) -> str:
    """Name the kind of an object, for an error: ``a list``, ``the class Net``, ``None``."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    if thing is None:
        return "None"
    word = type(thing).__name__
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def short_name(text: str) -> str:
    """Return the name for titles and files: ``har_cnn`` for ``parts:har_cnn``."""
    return text.partition(":")[2].partition("#")[0] if is_reference(text) else text


@lru_cache(maxsize=None)
def entry_points_of(kind: str) -> dict[str, EntryPoint]:
    """Return the entry points of a kind that installed packages register, by name."""
    installed: Any = entry_points()
    # Python 3.10 and later select; older ones have a dict of groups.
    group = installed.select(group=GROUPS[kind]) if hasattr(installed, "select") else installed.get(GROUPS[kind], ())
    return {point.name: point for point in group}
