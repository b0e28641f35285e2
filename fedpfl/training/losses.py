"""What a model's numbers mean: classes, targets, several labels, a class for each pixel, or the next token of a text.

Each kind has a loss and a score. A score is a sum over the values of a test set, so that those of clients can be added:
of classes and of labels how many are right, of targets the share of their variance that is explained (R²). A run may
weigh classes, or have a function of the user's as its loss.
"""

from __future__ import annotations

import math
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import references, user_code
from ..core.errors import ConfigError
from ..core.metrics import CLASSES, LABELS, MASKS, NEXT_TOKEN, TARGETS, labels_of
from ..core.opened_files import noted
from ..core.samples import IGNORED, IGNORED_TOKEN

# (numbers of the model, labels or targets) → mean loss.
Criterion = Callable[..., Tensor]


@dataclass(frozen=True)
class LossKind:
    """A loss and how its tests are scored.

    ``criterion(outputs, y)`` is the mean loss over a batch; with ``reduction="sum"`` the sum over samples or values.
    With ``classes`` labels are int64 of shape (n,), otherwise targets float32 of shape (n, k), masks or tokens.
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


def pixel_cross_entropy(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean cross-entropy of the pixels that count; or each image's mean (none), or the sum of these."""
    losses = F.cross_entropy(outputs, y.long(), ignore_index=IGNORED, reduction="none")
    counted = y != IGNORED
    if reduction == "mean":
        return losses.sum() / counted.sum().clamp(min=1)
    each = losses.flatten(1).sum(1) / counted.flatten(1).sum(1).clamp(min=1)
    return each if reduction == "none" else each.sum()


def pixel_accuracy(said: Tensor, y: Tensor) -> float:
    """Return the share of right ones among the pixels that count, times the number of images."""
    counted = y != IGNORED
    return float((said == y)[counted].double().mean()) * len(y) if counted.any() else 0.0


