"""Segmentation: masks with a class for each pixel, their loss, and what a test measures of them."""

from __future__ import annotations

from typing import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.samples import IGNORED, Samples
from .loop import Score, test_batches
from .losses import SEGMENTATION
from .measure import Measure, measured
from .phase import Forward

# Images have many numbers: a batch of a test is smaller than that of samples with one class.
TEST_BATCH = 16


def cross_entropy(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean cross-entropy of the pixels that count; or each image's mean (none), or the sum of these."""
    losses = F.cross_entropy(outputs, y.long(), ignore_index=IGNORED, reduction="none")
    counted = y != IGNORED
    if reduction == "mean":
        return losses.sum() / counted.sum().clamp(min=1)
    each = losses.flatten(1).sum(1) / counted.flatten(1).sum(1).clamp(min=1)
    return each if reduction == "none" else each.sum()


def accuracy(said: Tensor, y: Tensor) -> float:
    """Return the share of right ones among the pixels that count, times the number of images."""
    counted = y != IGNORED
    return float((said == y)[counted].double().mean()) * len(y) if counted.any() else 0.0


def evaluate(forward: Forward, samples: Samples, measures: Mapping[str, Measure]) -> Score:
    """Test a forward pass on images, batch by batch; its metrics are those of the classes that it gives the pixels."""
    if not bool((samples.y != IGNORED).any()):
        return Score(0, 0.0, 0, measured(measures, samples.y, samples.y[:0], SEGMENTATION))
    said, losses = [], []
    for batch in test_batches(len(samples.y), TEST_BATCH):
        outputs = forward(samples.x[batch])
        losses.append(cross_entropy(outputs, samples.y[batch], "sum"))
        said.append(outputs.argmax(1).to(samples.y.dtype))
    found = torch.cat(said)
    return Score(
        accuracy(found, samples.y), sum(map(float, losses)), len(samples.y),
        measured(measures, found, samples.y, SEGMENTATION),
    )  # fmt: skip
