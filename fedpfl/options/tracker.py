"""Services that also receive the rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.option import Option
from ..core.settings import setting


@dataclass(frozen=True)
class TrackerSettings:
    """Where the rounds go besides the run's folder."""

    tracker: str = setting(
        "none",
        "Service that also receives the rounds, from the server's machine. wandb: Weights & Biases (extra wandb; "
        "WANDB_PROJECT names the project; WANDB_MODE=offline keeps everything in the run's folder). mlflow: MLflow "
        "(extra mlflow; MLFLOW_EXPERIMENT_NAME; MLFLOW_TRACKING_URI, or mlflow.db in output-dir).",
        choices=("none", "wandb", "mlflow"),
    )


class TrackerOption(Option):
    """Sends the rounds to a service."""

    title = "Trackers"
    Settings = TrackerSettings
    parts = {
        "plan": "fedpfl.engine.listeners.trackers:require_tracker",
        "follower": "fedpfl.engine.listeners.trackers:trackers",
    }

    def wanted(self, config: Any) -> bool:
        """Return whether a service is named."""
        return self.settings.tracker != "none"  # type: ignore[no-any-return]
