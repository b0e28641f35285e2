"""APFL: a client mixes its own model with the global one to predict, and learns the weight of each.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020 (arXiv 2003.13461), Algorithm 1 with the adaptive
α.

w and v are trained by the run's optimiser, in the paper by plain SGD. As in the authors' code α takes one step per
round, on one batch. fedpfl takes this step at the start of the round: later w has trained more than v, and α would go
to 0. Until a client trains, v is the initial model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..layers.memory import twin
from ..rules.mean import Mean
from ..training.inner_gradients import forward_with
from ..training.penalties import keep_in_unit
from ..training.phase import PLAIN_SGD, Batch, Forward, Phase
from .base import Aggregation, LocalRound
from .bases.kept_models import HasTwin
from .settings import APFLSettings

ALPHA = "alpha"


class APFL(HasTwin):
    """Mix the global model with a second one, v, which stays.

    client i:
        α_i ← α_i − η·⟨v_i − w, ∇f_i(v̄_i)⟩, kept in 0 … 1        # v̄_i = α_i·v_i + (1 − α_i)·w_i
        for each batch: w_i ← w_i − η·∇f_i(w_i), from w;  v_i ← v_i − η·α_i·∇f_i(v̄_i)
        send w_i
    server: w ← plain mean(w_i)
    predict: v̄_i with w
    """

    name = "apfl"
    paper = "Deng et al., Adaptive Personalized Federated Learning, 2020"
    shares = "the global model w; the own model v and its share α stay"
    Settings = APFLSettings
    aggregation = Aggregation(Mean, {"weights": "uniform"})  # Algorithm 1

    def build(self, model: nn.Module) -> nn.Module:
        """Add v, which starts as a copy of w, and α."""
        model = super().build(model)
        model.register_parameter(ALPHA, nn.Parameter(torch.tensor([self.settings.alpha])))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share all of w."""
        return name != ALPHA and super().is_shared(name, model)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Let α step, then train w and v for E epochs."""
        both = self.loss_of_both  # of w and of v: two gradients
        training = Phase(train=lambda name: name != ALPHA, epochs=self.training.local_epochs, loss=both, gradients=2)
        batch = local.draw(self.training.batch_size, "batch for alpha")
        step = Phase(
            train=lambda name: name == ALPHA, epochs=1, data=batch, loss=self.loss_of_mixture, project=keep_in_unit,
            move_statistics=False, **PLAIN_SGD,
        )  # fmt: skip
        return [step, training]

    def loss_of_both(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return f(w) + f(v̄), of which w gets the gradient of the first and v that of the second."""
        mixed = forward_with(twin(model), mixture(model), batch.x)
        return self.training.criterion(model(batch.x), batch.y) + self.training.criterion(mixed, batch.y)

    def loss_of_mixture(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return f(v̄)."""
        return self.training.criterion(self.personalised(model)(batch.x), batch.y)

    def personalised(self, model: nn.Module) -> Forward:
        """Return v̄."""
        return lambda x: forward_with(twin(model), mixture(model), x)

    @torch.no_grad()
    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return v̄ under the plain model's names."""
        return {**twin(model).state_dict(), **mixture(model)}


def mixture(model: nn.Module) -> dict[str, Tensor]:
    """Return v̄ by the plain model's names; no gradient reaches w."""
    arrays, personal = dict(model.named_parameters()), dict(twin(model).named_parameters())
    alpha = arrays[ALPHA]
    return {name: alpha * v + (1 - alpha) * arrays[name].detach() for name, v in personal.items()}
