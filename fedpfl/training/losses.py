"""What a model's numbers mean: classes, targets, labels of which several can be right, or a class for each pixel.

Each kind has a loss and a score. A score is a sum over the values of a test set, so that those of clients can be added:
of classes and of labels how many are right, of targets the share of their variance that is explained (R²).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import functional as F

CROSS_ENTROPY, MSE, MULTI_LABEL, SEGMENTATION = "cross-entropy", "mse", "multi-label", "segmentation"

# (numbers of the model, labels or targets) → mean loss.
Criterion = Callable[..., Tensor]


@dataclass(frozen=True)
class LossKind:
    """A loss and how its tests are scored.

    ``criterion(outputs, y)`` is the mean loss over a batch; with ``reduction="sum"`` the sum over samples or values.
    With ``classes`` labels are int64 of shape (n,), otherwise targets float32 of shape (n, k), or masks.
    ``score(outputs, y)`` is that of a whole test set; divided by the number of values it is what ``called`` names. If
    it is ``counted``, it is a number of right values.
    """

    criterion: Callable[..., Tensor]
    classes: bool
    score: Callable[[Tensor, Tensor], float]
    called: str
    counted: bool = True


def _explained(outputs: Tensor, y: Tensor) -> float:
    """Return R² times the number of values: 1 − squared errors ÷ squared distances from the mean, mean over columns.

    A column without any variance counts 1 if it is predicted exactly, else 0.
    """
    outputs, y = outputs.double(), y.double()
    errors, spread = (outputs - y).square().sum(0), (y - y.mean(0)).square().sum(0)
    exact = (errors == 0).double()
    each = torch.where(spread > 0, 1 - errors / spread.clamp(min=torch.finfo(torch.float64).tiny), exact)
    return float(each.mean()) * y.numel()


def _of_masks(name: str) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        from . import masks

        return getattr(masks, name)(*given, **named)

    return call


KINDS = {
    CROSS_ENTROPY: LossKind(
        F.cross_entropy, True, lambda outputs, y: int((outputs.argmax(1) == y).sum()), "accuracy"
    ),
    MSE: LossKind(F.mse_loss, False, _explained, "R²", counted=False),
    MULTI_LABEL: LossKind(
        F.binary_cross_entropy_with_logits, False, lambda outputs, y: int(((outputs > 0) == (y > 0.5)).sum()),
        "the share of correct labels",
    ),
    SEGMENTATION: LossKind(
        _of_masks("cross_entropy"), False, _of_masks("accuracy"), "the share of right pixels", counted=False
    ),
}  # fmt: skip
