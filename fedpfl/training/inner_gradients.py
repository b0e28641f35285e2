"""Steps within a step, for a phase's ``gradient``: gradients at other points than the current parameters."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .loop import gradients
from .phase import Batch, Loss

try:
    from torch.func import functional_call
except ImportError:  # before torch 2.0
    from torch.nn.utils.stateless import functional_call  # type: ignore[assignment]


def forward_with(model: nn.Module, arrays: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """Return the model's output for ``x`` with other arrays in the place of those of the same names."""
    return functional_call(model, dict(arrays), (x,))


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of the model's logits, whatever the setting ``loss``."""
    return F.cross_entropy(model(batch.x), batch.y)


def gradient_of(
    model: nn.Module, batch: Batch, params: Sequence[Tensor], loss: Loss = cross_entropy, weight: float = 1
) -> tuple[Tensor, list[Tensor]]:
    """Return the loss and the gradient of ``weight`` times the loss, at the parameters as they are."""
    value = loss(model, batch)
    return value, gradients(value if weight == 1 else weight * value, model, params)


@contextmanager
def returning(params: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield copies of the parameters; afterwards they hold the values of these again, to the bit."""
    start = [p.detach().clone() for p in params]
    try:
        yield start
    finally:
        with torch.no_grad():
            for p, origin in zip(params, start):
                p.copy_(origin)


@torch.no_grad()
def move(params: Sequence[Tensor], start: Sequence[Tensor], direction: Sequence[Tensor], step: float) -> None:
    """Set the parameters to start + step·direction."""
    for p, origin, d in zip(params, start, direction):
        p.copy_(origin).add_(d, alpha=step)


def parts_of(batch: Batch, count: int) -> list[Batch]:
    """Cut a batch into parts of equal size (± 1); one too small for two samples in each is all of the parts."""
    if len(batch.y) < 2 * count:
        return [batch] * count
    pieces = (torch.tensor_split(tensor, count) for tensor in batch)
    return [Batch(*piece) for piece in zip(*pieces)]
