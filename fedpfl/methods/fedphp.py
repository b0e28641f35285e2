"""FedPHP: a client inherits a running mean of the models that it has trained, which teaches its next one.

Li, Zhan, Shao, Li, Song: FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021, Algorithm 1
with knowledge distillation.

As in the authors' program, the teacher's logits are divided by 4 and the student's are not, and µ is at most 0.9. In
the program µ reaches 0.9 when a client has trained as often as is expected for the whole run; here it does after
``fedphp-trainings`` times. The default λ is the program's value for Dirichlet splits (0.05 for clients with a few
classes each). A client that has never trained has no teacher, and the teacher gets the samples without augmentation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.payload import Payload
from ..layers.memory import twin
from ..training.phase import Batch, Loss, Phase
from .base import LocalRound
from .bases.kept_models import KeepsTrained, taught_by_twin
from .settings import FedPHPSettings

TEMPERATURE = 4.0  # by which the teacher's logits are divided
LARGEST = 0.9  # the largest weight µ of what a client has inherited
COUNT = "trainings"


class FedPHP(KeepsTrained):
    """Distil a client's inherited model v_i into the one that it received, and inherit that in turn.

    client i, for the k-th time (k from 0):
        train w_i, from w, on (1 − λ)·f_i + λ·CE(softmax(w_i), softmax(v_i/4)), of logits
        v_i ← µ·v_i + (1 − µ)·w_i,  µ = 0.9·min(1, k/K)
        send w_i
    server: w ← mean(w_i)
    predict: v_i

    K = ``fedphp-trainings``.
    """

    name = "fedphp"
    paper = "Li et al., FedPHP: Federated Personalization with Inherited Private Models, ECML PKDD 2021"
    shares = "everything; the inherited model stays"
    refuses = {"loss": "learns from probabilities of classes"}
    Settings = FedPHPSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Add the inherited model, and how often it has been updated."""
        model = super().build(model)
        model.register_buffer(COUNT, torch.zeros(1))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share everything but the inherited model and the count."""
        return super().is_shared(name, model) and name != COUNT

    def in_mean_model(self, name: str) -> bool:
        """Leave out the count."""
        return name != COUNT

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train the received model under the inherited one; the first time there is none."""
        return taught_by_twin(local, self.training.local_epochs, TEMPERATURE, self._loss)

    def _loss(self, taught: Tensor) -> Loss:
        weight = self.settings.distillation

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            logits = model(batch.x)
            distance = F.cross_entropy(logits, taught[batch.positions])
            return (1 - weight) * self.training.criterion(logits, batch.y) + weight * distance

        return loss

    @torch.no_grad()
    def conclude(self, local: LocalRound) -> Payload:
        """Inherit the trained model."""
        model: Any = local.model
        count, arrays = getattr(model, COUNT), model.state_dict()
        mu = LARGEST * min(1.0, float(count) / self.settings.trainings)
        for name, array in twin(model).state_dict().items():
            floats = array.is_floating_point()
            array.copy_(mu * array + (1 - mu) * arrays[name] if floats else arrays[name])
        count += 1
        return Payload()
