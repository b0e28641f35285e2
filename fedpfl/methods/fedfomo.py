"""FedFomo: a client tries other clients' models and takes a step towards those that do well on its data.

Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization, ICLR 2021,
Section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..core.errors import ConfigError
from ..core.extras import ANY, CLIENT, SERVER, SHARED, Extra
from ..core.payload import Payload
from ..core.rng import generator
from ..core.settings import setting
from ..core.sharing import is_parameter
from ..data.federation import Samples
from ..rules.candidates import Candidates
from ..training.loop import evaluate
from ..training.phase import Forward, Phase
from .base import Aggregation, LocalRound, Method, everything


@dataclass(frozen=True)
class FedFomoSettings:
    """Settings of FedFomo."""

    models: int = setting(5, "Most other clients' models M that a client is sent.", minimum=0)
    validation: float = setting(
        0.2,
        "Share of a client's training samples that judge the models and do not train.",
        minimum=0,
        maximum=0.9,
    )
    epsilon: float = setting(0.3, "Probability ε that a model to send is drawn at random.", minimum=0, maximum=1)


class FedFomo(Method):
    """w_i ← w_i + Σ_j ω_j·(w_j − w_i), then local training; every client goes on from its own model."""

    name = "fedfomo"
    paper = "Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021"
    shares = "everything; clients also get other clients' models"
    extras = (
        Extra("models", CLIENT, "models of other clients, a row each", (ANY, SHARED)),
        Extra("weights", SERVER, "ω, the weight that the client gave to each of them", (ANY,)),
    )
    Settings = FedFomoSettings

    def check(self) -> None:
        """Models cannot be judged without samples."""
        if self.settings.models and not self.settings.validation:
            allowed = "must be > 0 unless fedfomo-models = 0"
            raise ConfigError("fedfomo-validation", self.settings.validation, allowed)

    def prepare(self, local: LocalRound) -> None:
        """Step towards the models that were sent."""
        if not local.has_received("models"):
            return
        split = self.sharing(local.model)
        own, others = split.get_shared(), local.received("models")
        weights = self._weights(local, own, others)
        split.set_shared((own + weights @ (others.astype(np.float64) - own)).astype(np.float32))
        local.notes["weights"] = weights

    def _weights(self, local: LocalRound, own: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return ω_j ∝ max(0, (L_i(w_i) − L_i(w_j)) / ‖w_j − w_i‖), or zeros if no model does better."""
        split, (_, validation) = self.sharing(local.model), self._parts(local)
        counted = is_parameter(split.layout)

        def loss(vector: np.ndarray) -> float:
            split.set_shared(vector)
            return evaluate(local.model, validation).loss_sum / len(validation.y)

        local.model.eval()
        mine = loss(own)
        gains = np.zeros(len(others))
        for place, other in enumerate(others):
            gain, distance = mine - loss(other), float(np.linalg.norm((other - own)[counted]))
            if 0 < gain < np.inf and distance > 0:
                gains[place] = gain / distance
        return gains / gains.sum() if gains.any() else gains

    def _parts(self, local: LocalRound) -> tuple[Samples, Samples]:
        """Cut the client's samples into those to train on and those to judge by, the same in every round.

        Both have at least one; a client with a single sample uses it for both.
        """
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
        """Answer with ω, by which the server chooses what to send next."""
        return Payload(arrays={"weights": local.notes.get("weights", np.zeros(0)).astype(np.float32)})

    @property
    def aggregation(self) -> Aggregation:
        """The server passes models on, and combines none (Section 3.2)."""
        return Aggregation(Candidates, {"models": self.settings.models, "epsilon": self.settings.epsilon})

    def global_model(self, model: nn.Module) -> Forward | None:
        """Every client has its own."""
        return None
