"""pFedFDA: the classifier follows from Gaussians of the features, mixed from the client's own and everyone's.

McLaughlin, Su: Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS 2024, Section 4 and
Algorithm 1.

Statistics are computed with the trained base; the authors' code uses the features of the training steps. As in the
authors' code, the identity is added to a client's covariance (the code also adds 1e-4 to each entry), the first means
are uniform numbers, and means and covariance each have a β. In the code every class of a client gets its own mean; here
a class with at most two samples keeps the received mean. The server sets negative eigenvalues to 0.
"""

from __future__ import annotations

from typing import Any, Sequence, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import ConfigError
from ..core.extra_arrays import BOTH, COVARIANCE, MEANS, RECEIVED, Extra
from ..core.payload import Payload
from ..core.server_view import Client
from ..models.parts import cut
from ..rules.mean import Mean
from ..rules.running_mean import RunningMean
from ..training.loop import predict
from ..training.phase import Phase
from .base import Aggregation, LocalRound, Method, excluding
from .bases.prototypes import class_by_width, require_settable_head

EPSILON = 1e-4  # ε: of a classifier's covariance and of priors
FEW = 2  # A class with at most so many samples gets the received mean.


class MeanOfGaussians(Mean):
    """The mean, and that of the clients' means and covariances."""

    name = "mean-of-gaussians"
    no_server_step = ""
    no_robust_mean = ""
    remembers = ("means", "covariance")
    means = covariance = np.zeros((0, 0), np.float32)  # before round 1

    def begin(self) -> None:
        """Start the sums at zero."""
        super().begin()
        self._statistics: RunningMean | None = None

    def attachments(self, client: Client, kind: str) -> Payload:
        """Send the statistics, once there are any."""
        statistics = {"means": self.means, "covariance": self.covariance}
        return Payload(arrays=statistics if self.means.size else {})

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the client's arrays and its statistics."""
        super().add(client, shared, reply)
        self._shape = reply.arrays["means"].shape
        vector = np.concatenate([reply.arrays[name].reshape(-1) for name in ("means", "covariance")])
        self._statistics = self._statistics or self.averaging(len(vector))
        self._statistics.add(vector, self.weight(client, reply))

    def finish(self) -> None:
        """Divide by the sums of the weights."""
        super().finish()
        assert self._statistics is not None  # at least one client has answered
        classes, width = self._shape
        means, covariance = np.split(self._statistics.value(), [classes * width])
        square = covariance.reshape(width, width).astype(np.float64)
        values, vectors = np.linalg.eigh((square + square.T) / 2)
        self.means = means.reshape(classes, width)
        self.covariance = ((vectors * np.maximum(values, 0)) @ vectors.T).astype(np.float32)


def _square(model: nn.Module) -> tuple[int, ...]:
    return class_by_width(model)[1:] * 2


