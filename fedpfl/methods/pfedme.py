"""pFedMe: clients have models near the global one, which follows the gradient of their Moreau envelopes.

T. Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, Algorithm 1, which calls
v_i θ.

As in the authors' code, v_i starts a round from w and continues from batch to batch. A batch is one of the paper's R
local rounds. Only the selected clients train; in Algorithm 1 all do. The step η has the run's ``momentum`` and
``weight-decay``; in the paper it has neither. The server's step β is 1.
"""

from __future__ import annotations

from typing import Sequence

import torch
from torch import Tensor, nn

from ..core.payload import Payload
from ..layers.memory import in_twin, refresh_twin, twin
from ..rules.mean import Mean
from ..training.inner_gradients import gradient_of, returning
from ..training.optim import SGD
from ..training.penalties import Proximal
from ..training.phase import Batch, Phase, loss_of
from .base import Aggregation, LocalRound, excluding
from .bases.kept_models import KeepsTrained
from .settings import PFedMeSettings


class PFedMe(KeepsTrained):
    """Train a second model v near w on each batch, and move w towards it.

    client i:
        for each batch, from w: v_i ← K steps on f_i(v_i) + λ/2·‖v_i − w_i‖²
            w_i ← w_i − η·λ·(w_i − v_i)
        send w_i
    server: w ← plain mean(w_i)
    predict: v_i
    """

    name = "pfedme"
    paper = "T Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020"
    shares = "the global model w; the client's v stays"
    Settings = PFedMeSettings
    aggregation = Aggregation(Mean, {"weights": "uniform"})

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs on w; each step renews θ."""
        refresh_twin(local.model)
        epochs, steps = self.training.local_epochs, self.settings.steps
        return [Phase(train=excluding(in_twin), epochs=epochs, gradient=self.envelope_gradient, gradients=steps)]

    def envelope_gradient(
        self, model: nn.Module, batch: Batch, names: Sequence[str], params: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Move θ by K steps; return f(θ) before the last one, and the gradient λ·(w − θ) of the envelope at w."""
        pull, weight = self.settings.pull, self.training.loss_weight(len(batch.y))
        f = loss_of(self.training)
        theta = dict(twin(model).named_parameters())
        with returning(params) as w:
            near = Proximal(pull, dict(zip(names, w)))
            inner = SGD(params, self.settings.personal_learning_rate, momentum=0.0, weight_decay=0.0)
            copy([theta[name] for name in names], params)
            for _ in range(self.settings.steps):
                loss, grads = gradient_of(model, batch, params, f, weight)
                near.add_gradient(names, params, grads)
                inner.step(grads)
            copy(params, [theta[name] for name in names])
            return loss, [pull * (origin - p.detach()) for origin, p in zip(w, params)]

    @torch.no_grad()
    def conclude(self, local: LocalRound) -> Payload:
        """Give θ BatchNorm's running statistics, which are those of its activations."""
        moved = dict(local.model.named_buffers())
        for name, buffer in twin(local.model).named_buffers():
            buffer.copy_(moved[name])
        return Payload()


@torch.no_grad()
def copy(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    """Copy values."""
    for a, b in zip(source, target):
        b.copy_(a)
