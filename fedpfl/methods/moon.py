"""MOON: a client's features are drawn to those of the received model and away from those of its last trained one.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021, Section 3 and Algorithm 1.

The features are the input of the model's last layer. The paper puts a projection head of two layers before that
layer; here that is up to the model. The two models that features are compared with are not trained and run in
evaluation mode.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ..layers.memory import in_twin, twin
from ..models.parts import cut
from ..training.loop import predict
from ..training.phase import Batch, Forward, Phase
from .base import LocalRound, Method, excluding
from .bases.trained import KeepsTrained
from .settings import MoonSettings

TEMPERATURE = 0.5  # τ of the contrastive loss


class Moon(KeepsTrained):
    """CE + µ·ℓ, ℓ = −log(exp(cos(z, z_glob)/τ) / (exp(cos(z, z_glob)/τ) + exp(cos(z, z_prev)/τ))); the mean of all.

    z are a sample's features by the model that trains, z_glob by the received one and z_prev by the one that the client
    trained last. The first time that is the received one, too, and ℓ then has no gradient.
    """

    name = "moon"
    paper = "Li, He, Song, Model-Contrastive Federated Learning, CVPR 2021"
    shares = "everything; the model that a client trained last stays for comparison"
    equations = (
        r"\min_w \; \mathrm{CE} + \mu \ell, \quad \ell = -\log \frac{\exp(\cos(z, z_{\mathrm{glob}}) / "
        r"\tau)}{\exp(\cos(z, z_{\mathrm{glob}}) / \tau) + \exp(\cos(z, z_{\mathrm{prev}}) / \tau)}"
    )
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
            total: Tensor = self.training.criterion(head(features), batch.y) + self.settings.mu * contrast
            return total

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
