"""FedGH: the server trains the head on the clients' class means; bases stay with their clients.

Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header, MM 2023, Section 3 and
Algorithm 1.

A round's class means are shuffled. The authors' program takes them client by client, its head keeps its initial values,
because its optimiser belongs to a client's model, and it tests the client's own head.
"""

from __future__ import annotations

from typing import Any, Sequence, cast

import torch
from torch import nn
from torch.nn import functional as F

from ..core.extra_arrays import COUNTS, MEANS, SERVER, Extra
from ..core.payload import Payload
from ..core.server_view import Client
from ..models.parts import cut
from ..training.at_server import fit
from ..training.phase import PLAIN_SGD, Phase
from .base import Aggregation, everything
from .bases.prototypes import PairsRule, PrototypeMethod, class_by_width, require_settable_head

# Of the server's plain SGD on the class means of a round.
LEARNING_RATE, EPOCHS, BATCH_SIZE = 0.01, 1, 1


class TrainedHead(PairsRule):
    """The head after training on the class means of the clients that answered."""

    name = "trained-head"
    takes_shared = False
    no_robust_mean = "trains on class means"

    def attachments(self, client: Client, kind: str) -> Payload:
        """Send nothing but the head."""
        return Payload()

    def finish(self) -> None:
        """Train the head."""
        arrays = {name: torch.tensor(array) for name, array in self.layout.unflatten(self.shared).items()}
        outputs, inputs = arrays["head.weight"].shape
        model = nn.Module()
        model.head = nn.Linear(inputs, outputs, bias="head.bias" in arrays)
        model.load_state_dict(arrays)
        phase = Phase(
            train=everything, epochs=EPOCHS, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE, **PLAIN_SGD,
            loss=lambda trained, batch: F.cross_entropy(cast(Any, trained).head(batch.x), batch.y), data=self.pairs(),
        )  # fmt: skip
        self.note("server-loss", fit(model, phase, self.generator("pairs")))
        self.shared = self.layout.flatten({name: array.numpy() for name, array in model.state_dict().items()})


class FedGH(PrototypeMethod):
    """Share a head that the server trains on the clients' class means.

    client i:
        train θ_i, and φ_i from φ, on f_i
        send µ_ic, the mean of z of each class c
    server: train φ on CE(φ(µ_ic), c)
    predict: (θ_i, φ)
    """

    name = "fedgh"
    paper = "Yi et al., FedGH: Heterogeneous Federated Learning with Generalized Global Header, MM 2023"
    shares = "the head, from the server to the clients; mean features of each class, to the server"
    refuses = {
        "personal-head": "trains one head for all clients",
        "loss": "has mean features of each class",
    }
    aggregation = Aggregation(TrainedHead)

    @property
    def extras(self) -> Sequence[Extra]:
        """The means, and which of them there are."""
        return (
            Extra("prototypes", SERVER, "mean features of each class", class_by_width, kind=MEANS),
            Extra("counts", SERVER, "training samples of each class", lambda m: class_by_width(m)[:1], kind=COUNTS),
        )

    def build(self, model: nn.Module) -> nn.Module:
        """Refuse a head that the server cannot train."""
        require_settable_head(model)
        return super().build(model)

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the head."""
        return cut(model).in_head(name)
