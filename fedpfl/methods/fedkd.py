"""FedKD: a small common model and the client's own teach each other; updates of the small one travel as factors.

Wu, Wu, Lyu, Huang, Xie: Communication-Efficient Federated Learning via Knowledge Distillation, Nature Communications
2022, Methods, Equations 1 to 10.

Hidden states are the features before the head; attention is not compared. As in the paper's section Methods, the loss
of one model gives the other no gradient, and the errors that weight the distillation get none; in the authors' program
every term trains both models. Factors keep the same share of the energy in all rounds; in the paper it grows from 0.95
to 0.98, so a run would depend on the number of rounds to come. Each array becomes a matrix with as many rows as its
first dimension has entries; an array that factors would not shorten travels as it is. The server sends its whole model,
so that clients may miss rounds; in the paper it sends factors, and all clients see each update.
"""

from __future__ import annotations

from typing import Any, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import LayoutError
from ..core.extra_arrays import ANY, CHANGE, SERVER, Extra
from ..core.layout import Layout
from ..core.payload import Payload
from ..core.process import computing
from ..core.server_view import Client
from ..models.parts import cut
from ..rules.mean import Mean
from ..training.phase import Batch, Phase
from .base import Aggregation, LocalRound, everything
from .bases.common_model import SharesCommonModel, apart, common
from .bases.prototypes import class_by_width
from .settings import FedKDSettings


class MeanOfFactored(Mean):
    """The mean of the models that the clients' factored updates make of the one that they were sent."""

    name = "mean-of-factored"
    takes_shared = False
    no_server_step = ""
    no_robust_mean = ""

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Expect factors of the model's arrays."""
        restored(self.layout, reply.arrays["factors"], reply.arrays["ranks"])

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the model that the client has trained, as its factors tell it."""
        update = restored(self.layout, reply.arrays["factors"], reply.arrays["ranks"])
        super().add(client, shared + update, reply)


class FedKD(SharesCommonModel):
    """Share a model w that learns with the client's own, v_i, and send its update in factors.

    client i, from w:
        a ← f_i(v_i) + f_i(w_i), fixed
        train v_i on f_i(v_i) + (KL(q ‖ q_v) + ‖z_v − P_i·z‖²)/a, q fixed
        train w_i, P_i in the same steps on f_i(w_i) + (KL(q_v ‖ q) + ‖z_v − P_i·z‖²)/a, q_v fixed
        send of each array of w_i − w the first factors of its SVD, with the share T of Σσ²
    server: w ← mean of w + the products
    predict: v_i;  global model: w

    q and q_v are the probabilities of the classes by w_i and v_i, z and z_v the features, ‖·‖² is the mean square. P_i,
    a linear layer, stays with the client. T = ``fedkd-energy``.
    """

    name = "fedkd"
    paper = (
        "Wu et al., Communication-Efficient Federated Learning via Knowledge Distillation, Nature Communications 2022"
    )
    shares = "updates of the common model, in factors; the client's own model stays"
    refuses = {"loss": "learns from probabilities of classes"}
    extras = (
        Extra("factors", SERVER, "two factors of the update of each array, or the update", (ANY,), kind=CHANGE),
        Extra("ranks", SERVER, "the rank of each array's factors", (ANY,), exact="int32", bounds=(0, 2**31 - 1)),
    )
    Settings = FedKDSettings
    aggregation = Aggregation(MeanOfFactored)

    def build(self, model: nn.Module) -> nn.Module:
        """Add the common model, and the projection of its features into the space of the client's own."""
        model = super().build(model)
        (_, narrow), (_, width) = class_by_width(common(model)), class_by_width(model)
        model.add_module("projection", nn.Linear(narrow, width, bias=False))
        return model

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train both models and the projection for E epochs."""

        def loss(model: Any, batch: Batch) -> Tensor:
            features, shared_features = (cut(one).base(batch.x) for one in (model, common(model)))
            personal, shared = cut(model).head(features), cut(common(model)).head(shared_features)
            errors: Tensor = self.training.criterion(personal, batch.y) + self.training.criterion(shared, batch.y)
            distance = F.mse_loss(model.projection(shared_features.flatten(1)), features.flatten(1))
            lesson = apart(shared.detach(), personal) + apart(personal.detach(), shared) + distance
            return errors + lesson / errors.detach()

        return [Phase(train=everything, epochs=self.training.local_epochs, loss=loss, gradients=2)]

    def conclude(self, local: LocalRound) -> Payload:
        """Send the update of the common model in factors."""
        update = local.as_vector(local.model.state_dict()) - local.as_vector(local.start)
        if not np.isfinite(update).all():
            return Payload()  # the engine refuses what has diverged
        factors, ranks = factored(local.layout, update, self.settings.energy)
        return Payload(arrays={"factors": factors, "ranks": ranks})


def _matrices(layout: Layout, vector: np.ndarray) -> Iterator[np.ndarray]:
    """Yield each array of a vector as a view of two dimensions, the first of which is the array's."""
    for (_, shape), place in zip(layout.entries, layout.slices().values()):
        array = vector[place]
        yield array.reshape(shape[0] if len(shape) > 1 else 1, -1)


def factored(layout: Layout, update: np.ndarray, energy: float) -> tuple[np.ndarray, np.ndarray]:
    """Return for each array of an update two factors, end to end, whose product has ``energy`` of its Σσ²; their ranks.

    An array for which factors would be no shorter is there itself, under its full rank.
    """
    parts, ranks = [], []
    for matrix in _matrices(layout, update):
        rows, columns = matrix.shape
        with computing(1):  # the same bits on any number of cores
            u, s, v = torch.linalg.svd(torch.from_numpy(matrix).double(), full_matrices=False)
        kept = s.square().cumsum(0)
        rank = int((kept < energy * kept[-1]).sum()) + 1 if kept[-1] > 0 else 0
        if rank * (rows + columns) < rows * columns:
            root = s[:rank].sqrt()
            parts += [(u[:, :rank] * root).numpy(), (root[:, None] * v[:rank]).numpy()]
        else:
            rank = min(rows, columns)
            parts.append(matrix)
        ranks.append(rank)
    return np.concatenate([part.reshape(-1) for part in parts]).astype(np.float32), np.array(ranks, np.int32)


def restored(layout: Layout, factors: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return the update whose factors arrived; ``LayoutError`` if they are not those of the layout's arrays."""
    update = np.zeros(layout.size, np.float32)
    matrices = list(_matrices(layout, update))
    full = [min(matrix.shape) for matrix in matrices]
    if len(ranks) != len(full) or (ranks < 0).any() or (ranks > full).any():
        raise LayoutError(f"the ranks {ranks.tolist()} arrived for arrays whose full ranks are {full}")
    sizes = [m.size if rank == most else rank * sum(m.shape) for m, rank, most in zip(matrices, ranks.tolist(), full)]
    if len(factors) != sum(sizes):
        raise LayoutError(f"{len(factors)} values arrived for factors of {sum(sizes)}")
    for matrix, rank, most, values in zip(matrices, ranks, full, np.split(factors, np.cumsum(sizes)[:-1])):
        if rank == most:
            matrix[:] = values.reshape(matrix.shape)
        elif rank:
            left, right = np.split(values.astype(np.float64), [rank * len(matrix)])
            matrix[:] = left.reshape(len(matrix), rank) @ right.reshape(rank, -1)
    return update
