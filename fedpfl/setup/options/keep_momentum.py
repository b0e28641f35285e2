"""Momentum that lasts over rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError
from ...core.option import Option
from ...core.settings import setting


@dataclass(frozen=True)
class KeepMomentumSettings:
    """Whether clients keep their momentum."""

    keep_momentum: bool = setting(
        False,
        "Keep a client's SGD momentum across rounds, for each phase, among its personal arrays.",
        tags="built training",
    )


class KeepMomentumOption(Option):
    """Has a client store its momentum from round to round."""

    title = "Momentum over rounds"
    Settings = KeepMomentumSettings

    def check(self, config: Any) -> None:
        """Refuse optimisers without momentum."""
        if self.settings.keep_momentum and not (config.training.optimizer == "sgd" and config.training.momentum):
            raise ConfigError("keep-momentum", True, "needs optimizer = sgd and momentum above 0")
