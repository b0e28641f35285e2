"""FedFomo: a client tries other clients' models and moves towards those that do well on its data.

Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization, ICLR 2021,
Section 3.

As in the authors' code, candidates are compared with the model w_i with which the client began its last training, and
the model that it trained is a candidate, too. If no candidate is better, the client returns to w_i. The share of models
drawn at random falls from 0.3 to 0, as in the authors' code. The authors' server also offers models of whole groups,
and adds up negative ω.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ..core.errors import ConfigError, LayoutError
from ..core.extra_arrays import ANY, CLIENT, SERVER, SHARED, SHARES, Extra
from ..core.payload import Payload
from ..core.rng import generator
from ..core.samples import Samples
from ..core.server_view import Client, Federation
from ..core.sharing import is_parameter
from ..layers.memory import Memory, remembered
from ..rules.per_client import PerClientRule
from ..training.loop import evaluate
from ..training.phase import Phase
from .base import Aggregation, LocalRound, Method, everything
from .settings import FedFomoSettings


class Candidates(PerClientRule):
    """Send client i the models of the clients that helped it most so far, and a few at random.

    Zhang et al. 2021, Section 3.2: P_i adds up the weights ω_i that client i has measured and answers with. Each of the
    ``models`` places for other clients' models goes to a random client with probability ε, else to the one of largest
    P_i that is left, equal ones in random order. ε falls by a fixed amount with each round, down to 0, as in the
    authors' code. Only clients that have answered before have a model to send.
    """

    name = "candidates"
    remembers = ("preferences",)
    epsilon, epsilon_decay = 0.3, 0.05  # ε of round 1, and by how much it falls

    def __init__(self, federation: Federation, shared: np.ndarray, models: int) -> None:
        super().__init__(federation, shared)
        self.models = models
        self.preferences = np.zeros((len(self.clients), len(self.clients)))
        # Chosen once a round: a message that is sent again is the same, even if others have answered meanwhile.
        self._chosen_in = -1
        self._chosen: dict[int, list[int]] = {}

    def attachments(self, client: Client, kind: str) -> Payload:
        """Attach the chosen models, a row each, and the numbers of their clients."""
        if kind != "train":
            return Payload()
        if self._chosen_in != self.round:
            self._chosen_in, self._chosen = self.round, {}
        if client.id not in self._chosen:
            self._chosen[client.id] = self._choose(client)
        chosen = self._chosen[client.id]
        if not chosen:
            return Payload()
        return Payload(config={"models": ",".join(map(str, chosen))}, arrays={"models": self.for_clients[chosen]})

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Expect a weight for each model that was sent."""
        weights, count = self._weights(reply), len(self._chosen[client.id])
        if len(weights) != count:
            raise LayoutError(f"{len(weights)} weights arrived for {count} models")

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep the client's newest model, and what it found of the others'."""
        super().add(client, shared, reply)
        self.preferences[client.id, self._chosen[client.id]] += self._weights(reply)

    def finish(self) -> None:
        """Let every client continue from its own model: nothing is combined."""
        for client, shared in self.arrived.items():
            self.for_clients[client] = shared
        self.arrived = {}  # not kept while clients are tested

    def _choose(self, client: Client) -> list[int]:
        rng = generator(self.federation.seed, "fedfomo models", client.id, self.round)
        others = [i for i in self.answered_before() if i != client.id]
        left: list[int] = [others[i] for i in rng.permutation(len(others))]
        left.sort(key=lambda i: -self.preferences[client.id, i])
        places = min(self.models, len(left))
        epsilon = self.epsilon - self.epsilon_decay * (self.round - 1)
        return [left.pop(int(rng.integers(len(left))) if rng.random() < epsilon else 0) for _ in range(places)]

    def _weights(self, reply: Payload) -> np.ndarray:
        weights = reply.arrays["weights"]
        if not self.federation.noisy:
            return weights
        proper: np.ndarray = np.maximum(weights, 0)  # the clients' noise has made some of them negative
        proper /= max(1.0, float(proper.sum()))
        return proper


BEFORE = "before"  # the model's child that remembers the shared arrays from before the last local training


class FedFomo(Method):
    """Send each client some other clients' models, of which it takes what helps.

    client i, with the models w_j of up to M other clients:
        ω_j ∝ max(0, (f_i(w_i) − f_i(w_j)) / ‖w_j − w_i‖), on held-out samples
        w_i ← w_i + Σ_j ω_j·(w_j − w_i)
        train w_i on f_i
        send w_i, ω
    server: picks the next models for client i by its ω
    predict: w_i as trained
    """

    name = "fedfomo"
    paper = "Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021"
    shares = "everything; clients also get other clients' models"
    extras = (
        Extra("models", CLIENT, "models of other clients, a row each", (ANY, SHARED)),
        Extra("weights", SERVER, "ω, the weight that the client gave to each of them", (ANY,), kind=SHARES),
    )
    Settings = FedFomoSettings

    def check(self) -> None:
        """Refuse models to judge without samples to judge by."""
        if self.settings.models and not self.settings.validation:
            message = "must be > 0 unless fedfomo-models = 0"
            raise ConfigError("fedfomo-validation", self.settings.validation, message)

    @property
    def _remembers(self) -> bool:
        return bool(self.settings.models)

    def build(self, model: nn.Module) -> nn.Module:
        """Add the memory of the model from before the last local training, if models are compared with it."""
        if self._remembers:
            model.add_module(BEFORE, Memory(self.sharing(model).received()))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share everything but that memory."""
        return not _in_memory(name)

    def in_mean_model(self, name: str) -> bool:
        """Leave out the memory."""
        return not _in_memory(name)

    def prepare(self, local: LocalRound) -> None:
        """Step towards the models that were sent, and the trained one (Equation 3)."""
        split = self.sharing(local.model)
        if local.has_received("models"):
            current, models = split.get_shared(), local.received("models")
            if self._remembers and not local.never_trained:
                current, models = (
                    local.as_vector(remembered(local.model, BEFORE)),
                    np.concatenate([current[None], models]),
                )
            weights = self._weights(local, current, models)
            split.set_shared((current + weights @ (models.astype(np.float64) - current)).astype(np.float32))
            # The server gets to know what the others' models were worth.
            local.notes["weights"] = weights[len(models) - len(local.received("models")) :]
        if self._remembers:
            local.notes["before"] = split.received()

    def _weights(self, local: LocalRound, current: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return ω_j ∝ max(0, (L_i(w_i) − L_i(w_j)) / ‖w_j − w_i‖), or zeros if no model does better."""
        split, (_, validation) = self.sharing(local.model), self._parts(local)
        counted = is_parameter(split.layout)

        def loss(vector: np.ndarray) -> float:
            split.set_shared(vector)
            return evaluate(local.model, validation, self.training.labels).loss_sum / len(validation.y)

        local.model.eval()
        mine = loss(current)
        gains = np.zeros(len(others))
        for place, other in enumerate(others):
            gain, distance = mine - loss(other), float(np.linalg.norm((other - current)[counted]))
            if 0 < gain < np.inf and distance > 0:
                gains[place] = gain / distance
        return gains / gains.sum() if gains.any() else gains

    def _parts(self, local: LocalRound) -> tuple[Samples, Samples]:
        """Cut the client's samples into those to train on and to judge by, at least one each, alike in every round."""
        x, y = local.samples
        if len(y) == 1:
            return local.samples, local.samples
        held = min(max(1, round(self.settings.validation * len(y))), len(y) - 1)
        order = torch.from_numpy(generator(local.seed, "fedfomo validation", local.client).permutation(len(y)))
        judging, training = order[:held].to(y.device), order[held:].to(y.device)
        return Samples(x[training], y[training]), Samples(x[judging], y[judging])

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train on what is not held out."""
        data = self._parts(local)[0] if self.settings.validation else None
        return [Phase(train=everything, epochs=self.training.local_epochs, data=data)]

    def conclude(self, local: LocalRound) -> Payload:
        """Remember where the training began; answer with ω, by which the server chooses what to send next."""
        if self._remembers:
            for name, array in remembered(local.model, BEFORE).items():
                array.copy_(local.notes["before"][name])
        return Payload(arrays={"weights": local.notes.get("weights", np.zeros(0)).astype(np.float32)})

    @property
    def aggregation(self) -> Aggregation:
        """The server passes models on, and combines none (Section 3.2)."""
        return Aggregation(Candidates, {"models": self.settings.models})


def _in_memory(name: str) -> bool:
    return name.startswith(f"{BEFORE}.")
