"""Listeners of the user's own that a setting names."""

from __future__ import annotations

from ...core import references, user_code
from ...core.errors import ConfigError
from ...results.run_folder import RunFolder
from ...setup.config import Config
from ...setup.options.listeners import ListenersSettings
from ..listener import Listener


def named_listeners(config: Config, folder: RunFolder) -> list[Listener]:
    """Return the listeners that ``listeners`` names; a class is called without arguments."""
    return [_named(text) for text in config.of(ListenersSettings).names]


def _named(text: str) -> Listener:
    listener = user_code.find("listeners", text)
    if isinstance(listener, type) and issubclass(listener, Listener):
        listener = user_code.call("listeners", text, listener, {})
    if not isinstance(listener, Listener):
        raise ConfigError(
            "listeners", text, f"is {references.article(listener)}, and must be a subclass of fedpfl.Listener"
        )
    return listener
