"""Further tests: of the mean of the clients' whole models, and of each model as it was trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import ConfigError
from ...core.option import Option
from ...core.settings import setting


@dataclass(frozen=True)
class EvaluateGlobalSettings:
    """Whether a global model is tested where the method has none."""

    evaluate_global: bool = setting(
        False,
        "Also test the mean of the clients' whole models if the method has no global model. Clients then send their "
        "personal arrays to the server.",
        tags="whole",
    )


class EvaluateGlobalOption(Option):
    """Has clients send their personal arrays, and test their mean."""

    title = "Global model"
    Settings = EvaluateGlobalSettings
    at_server = True

    def check(self, config: Any) -> None:
        """Refuse clients with different models, which have no mean."""
        if self.settings.evaluate_global and config.run.client_models:
            allowed = "cannot be combined with client-models: it is for one model"
            raise ConfigError("evaluate-global", True, allowed)


@dataclass(frozen=True)
class EvaluateTrainedSettings:
    """Whether models are tested before they are combined."""

    evaluate_trained: bool = setting(
        False,
        "Also test each client's model right after local training (trained in metrics.jsonl), as on FedReG's testbed.",
        tags="built training",
    )


class EvaluateTrainedOption(Option):
    """Has clients test their models right after training."""

    title = "Trained models"
    Settings = EvaluateTrainedSettings
