"""Differential privacy of what clients send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError
from ...core.extras import SERVER
from ...core.option import Option
from ...core.settings import setting
from .diagnostics import DiagnosticsSettings
from .evaluate_global import EvaluateGlobalSettings


@dataclass(frozen=True)
class PrivacySettings:
    """Whether and how a client's update of the shared arrays is clipped and gets noise."""

    dp_noise_multiplier: float = setting(
        0.0,
        "Standard deviation z of the noise on the shared arrays, in units of dp-clip-norm. 0: no differential privacy.",
        minimum=0,
    )
    dp_clip_norm: float = setting(
        1.0,
        "Maximum L2 norm C of a client's update over all shared arrays; longer updates are scaled down to it.",
        above=0,
    )
    dp_delta: float = setting(
        1e-5, "δ for which ε is reported; choose it well below 1 / number of clients.", above=0, maximum=0.1
    )
    dp_where: str = setting(
        "client",
        "Where noise is added. client: each client adds it to what it sends. server: the trusted server adds it to "
        "the sum; this needs a rule that is a mean, and gives all clients equal weight.",
        choices=("client", "server"),
    )
    dp_reproducible: bool = setting(
        False, "Draw the noise from the seed. For experiments only: anyone who knows the seed can subtract the noise."
    )

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
    of_arrays = True
    at_server = True

    def wanted(self, config: Any) -> bool:
        """Return whether there is any noise."""
        return self.settings.on  # type: ignore[no-any-return]

    def check(self, config: Any) -> None:
        """Refuse whatever would leave a client past the noise."""
        if not self.settings.on:
            return
        name, value = config.method.name, self.settings.dp_noise_multiplier
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
