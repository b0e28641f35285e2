"""FedDistill: clients share nothing but their mean predictions for the samples of each class.

Jeong, Oh, Kim, Park, Bennis, Kim: Communication-Efficient On-Device Machine Learning: Federated Distillation and
Augmentation under Non-IID Private Data, 2018 (arXiv 1811.11479), Section 2 and Algorithm 1.

This is the paper's federated distillation (FD), without its augmentation, which needs a network that generates samples.
A client computes its means after its training; in the paper it adds up predictions meanwhile. It learns from the mean
of all clients; in the paper from that of the others. A class that no client of a round has keeps its mean.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.extra_arrays import BOTH, CLIENT, COUNTS, RECEIVED, SERVER, Extra
from ..core.payload import Payload
from ..core.server_view import Client
from ..training.phase import Batch, Forward, Phase
from .base import Aggregation, LocalRound, everything
from .bases.prototypes import PrototypeMethod, PrototypeRule, classes
from .settings import FedDistillSettings


class MeanPredictions(PrototypeRule):
    """The plain mean over the clients that have a class."""

    name = "mean-predictions"

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the predictions for the client's classes; a class of which noise leaves half a sample is there."""
        present = (reply.arrays["counts"] >= 0.5).astype(np.float64)
        self._sums = self._sums + present[:, None] * reply.arrays["prototypes"]
        self._counts = self._counts + present


class FedDistill(PrototypeMethod):
    """Share the mean probabilities q_c that models give to the samples of each class c.

    client i:
        train w_i on f_i + γ·CE(q(x; w_i), q_y)
        send q_ic, the mean of q(x; w_i) over the samples of each class c
    server: q_c ← plain mean(q_ic) over the clients that have class c
    predict: w_i

    q(x; w) are the probabilities of all classes, and CE(q, p) is −Σ p·log q; it is 0 while there is no q_y.
    """

    name = "feddistill"
    aliases = ("fd",)
    paper = (
        "Jeong et al., Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation "
        "under Non-IID Private Data, 2018"
    )
    shares = "nothing of the model, but mean predictions for the samples of each class"
    refuses = {
        "personal-head": "keeps its head already, and shares predictions, for which a class means the same to all",
        "loss": "learns from probabilities of classes",
    }
    Settings = FedDistillSettings
    aggregation = Aggregation(MeanPredictions)

    @property
    def extras(self) -> Sequence[Extra]:
        """The predictions both ways; which classes a client has, and which have predictions."""
        return (
            Extra("prototypes", BOTH, "mean predictions for the samples of each class", self.shape,
                  private_from=RECEIVED, bounds=(0, 1)),
            Extra("counts", SERVER, "training samples of each class", classes, kind=COUNTS),
            Extra("known", CLIENT, "1 for classes with predictions", classes, exact="uint8"),
        )  # fmt: skip

    def shape(self, model: nn.Module) -> tuple[int, ...]:
        """Return the number of classes, twice."""
        return classes(model) * 2

    def description(self, model: nn.Module) -> Forward:
        """Return the probabilities of a sample's classes."""
        return lambda x: F.softmax(model(x), dim=1)

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share nothing of the model."""
        return False

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train everything for E epochs."""
        predictions, is_known = self.prototypes(local)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            logits = model(batch.x)
            apart = F.cross_entropy(logits, predictions[batch.y], reduction="none") * is_known[batch.y]
            return self.training.criterion(logits, batch.y) + self.settings.teaching * apart.mean()

        return [Phase(train=everything, epochs=self.training.local_epochs, loss=loss)]
