"""Floco: the head is a point in a simplex of heads; clients with similar updates get neighbouring regions of it.

Grinwald, Wiesner, Nakajima: Federated Learning over Connected Modes, NeurIPS 2024, Section 3 and Algorithm 1.

After round τ the server places the clients by their last updates of the simplex. In the authors' program all clients
train once more for this, and the result is discarded. A client that has not trained by then has the whole simplex. As
in the program, only the weights of the head have endpoints, drawn one after the other; a point of a region is at most ρ
from its centre in the L1 norm, with uniform distance. Floco+, which adds Ditto's second model, is left out.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.extra_arrays import CLIENT, Extra
from ..core.layout import rounded
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..rules.mean import Mean
from ..training.inner_gradients import forward_with
from ..training.loop import gradients
from ..training.phase import Batch, Forward, Phase
from .base import Aggregation, LocalRound, Method, everything
from .bases.prototypes import require_settable_head
from .settings import FlocoSettings

POSITION, ENDPOINTS = "head.position", "head.endpoints"
SCALES = np.linspace(1e-4, 1, 1000)  # sizes of the simplex on which clients are tried to be placed
NEAREST = 1e-4  # a smaller distance of two clients counts as this one


class SimplexHead(nn.Module):
    """A linear layer whose weight is Σ_m α_m·W_m, with the client's position α."""

    def __init__(self, plain: nn.Linear, count: int) -> None:
        super().__init__()
        drawn = [nn.init.xavier_normal_(torch.empty_like(plain.weight)).detach() for _ in range(count)]
        self.endpoints = nn.Parameter(torch.stack(drawn))
        self.bias = plain.bias
        self.register_buffer("position", torch.full((count,), 1 / count))

    def weight(self) -> Tensor:
        """Return the weight at the position."""
        position: Any = self.position
        return torch.tensordot(position, self.endpoints, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits of features (n, width)."""
        return F.linear(features, self.weight(), self.bias)


class Regions(Mean):
    """The mean, and after one round a position in the simplex for each client, by its last update of the endpoints."""

    name = "regions"
    no_server_step = ""
    no_robust_mean = ""
    remembers = ("updates", "positions")

    def __init__(self, federation: Federation, shared: np.ndarray, count: int, after: int) -> None:
        super().__init__(federation, shared)
        self.after = after
        self.updates = np.zeros((len(self.clients), shared[self._place].size), np.float32)
        self.positions = np.zeros((len(self.clients), count), np.float32)  # 0: anywhere in the simplex

    @property
    def _place(self) -> slice:
        return self.layout.slices()[ENDPOINTS]

    def attachments(self, client: Client, kind: str) -> Payload:
        """Send the client's position, if it has one."""
        position = self.positions[client.id]
        return Payload(arrays={"position": position} if position.any() else {})

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the client's model, and keep its update until the clients are placed."""
        super().add(client, shared, reply)
        if self.round <= self.after:
            self.updates[client.id] = (shared - rounded(self.shared, self.federation.wire_dtype))[self._place]

    def finish(self) -> None:
        """Divide; in round τ place the clients that have trained."""
        super().finish()
        if self.round == self.after:
            placed, self.positions = self.answered_before(), self.positions.copy()
            self.positions[placed] = placed_by(self.updates[placed].astype(np.float64), self.positions.shape[1])
            self.updates = np.zeros_like(self.updates)
            self.keep("positions", self.positions)


class Floco(Method):
    """Share a base θ and M endpoints W_m of a head, and give each client a region of their simplex.

    each head is Σ_m α_m·W_m with α in the simplex
    client i, for each batch:
        α ← uniform in the simplex; after round τ in the region of radius ρ around α_i
        train θ_i, all W_m on f_i at α
        send them
    server: θ, W_m ← mean of what arrived
        in round τ: α_i ← main components of client i's update of the W_m, projected on the simplex
    predict: the head at α_i;  global model: at the centre
    """

    name = "floco"
    paper = "Grinwald et al., Federated Learning over Connected Modes, NeurIPS 2024"
    shares = "everything, with several heads; each client has its position among them"
    refuses = {"personal-head": "places clients by updates of their heads"}
    Settings = FlocoSettings

    @property
    def extras(self) -> Sequence[Extra]:
        """The client's position."""
        return (Extra("position", CLIENT, "weight of each endpoint in the client's head", (self.settings.endpoints,)),)

    def build(self, model: nn.Module) -> nn.Module:
        """Put the simplex in the place of the head."""
        require_settable_head(model)
        plain: Any = model
        plain.head = SimplexHead(plain.head, self.settings.endpoints)
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share everything but the position."""
        return name != POSITION

    @torch.no_grad()
    def prepare(self, local: LocalRound) -> None:
        """Take the position, at first the centre."""
        model: Any = local.model
        if local.has_received("position"):
            model.head.position.copy_(torch.tensor(local.received("position")))
        else:
            model.head.position.fill_(1 / self.settings.endpoints)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train everything for E epochs, each batch at a position drawn for it."""
        rng, count, placed = local.generator("position"), self.settings.endpoints, local.has_received("position")

        def drawn() -> Any:
            if not placed:
                return rng.dirichlet(np.ones(count))
            way = rng.uniform(-1, 1, count)
            return local.received("position") + rng.uniform(0, self.settings.radius) * way / np.abs(way).sum()

        def gradient(
            model: nn.Module, batch: Batch, names: Sequence[str], params: Sequence[Tensor]
        ) -> tuple[Tensor, list[Tensor]]:
            position = torch.tensor(drawn(), dtype=params[0].dtype, device=params[0].device)
            loss = self.training.criterion(forward_with(model, {POSITION: position}, batch.x), batch.y)
            return loss, gradients(self.training.loss_weight(len(batch.y)) * loss, model, params)

        return [Phase(train=everything, epochs=self.training.local_epochs, gradient=gradient)]

    @property
    def aggregation(self) -> Aggregation:
        """The mean, and the clients' positions."""
        return Aggregation(Regions, {"count": self.settings.endpoints, "after": self.settings.round})

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return the model at the centre of the simplex."""
        centre: Any = torch.full_like(model.get_buffer(POSITION), 1 / self.settings.endpoints)
        return lambda x: forward_with(model, {POSITION: centre}, x)

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the model with the head at the client's position."""
        plain: Any = model
        arrays = {name: array for name, array in model.state_dict().items() if name not in (POSITION, ENDPOINTS)}
        return {**arrays, "head.weight": plain.head.weight().detach()}

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Say that no client gets a region if the run is too short."""
        if rounds > self.settings.round:
            return []
        return [
            f"no client trains in a region of its own: floco-round = {self.settings.round}, and the run has {rounds}"
        ]


def placed_by(updates: np.ndarray, count: int) -> np.ndarray:
    """Return positions in the simplex of ``count`` endpoints by the main components of updates (clients, size).

    Of simplices of many sizes, on which the components are projected, that counts on which the clients lie farthest
    apart, by the sum of 1/distance².
    """
    centred = updates - updates.mean(axis=0)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    u = u[:, :count] * np.sign(u[np.abs(u).argmax(axis=0), np.arange(u.shape[1])])[:count]  # one of two signs
    components = np.zeros((len(updates), count))
    components[:, : u.shape[1]] = u * s[:count]
    tried = [on_simplex(components, size) / size for size in SCALES]
    return min(tried, key=energy)


def on_simplex(points: np.ndarray, size: float) -> np.ndarray:
    """Return the nearest points, row by row, whose values are at least 0 and add up to ``size``."""
    ordered = np.sort(points, axis=1)[:, ::-1]
    over = (ordered.cumsum(axis=1) - size) / np.arange(1, points.shape[1] + 1)
    last = (ordered > over).sum(axis=1, keepdims=True) - 1
    return np.maximum(points - np.take_along_axis(over, last, 1), 0)


def energy(positions: np.ndarray) -> float:
    """Return Σ 1/distance² over all pairs of rows."""
    products = positions @ positions.T
    lengths = np.diag(products)
    squares = lengths[:, None] + lengths - 2 * products
    pairs = np.triu_indices(len(positions), 1)
    return float((1 / np.maximum(squares[pairs], NEAREST**2)).sum())
