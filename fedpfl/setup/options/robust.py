"""Means that some false updates cannot move far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError
from ...core.option import Option, TaskFacts
from ...core.settings import setting
from .privacy import PrivacySettings


@dataclass(frozen=True)
class RobustSettings:
    """What the server does about clients that send false updates."""

    robust_aggregation: str = setting(
        "none",
        "Replacement for a mean. clip: mean of updates, the longer half shortened to the median norm. median: median "
        "of each value. trimmed-mean: mean of each value without the extremes. krum: mean of the updates closest to "
        "most others. The last three give all clients equal weight.",
        choices=("none", "clip", "median", "trimmed-mean", "krum"),
        tags="server combining",
    )
    robust_false_share: float = setting(
        0.2,
        "trimmed-mean, krum: share of a round's clients that may be malicious, rounded up.",
        minimum=0,
        maximum=0.49,
        only={"robust-aggregation": ("trimmed-mean", "krum")},
        tags="server",
    )
    max_weight_share: float = setting(
        1.0,
        "Maximum weight of one client, as a share of the samples of all clients asked in a round. Below 1 / clients "
        "all clients have equal weight.",
        above=0,
        maximum=1,
        tags="server combining",
    )

    @property
    def on(self) -> bool:
        """Whether something takes the mean's place."""
        return self.robust_aggregation != "none"

    @property
    def weighs_alike(self) -> bool:
        """Whether all clients have equal weight in what takes the mean's place."""
        return self.robust_aggregation not in ("none", "clip")


class RobustOption(Option):
    """Has rules make other means, or bounds what a client weighs in them."""

    title = "Robust means"
    Settings = RobustSettings

    def wanted(self, config: Any) -> bool:
        """Return whether the means are not the usual ones."""
        return self.settings.on or self.settings.max_weight_share < 1  # type: ignore[no-any-return]

    def check(self, config: Any) -> None:
        """Refuse rules that make no mean, and noise that is made for a sum."""
        rule, privacy, kind = (
            config.method.aggregation.rule,
            config.of(PrivacySettings),
            self.settings.robust_aggregation,
        )
        if self.settings.on and rule.no_robust_mean:
            why = f"its rule {rule.name!r} {rule.no_robust_mean}; there is update-norm-limit"
            raise ConfigError("robust-aggregation", kind, f"must be none for {config.method.name}: {why}")
        if self.settings.on and privacy.on and privacy.dp_where == "server":
            allowed = "must be none with dp-where = server: the noise is made for a sum"
            raise ConfigError("robust-aggregation", kind, allowed)

    def remarks(self, config: Any, task: TaskFacts) -> list[str]:
        """Name the memory that an estimate needs."""
        if not self.settings.on:
            return []
        mebibytes = task.asked * task.shared * 4 / 2**20
        size = f"{task.asked} clients × {task.shared} values × 4 bytes = {mebibytes:.1f} MiB"
        return [f"robust-aggregation = {self.settings.robust_aggregation} keeps all vectors of a round: {size}"]
