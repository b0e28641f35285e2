"""What clients get after a run's end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError
from ...core.option import Option
from ...core.settings import setting


@dataclass(frozen=True)
class PersonaliseSettings:
    """Whether a run is over, and who gets a model of its final arrays."""

    personalise: str = setting(
        "none",
        "What `fedpfl personalise` does with resume: clients that were not in the run make a model from its final "
        "shared arrays, by one round of training of their personal part (local-train) or of everything (fine-tune), "
        "and clients that missed the last test are tested.",
        choices=("none", "local-train", "fine-tune"),
        tags="own free idle whole",
    )

    @property
    def on(self) -> bool:
        """Whether the run is over, and clients get models of their own."""
        return self.personalise != "none"


class PersonaliseOption(Option):
    """Serves clients that were not in a run, or missed its end, in place of more rounds."""

    title = "After the end"
    Settings = PersonaliseSettings
    at_server = True

    def check(self, config: Any) -> None:
        """Refuse a run that is not over."""
        if self.settings.on and not config.run.resume:
            allowed = "needs resume and run-name, the finished run: `fedpfl personalise RUN`"
            raise ConfigError("personalise", self.settings.personalise, allowed)


class DeviceModelOption(Option):
    """Has clients write their models on their own machines; the settings say in which rounds they are tested for it."""

    title = "Device models"

    def wanted(self, config: Any) -> bool:
        """Return whether any client may write one."""
        return config.run.device_models != "never"  # type: ignore[no-any-return]


class BestRoundOption(Option):
    """Keeps the models of the round that is best on the validation samples, as a run of its own in RUN/best."""

    title = "Best round"
    at_server = True

    def wanted(self, config: Any) -> bool:
        """Return whether there are validation samples."""
        return config.data.validation_fraction > 0  # type: ignore[no-any-return]
