"""FedProto: clients share nothing but the mean features of each class.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022,
Equations 3 to 7 and Algorithm 1.

Equation 6 divides the mean by the number of clients again, which we read as a typo. The distance is from the authors'
code, because the paper's, ‖µ_ic − µ_c‖₂, has no gradient at 0. The paper predicts the class of the nearest prototype
(``fedproto-predict``), which ignores how frequent a class is at the client.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import NoPlainModel
from ..layers.memory import Memory
from ..models.parts import cut
from ..training.phase import Batch, Forward, Phase
from .base import Aggregation, LocalRound, everything
from .bases.prototypes import PrototypeMethod, PrototypeRule, apart, class_by_width
from .settings import FedProtoSettings


class FedProto(PrototypeMethod):
    """Share the class means µ_c of features and nothing of the model.

    client i:
        train w_i on f_i + λ·mean (z − µ_y)²
        send µ_ic, the mean of z of each class c
    server: µ_c ← Σ n_ic·µ_ic / Σ n_ic
    predict: w_i
    """

    name = "fedproto"
    paper = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    shares = "nothing of the model, but mean features of each class"
    refuses = {
        "personal-head": "keeps its head already, and shares class prototypes, for which a class means the same to all",
        "loss": "has a prototype for each class",
    }
    Settings = FedProtoSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Add what the server sent last, for predictions."""
        shape = class_by_width(model)
        model.add_module("received", Memory({"prototypes": torch.zeros(shape), "known": torch.zeros(shape[0])}))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share nothing of the model."""
        return False

    @torch.no_grad()
    def prepare(self, local: LocalRound) -> None:
        """Take what the server sent."""
        memory: Any = local.model.received
        for kept, sent in zip(memory.arrays().values(), self.prototypes(local)):
            kept.copy_(sent)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs of everything (Equation 7)."""
        prototypes, has_prototype = self.prototypes(local)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            base, head, _ = cut(model)
            features = base(batch.x)
            pull = self.settings.pull * apart(features, batch.y, prototypes, has_prototype)
            return self.training.criterion(head(features), batch.y) + pull

        return [Phase(train=everything, epochs=self.training.local_epochs, loss=loss)]

    @property
    def aggregation(self) -> Aggregation:
        """The mean of the prototypes, weighted by the samples of a class."""
        return Aggregation(PrototypeMean)

    def in_mean_model(self, name: str) -> bool:
        """Leave out what the server sent."""
        return not name.startswith("received.")

    def personalised(self, model: Any) -> Forward:
        """Return the client's model, or minus the distance to each prototype."""
        if self.settings.predict == "model":
            return model

        def nearest(x: Tensor) -> Tensor:
            arrays = model.received.arrays()
            unknown = arrays["known"] == 0
            distances = torch.cdist(cut(model).base(x), arrays["prototypes"]).masked_fill(unknown, 0)
            # A class without a prototype is farther than any other.
            return -distances.where(~unknown, 1 + distances.max(1, keepdim=True).values)

        return nearest

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the client's model, if that is what predicts."""
        if self.settings.predict != "model":
            raise NoPlainModel("fedproto-predict = prototype: a client predicts the class of the nearest prototype")
        return super().export(model)


class PrototypeMean(PrototypeRule):
    """Nothing but the prototypes."""

    name = "prototype-mean"
