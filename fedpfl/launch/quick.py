"""A check of settings that needs no torch, so that a wrong one is answered at once.

What it lets pass is checked again where everything is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from os import PathLike
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from ..core import custom
from ..core.removed import REMOVED
from ..core.settings import checked, require_keys, setting
from .known import Arguments, Settings


def check(given: Mapping[str, Any], app: Mapping[str, Any], named: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Raise :class:`ConfigError` for settings ``given`` that there are not or that are not allowed.

    ``app`` has the settings of the app, among them those of its own methods. ``named`` are settings whose values are
    checked later.
    """
    method = given.get("method", app.get("method", ""))
    if isinstance(method, str) and custom.is_custom("method", method):
        return  # whose settings are known once it is imported
    known = _limits()
    require_keys({**named, **given}, {*known, *app} - REMOVED.keys())
    for key, value in given.items():
        if key in known:
            kind, limits = known[key]
            open_to = {custom.FORM: custom.is_own} if key in (*custom.GROUPS, *custom.FUNCTIONS) else {}
            if "choices" in limits and key in custom.GROUPS:
                limits = {**limits, "choices": dict.fromkeys((*limits["choices"], *custom.entry_point_names(key)))}
            checked(key, value, setting(kind(), "", open_to=open_to, **limits))


def plain(value: Any) -> Any:
    """Return a setting as its own type: a path as text, NumPy's number as Python's."""
    if isinstance(value, PathLike):
        return str(value)
    return value.item() if getattr(value, "shape", None) == () else value


@cache
def _limits() -> dict[str, tuple[type, dict[str, Any]]]:
    """Return the type and the limits of each setting, by key, from its type for editors."""
    found: dict[str, tuple[type, dict[str, Any]]] = {}
    hints = {**get_type_hints(Settings, include_extras=True), **get_type_hints(Arguments, include_extras=True)}
    for name, hint in hints.items():
        kind, limits = (hint.__origin__, hint.__metadata__[0]) if get_origin(hint) is Annotated else (hint, {})
        if get_origin(kind) is Literal:
            limits = {"choices": get_args(kind)}
        found[name.replace("_", "-")] = (kind if isinstance(kind, type) else str), limits
    return found
