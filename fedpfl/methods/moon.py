"""MOON: a client's features are drawn to the received model's and away from its last one's.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021, Section 3 and Algorithm 1.

Features are the input of the last layer; for the paper's projection head, add one to the model. The compared models run
in evaluation mode, on the samples without augmentation. In a client's first round z_i = z_w.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..layers.memory import in_twin, twin
from ..models.parts import cut
from ..training.loop import predict
from ..training.phase import Batch, Forward, Phase
from .base import LocalRound, Method, excluding
from .bases.kept_models import KeepsTrained
from .settings import MoonSettings

TEMPERATURE = 0.5  # τ of the contrastive loss


class Moon(KeepsTrained):
    """Add a contrastive loss that compares a sample's features with those of two earlier models.

    client i:
        z, z_w, z_i ← features of a sample by w_i, by w, and by the client's last w_i
        ℓ = −log(exp(cos(z, z_w)/τ) / (exp(cos(z, z_w)/τ) + exp(cos(z, z_i)/τ)))
        train w_i, from w, on f_i + µ·mean ℓ
        send w_i
    server: w ← mean(w_i)
    predict: w
    """

    name = "moon"
    paper = "Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021"
    shares = "everything; the model that a client trained last stays for comparison"
    Settings = MoonSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Add the twin; refuse a model that has no features."""
        cut(model)
        return super().build(model)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs on the sum of both losses."""
        x = local.samples.x
        local.model.eval()
        # Neither trains: one pass over the data serves all epochs.
        received, last = (directions(predict(cut(model).base, x)) for model in (local.model, twin(local.model)))
        apart = (last - received) / TEMPERATURE

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            base, head, _ = cut(model)
            features = base(batch.x)
            contrast = F.softplus((directions(features) * apart[batch.positions]).sum(1)).mean()
            return self.training.criterion(head(features), batch.y) + self.settings.mu * contrast

        return [Phase(train=excluding(in_twin), epochs=self.training.local_epochs, loss=loss)]

    def in_mean_model(self, name: str) -> bool:
        """Leave out the model that is kept for comparison."""
        return not in_twin(name)

    def personalised(self, model: nn.Module) -> Forward:
        """Return the mean, as it was received."""
        return model

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the received model."""
        return Method.export(self, model)


def directions(features: Tensor) -> Tensor:
    """Return each sample's features, scaled to length 1."""
    return F.normalize(features.flatten(1), dim=1)
