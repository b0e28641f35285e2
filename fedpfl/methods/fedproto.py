"""FedProto: all that clients share is the mean features of each class.

Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022,
Equations 3 to 7 and Algorithm 1.

Equation 6 divides each class's sum Σ |D_ij|/N_j·C_i(j), which is a mean already, by the number of clients that have the
class. That would draw all features towards 0 and is taken for a slip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import NoPlainModel
from ..core.settings import setting
from ..layers.memory import Memory
from ..models import cut
from ..training.phase import Batch, Forward, Phase
from .base import Aggregation, LocalRound, everything
from .prototypes import PrototypeMethod, PrototypeRule, apart, class_by_width


def of_means(features: Tensor, y: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Σ_j ‖C_i(j) − C(j)‖₂ over the batch's classes, C_i(j) being the mean of the batch's samples of class j."""
    of_class = F.one_hot(y, len(known)).to(prototypes)
    counts = of_class.sum(0)
    means = of_class.T @ features.to(prototypes) / counts.clamp(min=1)[:, None]
    distances: Tensor = (means - prototypes)[(counts > 0) & known].norm(dim=1)
    return distances.sum()


DISTANCES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {"means": of_means, "samples": apart}


@dataclass(frozen=True)
class FedProtoSettings:
    """Settings of FedProto."""

    pull: float = setting(1.0, "Weight λ of the distance to the prototypes; 0 is training alone.", minimum=0)
    distance: str = setting(
        "means",
        "The distance: the sum over a batch's classes of ‖mean of the class's features − prototype‖₂ (means, the "
        "paper), or the mean squared difference of each sample's features (samples, the authors' code).",
        choices=tuple(DISTANCES),
    )
    predict: str = setting(
        "model", "What predicts: a client's own model, or the class of the nearest prototype.",
        choices=("model", "prototype"),
    )  # fmt: skip


class FedProto(PrototypeMethod):
    """CE + λ·Σ_j d(C_i(j), C(j)), C_i(j) being the client's mean features of class j and C(j) those of all clients.

    Models stay with their clients. A client predicts with its model by default. The paper's rule is the nearest
    prototype, ŷ = argmin_j ‖f(x) − C(j)‖₂; it does not know how frequent a class is at the client.
    """

    name = "fedproto"
    paper = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    shares = "nothing of the model, but mean features of each class"
    no_personal_head = "keeps its head already, and shares class prototypes, for which a class means the same to all"
    Settings = FedProtoSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Add what the server sent last, for predictions."""
        shape = class_by_width(model)
        model.add_module("received", Memory({"prototypes": torch.zeros(shape), "known": torch.zeros(shape[0])}))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Nothing of the model travels."""
        return False

    @torch.no_grad()
    def prepare(self, local: LocalRound) -> None:
        """Take what the server sent."""
        memory: Any = local.model.received
        for kept, sent in zip(memory.arrays().values(), self.prototypes(local)):
            kept.copy_(sent)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """E epochs of everything (Equation 7)."""
        prototypes, known = self.prototypes(local)
        distance = DISTANCES[self.settings.distance]

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            base, head, _ = cut(model)
            features = base(batch.x)
            pull: Tensor = self.settings.pull * distance(features, batch.y, prototypes, known)
            return F.cross_entropy(head(features), batch.y) + pull

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
            forward: Forward = model
            return forward

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
