"""What a model's numbers mean: classes, targets, or labels of which several can be right.

Each kind has a loss and a score. A score is a sum over the values of a test set, so that those of clients can be added:
of classes and of labels how many are right, of targets the share of their variance that is explained (R²).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

CROSS_ENTROPY, MSE, MULTI_LABEL = "cross-entropy", "mse", "multi-label"

# (numbers of the model, labels or targets) → mean loss.
Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class LossKind:
    """A loss and how its tests are scored.

    ``criterion(outputs, y)`` is the mean loss over a batch; with ``reduction="sum"`` the sum over samples or values.
    With ``classes`` labels are int64 of shape (n,), otherwise targets float32 of shape (n, k). ``score(outputs, y)`` is
    that of a whole test set; divided by the number of values it is what ``called`` names.
    """

    criterion: Callable[..., Tensor]
    classes: bool
    score: Callable[[Tensor, Tensor], float]
    called: str


def _right_classes(outputs: Tensor, y: Tensor) -> int:
    return int((outputs.argmax(1) == y).sum())


def _right_labels(outputs: Tensor, y: Tensor) -> int:
    return int(((outputs > 0) == (y > 0.5)).sum())


def _explained(outputs: Tensor, y: Tensor) -> float:
    """Return R² times the number of values: 1 − squared errors ÷ squared distances from the mean, mean over columns.

    A column without any variance counts 1 if it is predicted exactly, else 0.
    """
    outputs, y = outputs.double(), y.double()
    errors, spread = (outputs - y).square().sum(0), (y - y.mean(0)).square().sum(0)
    exact = (errors == 0).double()
    each = torch.where(spread > 0, 1 - errors / spread.clamp(min=torch.finfo(torch.float64).tiny), exact)
    return float(each.mean()) * y.numel()


KINDS = {
    CROSS_ENTROPY: LossKind(F.cross_entropy, True, _right_classes, "accuracy"),
    MSE: LossKind(F.mse_loss, False, _explained, "R²"),
    MULTI_LABEL: LossKind(
        F.binary_cross_entropy_with_logits, False, _right_labels, "the share of labels that are right"
    ),
}
