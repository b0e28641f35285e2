"""Listeners of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core import references
from ...core.errors import ConfigError
from ...core.option import Option
from ...core.settings import setting


@dataclass(frozen=True)
class ListenersSettings:
    """What follows the run in the server's process."""

    listeners: str = setting(
        "",
        "Your own listeners, in the server's process (docs/how-to/callbacks.md).",
        tags="own free idle code server",
        form="a list of MODULE:NAME, each a class or an object",
    )

    @property
    def names(self) -> list[str]:
        """The names in the setting."""
        return [name for part in self.listeners.split(",") if (name := part.strip())]


class ListenersOption(Option):
    """Has listeners of the user's own follow the run."""

    title = "Your own listeners"
    Settings = ListenersSettings
    at_server = True

    def check(self, config: Any) -> None:
        """Refuse what names no code."""
        for text in self.settings.names:
            if not references.is_reference(text):
                raise ConfigError("listeners", text, f"must be {references.FORM}")
