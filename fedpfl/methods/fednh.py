"""FedNH: the head is a prototype of unit length for each class, which no gradient moves.

Dai, Chen, Li, Heinecke, Sun, Xu: Tackling Data Heterogeneity in Federated Learning with Class Prototypes, AAAI 2023,
Section 3 and Algorithm 1.

The factor s is trained and averaged; it starts at 20, as for ResNets in the authors' program (1 for its small CNN). As
in this program the prototypes start orthogonal if there are no more classes than features. If no client of a round has
a class, its prototype does not change. Clients predict with the model that they trained last, like the paper's
personalised models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import NoPlainModel
from ..core.extra_arrays import COUNTS, SERVER, Extra
from ..core.payload import Payload
from ..core.server_view import Client
from ..layers.memory import in_twin
from ..models.parts import cut
from ..rules.mean import Mean
from ..training.loop import predict
from ..training.phase import Phase
from .base import Aggregation, LocalRound, excluding
from .bases.kept_models import KeepsTrained
from .bases.prototypes import require_settable_head
from .settings import FedNHSettings

SCALE = 20.0  # s at the start
PROTOTYPES = "head.weight"


class PrototypeHead(nn.Module):
    """Logits s·⟨z/‖z‖, c⟩ for each class's prototype c, a row of ``weight``."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        rows = nn.init.orthogonal_(torch.empty_like(plain.weight))
        self.weight = nn.Parameter(F.normalize(rows.detach()))
        self.scale = nn.Parameter(torch.full((1,), SCALE))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits of features (n, width)."""
        return self.scale * F.linear(F.normalize(features), self.weight)


class SmoothedPrototypes(Mean):
    """The mean, and prototypes that move towards the mean over the clients of a round: c ← ρ·c + (1 − ρ)·mean."""

    name = "smoothed-prototypes"
    no_server_step = "moves class prototypes by itself"
    no_robust_mean = "averages class by class"

    def __init__(self, federation: Any, shared: np.ndarray, smoothing: float) -> None:
        super().__init__(federation, shared, weights="uniform")
        self.smoothing = smoothing

    def begin(self) -> None:
        """Start the sums at zero."""
        super().begin()
        self._sums = np.zeros((1, 1))

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the client's model, and its prototypes by its samples of each class."""
        super().add(client, shared, reply)
        counts = np.maximum(reply.arrays["counts"].astype(np.float64), 0) * self.damping(client)
        self._sums = self._sums + counts[:, None] * reply.arrays["prototypes"]

    def finish(self) -> None:
        """Divide, and move the prototypes."""
        place = self.layout.slices()[PROTOTYPES]
        before = self.shared[place].reshape(self._sums.shape).astype(np.float64)
        super().finish()
        moved = unit(self.smoothing * before + (1 - self.smoothing) * unit(self._sums))
        self.shared[place] = moved.ravel()


def unit(rows: np.ndarray) -> np.ndarray:
    """Return rows of length 1; those that are 0 stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def _shape(model: Any) -> tuple[int, ...]:
    return tuple(model.head.weight.shape)


class FedNH(KeepsTrained):
    """Share a base whose features are compared with prototypes µ_c of the classes.

    logits: s·⟨z/‖z‖, µ_c⟩
    client i:
        train θ_i, s_i, from θ, s, on f_i under the µ_c
        send θ_i, s_i and µ_ic, the mean of z/‖z‖ of each class c, of length 1
    server: θ, s ← plain mean(θ_i, s_i)
        µ_c ← ρ·µ_c + (1 − ρ)·Σ n_ic·µ_ic of length 1;  µ_c ← µ_c of length 1
    predict: (θ_i, s_i) as last trained, under the µ_c of that time;  global model: (θ, s), µ_c
    """

    name = "fednh"
    paper = "Dai et al., Tackling Data Heterogeneity in Federated Learning with Class Prototypes, AAAI 2023"
    shares = "everything; class prototypes in place of a trained head"
    refuses = {
        "personal-head": "makes the head of class prototypes, for which a class means the same to all",
        "loss": "has a prototype for each class",
    }
    extras = (
        Extra("prototypes", SERVER, "mean features of each class, of length 1", _shape, bounds=(-1, 1)),
        Extra("counts", SERVER, "training samples of each class", lambda model: _shape(model)[:1], kind=COUNTS),
    )
    Settings = FedNHSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Put prototypes in the place of the head, and add the twin."""
        require_settable_head(model)
        plain: Any = model
        plain.head = PrototypeHead(plain.head)
        return super().build(model)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train the base and s for E epochs."""
        fixed = excluding(lambda name: in_twin(name) or name == PROTOTYPES)
        return [Phase(train=fixed, epochs=self.training.local_epochs)]

    @torch.no_grad()
    def conclude(self, local: LocalRound) -> Payload:
        """Keep the trained model, and send its prototypes of the client's classes; 0 for others."""
        x, y = local.samples
        features = F.normalize(predict(cut(local.model.eval()).base, x)).double()
        sums = F.one_hot(y, len(local.class_counts)).to(features).T @ features
        arrays = {"prototypes": unit(sums.cpu().numpy()), "counts": local.class_counts}
        super().conclude(local)
        return Payload(arrays={name: array.astype(np.float32) for name, array in arrays.items()})

    @property
    def aggregation(self) -> Aggregation:
        """The mean, and the prototypes."""
        return Aggregation(SmoothedPrototypes, {"smoothing": self.settings.smoothing})

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Refuse: no plain model takes features of unit length."""
        raise NoPlainModel("fednh compares features of unit length with prototypes, which no plain head does")
