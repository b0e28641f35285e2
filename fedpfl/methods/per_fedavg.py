"""Per-FedAvg: a shared model from which one gradient step makes a good personal one (MAML).

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning
Approach, NeurIPS 2020, Algorithm 1.

The gradient is the paper's first-order approximation, without ∇²f_i. The step β has the run's ``momentum`` and
``weight-decay``; in the paper it has neither.
"""

from __future__ import annotations

from typing import Sequence

from torch import Tensor, nn

from ..core.errors import ConfigError
from ..rules.mean import Mean
from ..training.inner_gradients import gradient_of, move, parts_of, returning
from ..training.phase import Batch, Phase, loss_of
from .base import Aggregation, LocalRound, Method, everything
from .settings import PerFedAvgSettings

BATCHES = 2  # independent ones of a step: D1 and D2


class PerFedAvg(Method):
    """Train a model for its loss after one step of gradient descent.

    client i:
        for each batch, from w: w_i ← w_i − β·∇F_i(w_i), F_i(w) = f_i(w − α·∇f_i(w))
        send w_i
    server: w ← plain mean(w_i)
    predict: w − α·∇f_i(w)        # of one batch
    """

    name = "per-fedavg"
    paper = "Fallah et al., Personalized Federated Learning … A Model-Agnostic Meta-Learning Approach, NeurIPS 2020"
    shares = "everything"
    Settings = PerFedAvgSettings
    aggregation = Aggregation(Mean, {"weights": "uniform"})  # Algorithm 1

    def check(self) -> None:
        """Refuse what is no plain gradient step, as the adaptation is."""
        if self.training.optimizer != "sgd":
            raise ConfigError("optimizer", self.training.optimizer, "must be sgd for per-fedavg")

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs of meta-steps, each on as many samples as its batches have together."""
        return [
            Phase(
                train=everything,
                epochs=self.training.local_epochs,
                gradient=self.meta_gradient,
                batch_size=BATCHES * self.training.batch_size,
                learning_rate=self.settings.beta,
                gradients=2,
            )
        ]

    def meta_gradient(
        self, model: nn.Module, batch: Batch, names: Sequence[str], params: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return f(w'; D2) and the first-order gradient at w: ∇f(w'; D2)."""
        adapting, judging = parts_of(batch, BATCHES)
        with returning(params) as start:
            _, inner = self._gradient(model, adapting, params)
            move(params, start, inner, -self.training.learning_rate)
            loss, outer = self._gradient(model, judging, params)
        return loss, outer

    def _gradient(self, model: nn.Module, batch: Batch, params: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the mean loss and the gradient, of the mean or of the sum, at the parameters as they are."""
        loss = loss_of(self.training)
        return gradient_of(model, batch, params, loss, weight=self.training.loss_weight(len(batch.y)))

    def adaptation(self, local: LocalRound) -> list[Phase]:
        """Take one step of α on one batch."""
        batch = local.draw(self.training.batch_size, "adaptation batch")
        return [Phase(train=everything, epochs=1, data=batch)]
