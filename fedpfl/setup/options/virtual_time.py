"""Virtual time: how long the rounds would take on devices that a file describes."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.option import Option
from ...core.settings import setting


@dataclass(frozen=True)
class VirtualTimeSettings:
    """Where the devices are described."""

    devices_model: str = setting(
        "",
        "Describes the clients' devices (docs/how-to/virtual-time.md): `fedpfl run` computes the time of each round "
        "on them, and replies come in that order.",
        tags="place file server",
        form="a TOML file",
    )


class VirtualTimeOption(Option):
    """Computes how long each round would take, and whose replies come first."""

    title = "Virtual time"
    Settings = VirtualTimeSettings
    at_server = True
