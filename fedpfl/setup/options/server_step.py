"""Optimisers of the server's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError
from ...core.option import Option
from ...core.settings import setting

_OPTIMIZERS = ("momentum", "adam", "yogi")


@dataclass(frozen=True)
class ServerStepSettings:
    """What the server does with the clients' mean."""

    server_optimizer: str = setting(
        "none",
        "How the server applies a mean. none: the mean itself. momentum (FedAvgM), adam (FedAdam), yogi (FedYogi): "
        "the difference to the mean is a gradient.",
        choices=("none", *_OPTIMIZERS),
        tags="server combining",
    )
    server_learning_rate: float = setting(
        0.0,
        "Server learning rate η. 0: 0.01 for adam and yogi; for momentum 1 − server-momentum, which applies each "
        "round's update once in total.",
        minimum=0,
        only={"server-optimizer": _OPTIMIZERS},
        tags="server",
    )
    server_momentum: float = setting(
        0.9,
        "Server momentum; β₁ of adam and yogi.",
        minimum=0,
        maximum=0.999999,
        only={"server-optimizer": _OPTIMIZERS},
        tags="server",
    )


class ServerStepOption(Option):
    """Has the server do more than take the mean."""

    title = "Server's step"
    Settings = ServerStepSettings

    def wanted(self, config: Any) -> bool:
        """Return whether there is an optimiser."""
        return self.settings.server_optimizer != "none"  # type: ignore[no-any-return]

    def check(self, config: Any) -> None:
        """Refuse rules that make no mean."""
        rule, kind = config.method.aggregation.rule, self.settings.server_optimizer
        if self.wanted(config) and rule.no_server_step:
            allowed = f"must be none for {config.method.name}: its rule {rule.name!r} {rule.no_server_step}"
            raise ConfigError("server-optimizer", kind, allowed)
