"""FedEM: every client's data are a mixture of a few distributions, with a shared model for each.

Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021,
Algorithm 1.

``initial-weights`` set the first component; the others are drawn at random.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import NoPlainModel
from ..models.registry import BaseHeadModel
from ..training.loop import predict
from ..training.losses import Criterion
from ..training.phase import Batch, Forward, Loss, Phase
from .base import LocalRound, Method, everything
from .settings import FedEMSettings

MIXTURE = "mixture"


class FedEM(Method):
    """Train a few models together; each client mixes them in shares π_i.

    client i:
        q_sm ∝ π_im·exp(−loss of w_m on sample s)
        π_im ← mean_s q_sm
        train each w_im, from w_m, on Σ_s q_sm·(loss of w_im on sample s)
        send all w_im
    server: w_m ← mean(w_im)
    predict: Σ_m π_im·softmax(w_m(x))
    """

    name = "fedem"
    paper = "Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021"
    shares = "all components; their weights in the mixture stay"
    refuses = {"loss": "mixes probabilities of classes"}
    Settings = FedEMSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Add M − 1 components with other initial weights, and uniform π; the first component is the model itself."""
        others = [cast(BaseHeadModel, model).another() for _ in range(self.settings.components - 1)]
        model.add_module("others", nn.ModuleList(others))
        model.register_buffer(MIXTURE, torch.full((len(others) + 1,), 1 / (len(others) + 1)))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the components; π stays."""
        return name != MIXTURE

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Do the E-step with the received components, then E epochs of M-step."""
        x, y = local.samples
        local.model.eval()
        likelihood = self.training.criterion if self.training.has_own_loss else F.cross_entropy
        losses = torch.stack([likelihood(predict(model, x), y, reduction="none") for model in components(local.model)])
        pi = mixture(local.model)
        q = F.softmax(pi.log()[:, None] - losses, dim=0)
        pi.copy_(q.mean(dim=1))
        loss = weighted_loss(q, self.training.criterion)
        return [
            Phase(train=everything, epochs=self.training.local_epochs, loss=loss, gradients=self.settings.components)
        ]

    def personalised(self, model: nn.Module) -> Forward:
        """Return Σ_m π_m·softmax_m, as log-probabilities."""

        def log_probabilities(x: Tensor) -> Tensor:
            each = torch.stack([F.log_softmax(component(x), dim=1) for component in components(model)])
            return torch.logsumexp(each + mixture(model).log()[:, None, None], dim=0)

        return log_probabilities

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return none: without a client's π the components make no model."""
        return None

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the model of a mixture of one; refuse others."""
        if self.settings.components > 1:
            raise NoPlainModel(f"fedem predicts with a mixture of {self.settings.components} models, not with one")
        return super().export(model)


def components(model: nn.Module) -> list[nn.Module]:
    """Return the M models."""
    return [model, *cast(nn.ModuleList, model.others)]


def mixture(model: nn.Module) -> Tensor:
    """Return π itself, shape (M,)."""
    return cast(Tensor, getattr(model, MIXTURE))


def weighted_loss(q: Tensor, criterion: Criterion = F.cross_entropy) -> Loss:
    """Return Σ_m Σ_s q_ms·ℓ_m(s)/B as the loss of a batch of B; ``q`` has shape (M, samples)."""

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        losses = [criterion(component(batch.x), batch.y, reduction="none") for component in components(model)]
        return (q[:, batch.positions] * torch.stack(losses)).sum() / len(batch.y)

    return loss
