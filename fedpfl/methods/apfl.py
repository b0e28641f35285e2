"""APFL: a client predicts with a mixture of its own model and the global one, and learns how much of each.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020 (arXiv 2003.13461), Algorithm 1 with the adaptive
α.

w, v and α step at once, on the same batch, through the run's optimiser; the paper's steps are plain SGD. BatchNorm's
running statistics of the mixture are v's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.settings import setting
from ..layers.memory import add_twin, in_twin, twin
from ..rules.mean import Mean
from ..training.phase import Batch, Forward, Phase
from ..training.steps import forward_with
from .base import Aggregation, LocalRound, Method

ALPHA = "alpha"


@dataclass(frozen=True)
class APFLSettings:
    """Settings of APFL."""

    alpha: float = setting(
        0.5, "Share α of a client's own model in the mixture, at first; 0: FedAvg with all clients weighing alike.",
        minimum=0, maximum=1,
    )  # fmt: skip
    adaptive: bool = setting(True, "Whether each client learns its α.")


class APFL(Method):
    """v̄ = α·v + (1 − α)·w predicts. w ← w − η·∇f(w); v ← v − η·α·∇f(v̄); α ← α − η·⟨v − w, ∇f(v̄)⟩, kept in 0 … 1."""

    name = "apfl"
    paper = "Deng et al., Adaptive Personalized Federated Learning, 2020"
    shares = "the global model w; the own model v and its share α stay"
    Settings = APFLSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Add v, which starts as a copy of w, and α."""
        model = add_twin(model)
        model.register_parameter(ALPHA, nn.Parameter(torch.tensor([self.settings.alpha])))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """All of w travels."""
        return name != ALPHA and not in_twin(name)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """E epochs on w, v and α."""
        epochs, adaptive = self.training.local_epochs, self.settings.adaptive
        return [Phase(train=lambda name: adaptive or name != ALPHA, epochs=epochs, loss=loss, project=keep_a_share)]

    @property
    def aggregation(self) -> Aggregation:
        """The plain mean (Algorithm 1)."""
        return Aggregation(Mean, {"weights": "uniform"})

    def personalised(self, model: nn.Module) -> Forward:
        """Return v̄."""
        return lambda x: forward_with(twin(model), mixture(model), x)

    def global_model(self, model: nn.Module) -> Forward:
        """Return w."""
        return model

    @torch.no_grad()
    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return v̄ under the plain model's names."""
        return {**twin(model).state_dict(), **mixture(model)}


def mixture(model: nn.Module, *, of_fixed: bool = False) -> dict[str, Tensor]:
    """Return the parameters v̄ by the plain model's names; with ``of_fixed`` no gradient reaches w."""
    arrays = dict(model.named_parameters())
    alpha, own = arrays[ALPHA], dict(twin(model).named_parameters())
    common = {name: arrays[name].detach() if of_fixed else arrays[name] for name in own}
    return {name: alpha * v + (1 - alpha) * common[name] for name, v in own.items()}


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return f(w) + f(v̄), of which w gets the gradient of the first, v and α that of the second."""
    mixed = forward_with(twin(model), mixture(model, of_fixed=True), batch.x)
    return F.cross_entropy(model(batch.x), batch.y) + F.cross_entropy(mixed, batch.y)


@torch.no_grad()
def keep_a_share(names: Sequence[str], params: Sequence[Tensor]) -> None:
    """Put α back between 0 and 1."""
    for name, param in zip(names, params):
        if name == ALPHA:
            param.clamp_(0, 1)
