"""pFedSD: a client's last personal model teaches its next one.

Jin, Bai, Yao, Dai, Gu, Yu, Sun: Personalized Edge Intelligence via Federated Self-Knowledge Distillation, IEEE
Transactions on Parallel and Distributed Systems 34(2), 2023, Section 3 and Algorithm 1.

The teacher gets the samples without augmentation. In the authors' program the server takes the plain mean, and λ and τ
are 1.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..training.phase import Batch, Loss, Phase
from .base import LocalRound
from .bases.kept_models import KeepsTrained, taught_by_twin
from .settings import PFedSDSettings

TEMPERATURE = 3.0  # τ of the distillation


class PFedSD(KeepsTrained):
    """Distil a client's last model into the one that it received.

    client i:
        teacher ← its last w_i
        train w_i, from w, on f_i + λτ²·KL(softmax(teacher/τ) ‖ softmax(w_i/τ)), of logits
        send w_i
    server: w ← mean(w_i)
    predict: w_i as last trained
    """

    name = "pfedsd"
    paper = "Jin et al., Personalized Edge Intelligence via Federated Self-Knowledge Distillation, TPDS 2023"
    shares = "everything; the model before aggregation stays as teacher"
    refuses = {"loss": "learns from probabilities of classes"}
    Settings = PFedSDSettings

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train the received model under the teacher; the first time there is none."""
        return taught_by_twin(local, self.training.local_epochs, TEMPERATURE, self._loss)

    def _loss(self, taught: Tensor) -> Loss:
        weight = self.settings.distillation

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            logits = model(batch.x)
            student = F.log_softmax(logits / TEMPERATURE, dim=1)
            apart = F.kl_div(student, taught[batch.positions], reduction="batchmean")
            return self.training.criterion(logits, batch.y) + weight * TEMPERATURE**2 * apart

        return loss
