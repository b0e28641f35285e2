"""Losses that a run may have instead of the usual ones: with weights of classes, and functions of the user's."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, ContextManager, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import custom, own_code
from ..core.errors import ConfigError
from ..core.metrics import labels_of
from .losses import CROSS_ENTROPY, SEGMENTATION, Criterion
from .settings import listed_weights

BALANCED = "balanced"
# The weight of each class in the phase that runs, for the client whose samples it trains on.
_weights: ContextVar[Tensor | None] = ContextVar("weights", default=None)


def class_weights(y: Tensor, given: str = BALANCED) -> Tensor:
    """Return the weights of the classes: those that are given, or n / (C · n_c) for each of the C among n labels.

    Of a class that has no label the balanced weight is 1.
    """
    if given != BALANCED:
        return torch.tensor(listed_weights(given), device=y.device)
    counts = torch.bincount(y)
    weights = len(y) / (counts.clamp(min=1) * max(1, int((counts > 0).sum())))
    return torch.where(counts > 0, weights, torch.ones_like(weights))


@contextmanager
def weighing_with(weights: Tensor) -> Iterator[None]:
    """Weigh classes wherever :func:`weighted_cross_entropy` is computed inside."""
    token = _weights.set(weights)
    try:
        yield
    finally:
        _weights.reset(token)


def weighing(y: Tensor, given: str) -> ContextManager[None]:
    """Weigh classes inside as a setting says, for these labels."""
    return weighing_with(class_weights(y, given))


def weighted_cross_entropy(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of each sample times the weight of its class: the mean, the sum, or each (none)."""
    losses = F.cross_entropy(outputs, y, reduction="none")
    weights = _weights.get()
    if weights is not None:
        losses = losses * weights[y]
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


@lru_cache(maxsize=8)
def _own(text: str, version: int) -> Criterion:
    word = custom.without_clients(text)
    function = own_code.guarded("loss", text, own_code.find("loss", word))

    def criterion(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        found: Any = function(outputs, y if y.is_floating_point() else y.long())
        if not isinstance(found, Tensor) or found.shape not in ((), (len(y),)):
            is_one = custom.article(found) if not isinstance(found, Tensor) else f"a tensor of {tuple(found.shape)}"
            raise ConfigError("loss", text, f"returns {is_one}; it must return the mean, or a value for each sample")
        if reduction == "none" and not found.dim():
            raise ConfigError("loss", text, "must return a value for each sample: this method weighs samples")
        return found if reduction == "none" else found.sum() if reduction == "sum" else found.mean()

    return criterion


def own_loss(text: str) -> Criterion:
    """Return the user's function that a setting ``loss`` names: (model's numbers, labels) → mean, or each sample's."""
    return _own(text, own_code.version())


def require_working(text: str, num_classes: int) -> None:
    """Try the user's function with two samples, so that a mistake shows before round 1."""
    kind, outputs = labels_of(text), torch.eye(2, num_classes)
    y = outputs if kind not in (CROSS_ENTROPY, SEGMENTATION) else torch.arange(2) % num_classes
    if kind == SEGMENTATION:
        y, outputs = y[:, None, None].expand(2, 4, 4), outputs[..., None, None].expand(2, num_classes, 4, 4)
    found = own_loss(text)(outputs.clone().requires_grad_(), y)
    if not (found.requires_grad and torch.isfinite(found)):
        raise ConfigError("loss", text, "must be finite and have a gradient with respect to the model's numbers")