class PFedFDA(Method):
    """Share the base and Gaussians of the features, of which each client makes its head.

    head of (µ, Σ):  h(z)_c = µ_cᵀΣ⁻¹z − ½·µ_cᵀΣ⁻¹µ_c + log(n_ic/n_i)
    client i:
        train θ_i, from θ, under the head of (µ, Σ)
        (µ_i, Σ_i) ← β·(own means and covariance) + (1 − β)·(µ, Σ), β: best on held-out samples
        send θ_i, µ_i, Σ_i
    server: θ, µ, Σ ← mean of what arrived
    predict: the head of (µ_i, Σ_i) on z
    """

    name = "pfedfda"
    paper = "McLaughlin and Su, Personalized Federated Learning via Feature Distribution Adaptation, NeurIPS 2024"
    shares = "the base, and means and covariance of the features"
    refuses = {
        "personal-head": "makes its heads of statistics, which are shared",
        "loss": "has a Gaussian for each class",
    }
    aggregation = Aggregation(MeanOfGaussians)
    extras = (
        Extra("means", BOTH, "mean features of each class", class_by_width, private_from=RECEIVED, kind=MEANS),
        Extra("covariance", BOTH, "of the features", _square, private_from=RECEIVED, kind=COVARIANCE),
    )

    def build(self, model: nn.Module) -> nn.Module:
        """Refuse a head that is no linear layer with a bias."""
        require_settable_head(model)
        if cast(nn.Linear, cut(model).head).bias is None:
            raise ConfigError("method", self.name, "needs a bias in the model's last layer")
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the base."""
        return not cut(model).in_head(name)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs of the base under the classifier of all clients' statistics."""
        in_head = cut(local.model).in_head
        set_head(local, *common(local))
        return [Phase(train=excluding(in_head), epochs=self.training.local_epochs)]

    def conclude(self, local: LocalRound) -> Payload:
        """Send the mixture, by the trained base."""
        mixture = zip(("means", "covariance"), self._mix(local))
        return Payload(arrays={name: array.float().cpu().numpy() for name, array in mixture})

    def adaptation(self, local: LocalRound) -> list[Phase]:
        """Predict with the classifier of the mixture by the base as it is; nothing trains."""
        self._mix(local)
        return []

    @torch.no_grad()
    def _mix(self, local: LocalRound) -> tuple[Tensor, Tensor]:
        """Make the client's classifier; return means and covariance of its mixture."""
        x, y = local.samples
        z, statistics = predict(cut(local.model.eval()).base, x).double(), common(local)
        beta = best_shares(z, y, *statistics, priors(local), local.generator("folds"))
        mixture = mix(beta, gaussian(z, y, statistics[0]), statistics)
        set_head(local, *mixture)
        return mixture


def common(local: LocalRound) -> tuple[Tensor, Tensor]:
    """Return all clients' means (classes, width) and covariance (width, width), or what they are at first."""
    head: Any = cut(local.model).head
    if not local.has_received("means"):
        drawn = np.random.default_rng([local.seed, 1]).random(head.weight.shape)  # the same for all clients
        weight = torch.from_numpy(drawn).to(head.weight.device)
        return weight, torch.eye(weight.shape[1]).to(weight)
    means, covariance = (torch.tensor(local.received(name)).to(head.weight) for name in ("means", "covariance"))
    return means.double(), covariance.double()


def priors(local: LocalRound) -> Tensor:
    """Return the client's share of each class, none 0."""
    shares = torch.from_numpy(local.class_shares) + EPSILON
    return (shares / shares.sum()).to(next(local.model.parameters()).device)


@torch.no_grad()
def set_head(local: LocalRound, means: Tensor, covariance: Tensor) -> None:
    """Make the head the classifier of these statistics."""
    head: Any = cut(local.model).head
    weight, bias = classifier(means, covariance, priors(local))
    head.weight.copy_(weight)
    head.bias.copy_(bias)


def gaussian(z: Tensor, y: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return means, of small classes the given ones, and covariance plus the identity, as in the authors' code."""
    of_class = F.one_hot(y, len(means)).to(z)
    counts = of_class.sum(0)[:, None]
    means = torch.where(counts > FEW, of_class.t() @ z / counts.clamp(min=1), means)
    apart = z - means[y]
    return means, apart.t() @ apart / max(1, len(z) - 1) + torch.eye(z.shape[1]).to(z)


def mix(beta: Tensor, personal: Sequence[Tensor], others: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return means and covariance with the shares ``beta``, (2,), of a client's own."""
    means, covariance = (share * mine + (1 - share) * all_ for share, mine, all_ in zip(beta, personal, others))
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
    halves = [
        (gaussian(z[fold != held_out], y[fold != held_out], means), z[fold == held_out], y[fold == held_out])
        for held_out in (0, 1)
    ]
    logits = torch.zeros(2).to(z).requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=10, tolerance_grad=1e-3, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros(()).to(z)
        for personal, inputs, labels in halves:
            weight, bias = classifier(*mix(logits.sigmoid(), personal, (means, covariance)), priors)
            total = total + F.cross_entropy(inputs @ weight.t() + bias, labels)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call, arg-type]
    return logits.detach().sigmoid()