def next_token_loss(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean cross-entropy of the tokens that are to be predicted; or each text's mean (none), or their sum.

    ``outputs`` are n × length × vocabulary: those at a place predict the token of ``y``, n × length, at the next one.
    """
    said, truth = outputs[:, :-1].transpose(1, 2), y[:, 1:].long()
    losses = F.cross_entropy(said, truth, ignore_index=IGNORED_TOKEN, reduction="none")
    if reduction == "sum":
        return losses.sum()
    counted = truth != IGNORED_TOKEN
    if reduction == "none":
        return losses.sum(1) / counted.sum(1).clamp(min=1)
    return losses.sum() / counted.sum().clamp(min=1)


def right_tokens(said: Tensor, y: Tensor) -> int:
    """Return how many of the tokens to predict are right; ``said`` is what a model gives at each place but the last."""
    return int((said == y[:, 1:]).sum())  # −100 is no token


KINDS = {
    CLASSES: LossKind(
        F.cross_entropy, True, lambda outputs, y: int((outputs.argmax(1) == y).sum()), "accuracy"
    ),
    TARGETS: LossKind(F.mse_loss, False, _explained, "R²", counted=False),
    LABELS: LossKind(
        F.binary_cross_entropy_with_logits, False, lambda outputs, y: int(((outputs > 0) == (y > 0.5)).sum()),
        "the share of correct labels",
    ),
    MASKS: LossKind(
        pixel_cross_entropy, False, pixel_accuracy, "the share of right pixels", counted=False
    ),
    NEXT_TOKEN: LossKind(next_token_loss, False, right_tokens, "the share of next tokens that are right"),
}  # fmt: skip

# Logits so large that a loss with a least value has it.
FAR = 1e6
# The weight of each class in the phase that runs, for the client whose samples it trains on.
_weights: ContextVar[Tensor | None] = ContextVar("weights", default=None)


def class_weights(y: Tensor) -> Tensor:
    """Return the weights of the classes, n / (C · n_c) for each of the C among n labels; 1 of a class without one."""
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


def weighted_cross_entropy(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of each sample times the weight of its class: the mean, the sum, or each (none)."""
    losses = F.cross_entropy(outputs, y, reduction="none")
    weights = _weights.get()
    if weights is not None:
        losses = losses * weights[y]
    return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.mean()


@lru_cache(maxsize=8)
def _of_user(text: str, version: int) -> Criterion:
    word = references.without_clients(text)
    users = user_code.find("loss", word)
    function, truth_first = user_code.guarded("loss", text, users, no_class=True), user_code.takes_truth_first(users)

    def criterion(outputs: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        y = y.clone() if y.is_floating_point() else y.to(torch.int64, copy=True)  # it may change them in place
        result: Any = function(y, outputs) if truth_first else function(outputs, y)
        if not isinstance(result, Tensor) or result.shape not in ((), (len(y),)):
            is_one = (
                references.article(result) if not isinstance(result, Tensor) else f"a tensor of {tuple(result.shape)}"
            )
            raise ConfigError("loss", text, f"returns {is_one}; it must return the mean, or a value for each sample")
        if reduction == "none" and not result.dim():
            raise ConfigError("loss", text, "must return a value for each sample: this method weighs samples")
        return result if reduction == "none" else result.sum() if reduction == "sum" else result.mean()

    return criterion


def own_loss(text: str) -> Criterion:
    """Return the user's function that a setting ``loss`` names: (model's numbers, labels) → mean, or each sample's."""
    return _of_user(text, user_code.version())


def require_working(text: str, num_classes: int) -> None:
    """Try the user's function with a few samples, so that a mistake shows before round 1."""
    outputs, y = tried(labels_of(text), num_classes)
    with noted(references.without_clients(text)), warnings.catch_warnings():
        warnings.filterwarnings("error", "Using a target size")  # torch's, where it would broadcast one to the other
        mean = own_loss(text)(outputs.clone().requires_grad_(), y)
    if not (mean.requires_grad and torch.isfinite(mean)):
        raise ConfigError("loss", text, "must be finite and have a gradient with respect to the model's outputs")
    once, twice = float(mean.detach()), float(own_loss(text)(torch.cat([outputs, outputs]), torch.cat([y, y])))
    if once and math.isclose(twice, 2 * once, rel_tol=1e-5):
        allowed = 'is a sum over the samples; it must return the mean (reduction="mean"), or a value for each sample'
        raise ConfigError("loss", text, allowed)
    if y.is_floating_point():
        other = y / 2 if labels_of(text) == LABELS else 5 * y
        usual, exchanged, others = (float(own_loss(text)(outputs, targets)) for targets in (y, y.roll(1, 0), other))
        if math.isclose(exchanged, usual, rel_tol=1e-5) and not math.isclose(others, usual, rel_tol=1e-5):
            allowed = "is the same whichever sample a target belongs to: numbers and targets, of which both are n × k, "
            raise ConfigError("loss", text, f"{allowed}are broadcast, as when one loses its last dimension")


def require_bound(text: str, num_classes: int) -> None:
    """Refuse a loss of classes that falls for ever as right logits grow: it takes logarithms of probabilities."""
    outputs, y = tried(labels_of(text), num_classes)
    if float(own_loss(text)(FAR * outputs, y)) < -FAR / 1000:
        allowed = "has no least value for logits: end the model in nn.LogSoftmax(1), or use F.cross_entropy"
        raise ConfigError("loss", text, allowed)


def tried(kind: str, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return numbers of a model for samples of different classes, each the largest at the right one, and these.

    They are no probabilities, and there are not as many samples as classes, so that shapes cannot fit by accident.
    """
    y = torch.arange(3 if num_classes == 2 else 2) % num_classes
    right = F.one_hot(y, num_classes).float()
    if num_classes == 1 and kind in (TARGETS, LABELS):
        right = torch.tensor([[1.0], [0.0]])
    outputs = 3 * right - 1
    if kind == MASKS:
        outputs = outputs[..., None, None].expand(*outputs.shape, 4, 4)
        return outputs, y[:, None, None].expand(len(y), 4, 4)
    if kind == NEXT_TOKEN:
        return outputs[:, None].expand(-1, 4, -1), y[:, None].expand(-1, 4)
    return outputs, y if kind == CLASSES else right
