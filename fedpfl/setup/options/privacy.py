"""Differential privacy of what clients send."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ...core.errors import ConfigError
from ...core.extra_arrays import SERVER
from ...core.option import Option, TaskFacts
from ...core.privacy_accounting import epsilon, most_draws, noise_multiplier
from ...core.settings import ABOVE_0, setting
from .diagnostics import DiagnosticsSettings
from .evaluate_global import EvaluateGlobalSettings

_WITH_NOISE = {"dp-noise-multiplier": (ABOVE_0,)}


@dataclass(frozen=True)
class PrivacySettings:
    """Whether and how a client's update of the shared arrays is clipped and gets noise."""

    dp_noise_multiplier: float = setting(
        0.0,
        "Standard deviation z of the noise on the shared arrays, in units of dp-clip-norm. 0: no differential privacy.",
        minimum=0,
        tags="combining whole",
    )
    dp_clip_norm: float = setting(
        1.0,
        "Maximum L2 norm C of a client's update over all shared arrays; longer updates are scaled down to it.",
        above=0,
        only=_WITH_NOISE,
        tags="whole",
    )
    dp_delta: float = setting(
        1e-5,
        "δ for which ε is reported; choose it well below 1 / number of clients.",
        above=0,
        maximum=0.1,
        only=_WITH_NOISE,
        tags="whole",
    )
    dp_epsilon: float = setting(
        0.0,
        "Maximum ε of a client in the run. With dp-noise-multiplier = 0 the noise follows from it, dp-delta, "
        "num-server-rounds and fraction-train; otherwise the run ends before it is exceeded. 0: no maximum.",
        minimum=0,
        tags="combining whole",
    )
    dp_where: str = setting(
        "client",
        "Where noise is added. client: each client adds it to what it sends. server: the trusted server adds it to "
        "the sum; this needs a rule that is a mean, and gives all clients equal weight.",
        choices=("client", "server"),
        only=_WITH_NOISE,
        tags="whole",
    )
    dp_reproducible: bool = setting(
        False,
        "Draw the noise from the seed. For experiments only: anyone who knows the seed can subtract the noise.",
        only=_WITH_NOISE,
        tags="whole",
    )

    def calibrated(self, rounds: int, share: float) -> PrivacySettings:
        """Return the settings with the noise that the budget takes, if they leave it open."""
        if self.dp_noise_multiplier or not self.dp_epsilon:
            return self
        noise = noise_multiplier(self.dp_epsilon, self.dp_delta, most_draws(rounds, share))
        return replace(self, dp_noise_multiplier=noise)

    def allows(self, releases: int) -> bool:
        """Return whether so many releases of a client spend no more than the budget."""
        spent = epsilon(math.sqrt(releases) / self.dp_noise_multiplier, self.dp_delta)
        return not self.dp_epsilon or spent <= self.dp_epsilon

    @property
    def on(self) -> bool:
        """Whether there is any noise."""
        return self.dp_noise_multiplier > 0

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise, in the unit of the shared values."""
        return self.dp_noise_multiplier * self.dp_clip_norm


class PrivacyOption(Option):
    """Clips and disturbs updates, and counts how much privacy is spent."""

    title = "Differential privacy"
    Settings = PrivacySettings

    def wanted(self, config: Any) -> bool:
        """Return whether there is any noise."""
        return self.settings.on  # type: ignore[no-any-return]

    def remarks(self, config: Any, task: TaskFacts) -> list[str]:
        """Tell the noise of a budget."""
        settings = self.settings
        return [f"dp-epsilon = {settings.dp_epsilon:g}: z = {settings.dp_noise_multiplier:.4g}"] * bool(
            settings.dp_epsilon
        )

    def check(self, config: Any) -> None:
        """Refuse whatever would leave a client past the noise."""
        if not self.settings.on:
            return
        name, value = config.method.name, self.settings.dp_noise_multiplier
        if not self.settings.allows(1):
            allowed = f"must be larger: one round with dp-noise-multiplier = {value:g} spends more"
            raise ConfigError("dp-epsilon", self.settings.dp_epsilon, allowed)
        sent = [extra for extra in config.method.extras if extra.goes(SERVER)]
        for extra in sent:
            if extra.exact not in ("", "float32"):
                what = f"its clients send {extra.name!r} as {extra.exact}, which cannot carry noise"
                raise ConfigError("dp-noise-multiplier", value, f"must be 0 with {name}: {what}")
        if sent and self.settings.dp_where == "server":
            arrays = " and ".join(repr(extra.name) for extra in sent)
            raise ConfigError("dp-where", "server", f"must be client with {name}: its clients also send {arrays}")
        more = {
            "evaluate-global": config.of(EvaluateGlobalSettings).evaluate_global,
            "diagnostics": config.of(DiagnosticsSettings).diagnostics,
        }
        for key, on in more.items():
            if on:
                allowed = f"must be 0 with {key} = true: clients then send more, without noise"
                raise ConfigError("dp-noise-multiplier", value, allowed)
