"""Settings of single clients: how each trains, and how much it weighs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.option import Option, part
from ...core.settings import setting

# Settings of training that a client can have for itself.
UNLIKE = ("local-epochs", "local-steps", "batch-size", "learning-rate", "momentum", "weight-decay", "clip-norm")


@dataclass(frozen=True)
class ClientSettings:
    """The clients that are unlike others."""

    client_settings: str = setting(
        "",
        "Settings of single clients: local-epochs, local-steps, batch-size, learning-rate, momentum, weight-decay, "
        "clip-norm, and weight, a factor of what the client weighs in the mean.",
    )


class ClientSettingsOption(Option):
    """Has single clients train in another way, and weigh more or less in the mean."""

    title = "Unlike clients"
    Settings = ClientSettings
    parts = {
        "of_client": "fedpfl.options.client_settings.client:own_settings",
        "listener": "fedpfl.options.client_settings.server:own_weights",
    }

    def check(self, config: Any) -> None:
        """Refuse what one client cannot have."""
        if self.wanted(config):
            part("fedpfl.options.client_settings.client:check")(config)
