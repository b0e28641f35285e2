"""A check of settings that needs no torch, so that a wrong one is answered at once.

What it lets pass is checked again where everything is known.
"""

from __future__ import annotations

from typing import Any, Mapping

from ..core import custom
from ..core.errors import ConfigError, did_you_mean
from ..core.settings import checked, setting
from .known import LIMITS, Settings, SweepSettings


def check(given: Mapping[str, Any], app: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` for settings ``given`` that there are not or that are not allowed.

    ``app`` has the settings of the app, among them those of its own methods.
    """
    method = given.get("method", app.get("method", ""))
    if isinstance(method, str) and custom.is_custom("method", method):
        return  # whose settings are known once it is imported
    ours = (*Settings.__annotations__, *SweepSettings.__annotations__, "resume")
    known = {key.replace("_", "-") for key in ours} | app.keys()
    for key, value in given.items():
        if key not in known:
            hint = did_you_mean(key, sorted(known)) or "; `fedpfl config` lists all keys"
            raise ConfigError(key, value, "there is no such setting" + hint)
    for key, value in given.items():
        if key in LIMITS:
            default, limits, is_open = LIMITS[key]
            open_to = {custom.FORM: custom.is_reference} if is_open else {}
            choices = limits.get("choices")
            if choices and key in custom.GROUPS:
                limits = {
                    **limits,
                    "choices": (*choices, *(n for n in custom.entry_point_names(key) if n not in choices)),
                }
            checked(key, value, setting(default, "", open_to=open_to, **limits))
