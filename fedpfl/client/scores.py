"""Numbers of a test as they travel, and what a client has trained, looked at before it leaves."""

from __future__ import annotations

from typing import Iterable, Sequence

import numpy as np

from ..core.errors import TrainingDiverged
from ..core.metric_bounds import LARGEST
from ..core.metrics import COUNT, SUM
from ..core.vectors import is_finite
from ..methods.base import LocalRound
from ..training.loop import Score
from ..training.phase import Phase


def require_finite(
    local: LocalRound, arrays: Iterable[np.ndarray], phases: Sequence[Phase], finite: bool = True
) -> None:
    """Refuse what a client has trained in phases if arrays are not finite."""
    if finite and are_finite(arrays):
        return
    hint = "a smaller learning-rate may help"
    if any(phase.loss or phase.gradient or phase.penalty for phase in phases):
        hint += ", or the method's own loss or penalty is not finite for some batch"
    raise TrainingDiverged(f"the training diverged in round {local.round}; {hint}")


def are_finite(arrays: Iterable[np.ndarray]) -> bool:
    """Tell whether every value of every array is finite."""
    return all(map(is_finite, arrays))


def train_loss(losses: Sequence[float | None]) -> dict[str, float]:
    """Return a client's training loss as it travels: that of the last epoch of the last phase that trained, if any."""
    return next(({"train-loss": loss} for loss in reversed(losses) if loss is not None), {})


def metrics_of(prefix: str, score: Score) -> dict[str, int | float]:
    """Return the numbers of a test as they travel; a loss that is not finite is the largest."""
    more = {f"{prefix}-{name}{SUM}": total for name, (total, _) in score.metrics.items()}
    return {
        **more,
        **{f"{prefix}-{name}{COUNT}": count for name, (_, count) in score.metrics.items()},
        f"{prefix}-correct": score.correct,
        f"{prefix}-loss-sum": score.loss_sum if score.loss_sum < LARGEST else LARGEST,
        f"{prefix}-samples": score.samples,
    }
