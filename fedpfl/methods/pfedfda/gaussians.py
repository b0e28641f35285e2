"""Gaussians of features with one covariance, the classifier that follows from them, and how to mix two of them."""

from __future__ import annotations

from typing import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

EPSILON = 1e-4  # ε: of a classifier's covariance and of priors
FEW = 2  # With at most as many samples a class has no mean of its own.


def gaussian(z: Tensor, y: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and covariance of features; classes with few samples have the given mean.

    As in the authors' code the identity is added to the covariance.
    """
    of_class = F.one_hot(y, len(means)).to(z)
    counts = of_class.sum(0)[:, None]
    means = torch.where(counts > FEW, of_class.t() @ z / counts.clamp(min=1), means)
    apart = z - means[y]
    return means, apart.t() @ apart / max(1, len(z) - 1) + torch.eye(z.shape[1]).to(z)


def mix(beta: Tensor, own: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return means and covariance with the shares ``beta``, (2,), of a client's own."""
    means, covariance = (share * mine + (1 - share) * all_ for share, mine, all_ in zip(beta, own, others))
    return means, covariance


def classifier(means: Tensor, covariance: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    """Return weight (classes, width) and bias (classes,)."""
    width = len(covariance)
    even = covariance.diagonal().mean() * torch.eye(width).to(covariance)
    weight = torch.linalg.solve((1 - EPSILON) * covariance + EPSILON * even, means.t()).t()
    return weight, priors.log() - (means * weight).sum(1) / 2


def best_shares(
    z: Tensor, y: Tensor, means: Tensor, covariance: Tensor, priors: Tensor, rng: np.random.Generator
) -> Tensor:
    """Return the shares, (2,), with the least cross-entropy in two folds that are stratified by class.

    Classes with one sample are in neither fold; if there are no others, the shares are 0. L-BFGS on the shares'
    logits starts from halves; the authors clip shares, and a first step beyond 0 or 1 has no way back.
    """
    order = torch.from_numpy(rng.permutation(len(y))).to(y.device)
    of_class = F.one_hot(y[order], len(means))
    many = of_class.sum(0)[y[order]] > 1
    fold = ((of_class.cumsum(0) * of_class).sum(1) % 2)[many]
    if not len(fold):
        return torch.zeros(2).to(z)
    z, y = z[order][many], y[order][many]
    halves = [(gaussian(z[fold != at], y[fold != at], means), z[fold == at], y[fold == at]) for at in (0, 1)]
    logits = torch.zeros(2).to(z).requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=10, tolerance_grad=1e-3, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(()).to(z)
        for own, inputs, labels in halves:
            weight, bias = classifier(*mix(logits.sigmoid(), own, (means, covariance)), priors)
            total = total + F.cross_entropy(inputs @ weight.t() + bias, labels)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call, arg-type]
    return logits.detach().sigmoid()
