"""Buffered rounds (FedBuff)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError
from ...core.option import Option
from ...core.settings import setting
from .evaluate_global import EvaluateGlobalSettings
from .participation import ParticipationSettings
from .privacy import PrivacySettings


@dataclass(frozen=True)
class BufferedSettings:
    """When a round ends."""

    schedule: str = setting(
        "synchronous",
        "synchronous: a round waits for all clients that it asked. buffered (FedBuff): a round ends with the first "
        "buffer-size replies while the others go on training; for methods whose rule is a mean.",
        choices=("synchronous", "buffered"),
    )
    buffer_size: int = setting(
        10, "buffered: number of replies per server step.", minimum=1, only={"schedule": ("buffered",)}
    )


class BufferedOption(Option):
    """Ends a round with the first replies."""

    title = "Buffered rounds"
    Settings = BufferedSettings
    at_server = True

    def wanted(self, config: Any) -> bool:
        """Return whether rounds are buffered."""
        return self.settings.schedule == "buffered"  # type: ignore[no-any-return]

    def check(self, config: Any) -> None:
        """Refuse what makes a reply mean something only together with the others of its round."""
        if not self.wanted(config):
            return
        method, rule, kind = config.method, config.method.aggregation.rule, self.settings.schedule
        if rule.no_server_step or method.extras or not rule.sends_shared_alone():
            why = f"its rule {rule.name!r} {rule.no_server_step or 'sends or gets more than the shared arrays'}"
            raise ConfigError("schedule", kind, f"must be synchronous for {method.name}: {why}")
        who, run = config.of(ParticipationSettings), config.run
        others = {
            "dp-noise-multiplier": config.of(PrivacySettings).on,
            "evaluate-global": config.of(EvaluateGlobalSettings).evaluate_global,
            "over-selection": who.over_selection,
            "available-clients": who.available_clients,
            "round-deadline": who.round_deadline,
            "test-at = start": run.test_at == "start",
            "min-replies above buffer-size": run.min_replies > self.settings.buffer_size,
        }  # fmt: skip
        if on := [key for key, value in others.items() if value]:
            raise ConfigError("schedule", kind, f"cannot be combined with {', '.join(on)}")
