"""APPLE: a client's model is a sum of all clients' core models, with weights that the client learns.

Luo, Wu: Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning, IJCAI 2022, Section 3 and
Algorithm 1.

All cores start as the run's initial model. The server keeps the weights p_ij between rounds; in the paper the clients
do. Each client receives all cores; with little bandwidth the paper sends only some. The weights are trained by plain
SGD; in the authors' program they have momentum, and their pull is twice as strong. A client that has not trained yet is
tested with its core, and a new client with the mean of all cores, weighted by samples.
"""

from __future__ import annotations

from typing import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ..core.errors import LayoutError
from ..core.extra_arrays import ANY, BOTH, CLIENT, SHARED, Extra
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..layers.memory import in_twin, twin
from ..rules.per_client import PerClientRule, mix
from ..training.inner_gradients import forward_with
from ..training.loop import gradients
from ..training.phase import Batch, Phase
from .base import Aggregation, LocalRound, excluding
from .bases.kept_models import KeepsTrained
from .settings import APPLESettings

LEAST = 1e-3  # to which the pull to the prior falls before it ends


class Cores(PerClientRule):
    """Each client's core model, and the weights of all cores in its own model: row i of p."""

    name = "cores"
    remembers = ("relations",)

    def __init__(self, federation: Federation, shared: np.ndarray) -> None:
        super().__init__(federation, shared)
        samples = np.zeros(len(self.clients))
        for client in self.participants:
            samples[client.id] = client.train_samples
        self.prior = (samples / samples.sum()).astype(np.float32)
        self.relations = np.tile(self.prior, (len(self.clients), 1))

    def _order(self, client: Client) -> list[int]:
        """Return the client, and then the other participants."""
        return [client.id, *(other.id for other in self.participants if other.id != client.id)]

    def begin(self) -> None:
        """Start without replies."""
        self._arrived: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def attachments(self, client: Client, kind: str) -> Payload:
        """Attach to a message to train the others' cores, the weights and where these are pulled."""
        if kind != "train":
            return Payload()
        order = self._order(client)
        relations = self.relations[client.id, order]
        return Payload(
            arrays={"cores": self.for_clients[order[1:]], "relations": relations, "prior": self.prior[order]}
        )

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Expect a weight of each core."""
        arrived, expected = len(reply.arrays["relations"]), len(self._order(client))
        if arrived != expected:
            raise LayoutError(f"{arrived} relations arrived for {expected} core models")

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep the client's core and weights."""
        self._arrived[client.id] = shared, reply.arrays["relations"]

    def finish(self) -> None:
        """Pass everything on as it is."""
        self.for_clients, self.relations = self.for_clients.copy(), self.relations.copy()
        for client, (core, relations) in self._arrived.items():
            self.for_clients[client] = core
            self.relations[client, self._order(self.clients[client])] = relations
        trained, new = self.trained_and_new
        if new:
            self.for_clients[new] = mix(self.prior[None, trained].astype(np.float64), self.for_clients[trained])
        self.note("own-relation", self.relations[trained, trained].mean())
        self.keep("relations", self.relations)


class APPLE(KeepsTrained):
    """Train a core w_i and the weights of all cores in the client's own model.

    client i, with the cores w_j of all others:
        v_i = Σ_j p_ij·w_j
        for each batch: w_i ← w_i − η·p_ii·∇f_i(v_i)
            p_ij ← p_ij − η₂·(⟨∇f_i(v_i), w_j⟩ + µ_r·(p_ij − n_j/n))
        send w_i, p_ij
    server: passes the w_j on
    predict: v_i as last trained

    n is the number of all clients' samples, and in round r, from 0, µ_r = µ·0.001^(r/L) up to round L, then 0.
    """

    name = "apple"
    paper = "Luo and Wu, Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning, IJCAI 2022"
    shares = "a core model; clients get all others' cores"
    extras = (
        Extra("cores", CLIENT, "core models of the other clients, a row each", (ANY, SHARED)),
        Extra("relations", BOTH, "weight of each core in the client's model, its own first", (ANY,)),
        Extra("prior", CLIENT, "share of each client in all samples, the client's own first", (ANY,)),
    )
    Settings = APPLESettings

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train the core and the weights for E epochs."""
        settings, device = self.settings, next(local.model.parameters()).device
        relations, prior = (torch.tensor(local.received(name), device=device) for name in ("relations", "prior"))
        others = {name: torch.stack(arrays) for name, arrays in _by_name(local).items()}
        local.notes["own model"] = relations, others
        left = 1 - (local.round - 1) / settings.pull_rounds if settings.pull_rounds else 0
        pull = settings.mu * LEAST ** (1 - left) if left > 0 else 0.0

        def gradient(
            model: nn.Module, batch: Batch, names: Sequence[str], params: Sequence[Tensor]
        ) -> tuple[Tensor, list[Tensor]]:
            relations.requires_grad_()
            mixed = mixture(relations, dict(zip(names, params)), others)
            loss = self.training.criterion(forward_with(model, mixed, batch.x), batch.y)
            weighted = self.training.loss_weight(len(batch.y)) * loss + pull / 2 * (relations - prior).square().sum()
            slope, *grads = gradients(weighted, model, [relations, *params])
            with torch.no_grad():
                relations.sub_(settings.relation_learning_rate * slope)
            return loss, grads

        return [Phase(train=excluding(in_twin), epochs=self.training.local_epochs, gradient=gradient)]

    @torch.no_grad()
    def conclude(self, local: LocalRound) -> Payload:
        """Keep the model made of all cores, and send the weights."""
        super().conclude(local)
        relations, others = local.notes["own model"]
        kept = dict(twin(local.model).named_parameters())
        for name, array in mixture(relations, kept, others).items():
            kept[name].copy_(array)
        return Payload(arrays={"relations": relations.detach().cpu().numpy()})

    @property
    def aggregation(self) -> Aggregation:
        """The server passes cores on."""
        return Aggregation(Cores)


def _by_name(local: LocalRound) -> dict[str, list[Tensor]]:
    """Return the others' cores by the names of their arrays; none of a client that is alone."""
    by_name: dict[str, list[Tensor]] = {}
    for core in local.received("cores"):
        for name, array in local.by_name(core).items():
            by_name.setdefault(name, []).append(array)
    return by_name


def mixture(relations: Tensor, core: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return Σ_j p_ij·w_j of the parameters; one of which there are no others is the client's own."""
    return {
        name: relations[0] * array + torch.tensordot(relations[1:], others[name], 1) if name in others else array
        for name, array in core.items()
    }
