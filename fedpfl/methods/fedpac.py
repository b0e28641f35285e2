"""FedPAC: features are aligned with common class centroids, and each client gets the best combination of heads.

Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR 2023,
Sections 3 and 4 and Algorithm 1.

In the authors' program the head's learning rate is 0.1 and the base's 0.01; it leaves out weights below 0.001 and, if P
is not positive, eigenvalues below 0.01. Clients also send their numbers of samples by class.
"""

from __future__ import annotations

from typing import Callable, Sequence

import numpy as np
from torch import Tensor, nn

from ..core.extra_arrays import POSITIVE, SERVER, Extra
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..models.parts import cut
from ..rules.per_client import inner_products
from ..rules.running_mean import RunningMean
from ..training.phase import Batch, Phase
from .base import Aggregation, LocalRound, excluding
from .bases.prototypes import PrototypeMethod, PrototypeRule, apart, by_class, class_by_width

ALIGNMENT = 1.0  # weight λ of the distance to the centroids

# So many times the median a V_j tells nothing more; features spread at least so much of what they usually do.
UNLIKELY, LEAST_SPREAD = 1e4, 0.1


class HeadCombination(PrototypeRule):
    """The mean of bases, weighted by samples, and for each client that answered a combination of all their heads.

    Client i gets Σ_j α_ij·head_j, where α_i minimises an estimate of the combined head's error on i's data: of variance
    Σ_j α_ij²·V_j and bias ‖h_i − Σ_j α_ij·h_j‖². All others keep the head that they have.
    """

    name = "head-combination"
    one_model = False
    no_robust_mean = ""
    remembers = ("heads",)

    def __init__(self, federation: Federation, shared: np.ndarray, in_head: Callable[[str], bool]) -> None:
        super().__init__(federation, shared)
        self._head = self.layout.mask(in_head)
        self.heads = np.tile(shared[self._head], (len(self.clients), 1))

    def begin(self) -> None:
        """Start the sums at zero."""
        super().begin()
        self._mean = self.averaging(int((~self._head).sum()), self.shared[~self._head])
        self._mean_head = RunningMean(int(self._head.sum()))
        self._replies: dict[int, tuple[np.ndarray, np.ndarray, float, int]] = {}

    def outgoing(self, client: Client) -> np.ndarray:
        """Return the common base and the client's head."""
        vector = self.shared.copy()
        vector[self._head] = self.heads[client.id]
        return vector

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the base; keep the head, h_i and V_i."""
        super().add(client, shared, reply)
        weight = client.train_samples * self.damping(client)
        self._mean.add(shared[~self._head], weight)
        self._mean_head.add(shared[self._head], weight)
        moments, (variance,) = reply.arrays["moments"].reshape(-1), reply.arrays["variance"]
        self._replies[client.id] = shared[self._head], moments, float(variance), client.train_samples

    def finish(self) -> None:
        """Divide, and combine."""
        super().finish()
        self.shared = np.empty_like(self.shared)
        self.shared[~self._head], self.shared[self._head] = self._mean.value(), self._mean_head.value()
        ids, (heads, moments, variances, samples) = list(self._replies), map(np.stack, zip(*self._replies.values()))
        self.heads = self.heads.copy()
        self.heads[ids] = heads
        products = inner_products(moments, centred=True)
        gaps = (products - row[:, None] - row[None, :] + row[i] for i, row in enumerate(products))  # of h_j − h_i
        # One that is far too large gets no weight, and takes no digits of others. Noise, a single sample or a lie may
        # have made one 0, as if no head were better known: V_j·n_j, the spread of features, has a least value.
        least = LEAST_SPREAD * np.median(np.abs(variances) * samples) / np.maximum(samples, 1)
        variances = np.clip(variances, least, UNLIKELY * np.median(np.abs(variances)))
        weights = np.stack([least_on_simplex(np.diag(variances) + gap) for gap in gaps])
        self.heads[ids] = weights @ heads.astype(np.float64)
        self.note("own-head", np.diag(weights).mean())


class FedPAC(PrototypeMethod):
    """Align features with all clients' class means µ_c; combine heads of similar clients.

    client i:
        h_i ← (n_ic/n_i·µ_ic)_c, µ_ic: mean of z of class c;  V_i ← (mean ‖z‖² − ‖h_i‖²)/n_i
        train φ_i on f_i, one epoch;  train θ_i, from θ, on f_i + λ·mean (z − µ_y)²
        send θ_i, φ_i, h_i, V_i and the new µ_ic
    server: θ ← mean(θ_i);  µ_c ← mean of µ_ic by n_ic
        φ_i ← Σ_j a_j·φ_j, a ≥ 0, Σ a_j = 1, minimising Σ a_j²·V_j + ‖h_i − Σ a_j·h_j‖²
    predict: (θ, φ_i)
    """

    name = "fedpac"
    paper = "Xu et al., Personalized Federated Learning with Feature Alignment and Classifier Collaboration, ICLR 2023"
    shares = "everything, and mean features of each class; each client gets its own combination of heads"
    refuses = {
        "personal-head": "combines its clients' heads, and shares class prototypes",
        "loss": "has a mean of features for each class",
    }

    @property
    def extras(self) -> Sequence[Extra]:
        """Add what heads are combined by."""
        moments = Extra("moments", SERVER, "h_i: mean features of each class times its share", class_by_width)
        return (*super().extras, moments, Extra("variance", SERVER, "V_i", (1,), kind=POSITIVE))

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train head, then base; a frozen base keeps its running statistics as well."""
        features, of_class = by_class(local)
        moments, n = of_class.T @ features / len(features), len(features)
        variance = (features.square().sum() / n - moments.square().sum()) / n
        local.notes.update(moments=moments, variance=variance.reshape(1))
        prototypes, has_prototype = self.prototypes(local)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            base, head, _ = cut(model)
            z = base(batch.x)
            pull: Tensor = ALIGNMENT * apart(z, batch.y, prototypes, has_prototype)
            return self.training.criterion(head(z), batch.y) + pull

        in_head = cut(local.model).in_head
        return [
            Phase(train=in_head, epochs=1, move_statistics=False),
            Phase(train=excluding(in_head), epochs=self.training.local_epochs, loss=loss),
        ]

    def conclude(self, local: LocalRound) -> Payload:
        """Send the centroids by the trained base, h_i and V_i."""
        reply = super().conclude(local)
        reply.arrays.update({name: local.notes[name].float().cpu().numpy() for name in ("moments", "variance")})
        return reply

    @property
    def aggregation(self) -> Aggregation:
        """A mean of bases and combinations of heads."""
        return Aggregation(HeadCombination, {"in_head": lambda name: name.startswith("head.")})


def least_on_simplex(p: np.ndarray) -> np.ndarray:
    """Return argmin αᵀPα over α ≥ 0 with Σ_j α_j = 1, shape (n,), for a symmetric, positive semidefinite P.

    A multiple of α minimises βᵀPβ/2 − Σ_j β_j over β ≥ 0, which is non-negative least squares with P's Cholesky factor.
    """
    # Imported here: clients import this file, by way of their methods, and need no SciPy.
    from scipy.optimize import nnls

    size = np.trace(p) / len(p)
    # P may be singular: a trace of one makes it definite.
    lower = np.linalg.cholesky((p / size if size > 0 else p) + 1e-12 * np.eye(len(p)))
    beta: np.ndarray = nnls(lower.T, np.linalg.solve(lower, np.ones(len(p))))[0]
    beta /= beta.sum()
    return beta
