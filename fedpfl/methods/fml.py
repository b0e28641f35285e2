"""FML: a common model and the client's own teach each other.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu, Wu: Federated Mutual Learning, 2020 (arXiv 2006.16765), Section 4 and
Algorithm 1.

Neither loss trains its teacher. The common model has the architecture of the client's own unless ``common-model`` names
another; its initial weights are drawn separately.
"""

from __future__ import annotations

from torch import Tensor, nn

from ..training.phase import Batch, Phase
from .base import LocalRound, everything
from .bases.common_model import SharesCommonModel, apart, common

ALPHA, BETA = 0.5, 0.5  # weights of the labels in the losses of the client's model and of the common one


class FML(SharesCommonModel):
    """Share a model w that learns with the client's own, v_i, which may have another architecture.

    client i:
        train v_i on α·f_i(v_i) + (1 − α)·KL(q ‖ q_v), q fixed
        train w_i, from w, in the same steps, on β·f_i(w_i) + (1 − β)·KL(q_v ‖ q), q_v fixed
        send w_i
    server: w ← mean(w_i)
    predict: v_i;  global model: w

    q and q_v are the probabilities of the classes by w_i and v_i. α = β = 0.5.
    """

    name = "fml"
    paper = "Shen et al., Federated Mutual Learning, 2020"
    shares = "the common model; the client's own model stays"
    refuses = {"loss": "learns from probabilities of classes"}

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train both models for E epochs."""

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            personal, shared, labels = model(batch.x), common(model)(batch.x), self.training.criterion
            personal_loss = ALPHA * labels(personal, batch.y) + (1 - ALPHA) * apart(shared.detach(), personal)
            shared_loss = BETA * labels(shared, batch.y) + (1 - BETA) * apart(personal.detach(), shared)
            return personal_loss + shared_loss

        return [Phase(train=everything, epochs=self.training.local_epochs, loss=loss, gradients=2)]
