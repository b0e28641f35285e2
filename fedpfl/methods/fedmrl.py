"""FedMRL: a common model and the client's own share one representation; the common head uses its first features.

Yi, Yu, Ren, Wang, Liu, Li: Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS 2024, Section 3
and Algorithm 1.

Both losses have weight 1, as in the authors' program. The architecture (``common-model``) sets the number of the common
model's features; it may not exceed the number of the client's own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError, NoPlainModel
from ..models.parts import cut
from ..training.phase import Batch, Forward, Phase
from .base import LocalRound, everything
from .bases.common_model import SharesCommonModel, common
from .bases.prototypes import class_by_width


class FedMRL(SharesCommonModel):
    """Project the features of a shared model w = (θ, φ) and of the client's own, (θ_v, φ_v), into one space.

    client i:
        r ← P_i·(θ_i(x), θ_v(x));  r' ← the first entries of r, as many as φ has inputs
        train θ_i, φ_i, from w, with θ_v, φ_v, P_i on CE(φ_v(r), y) + CE(φ_i(r'), y)
        send w_i = (θ_i, φ_i)
    server: w ← mean(w_i)
    predict: φ_v(r)

    P_i, a linear layer, stays with the client.
    """

    name = "fedmrl"
    paper = "Yi et al., Federated Model Heterogeneous Matryoshka Representation Learning, NeurIPS 2024"
    shares = "the common model; the client's own model and the projection stay"

    def build(self, model: nn.Module) -> nn.Module:
        """Add the common model and the projection."""
        model = super().build(model)
        (_, width), (_, narrow) = class_by_width(model), class_by_width(common(model))
        if narrow > width:
            allowed = f"has {narrow} features, more than the {width} of the client's own model"
            raise ConfigError("common-model", self.settings.common_model, allowed)
        model.add_module("projection", nn.Linear(narrow + width, width))
        return model

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train everything for E epochs on the sum of both heads' losses."""

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            features, head = representation(model, batch.x), cut(common(model)).head
            nested = features[:, : class_by_width(common(model))[1]]
            total: Tensor = self.training.criterion(cut(model).head(features), batch.y)
            return total + self.training.criterion(head(nested), batch.y)

        return [Phase(train=everything, epochs=self.training.local_epochs, loss=loss, gradients=2)]

    def personalised(self, model: nn.Module) -> Forward:
        """Return the own head on the common representation."""

        def forward(x: Tensor) -> Tensor:
            return cut(model).head(representation(model, x))

        return forward

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return none: the common head reads what the client has projected."""
        return None

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Refuse: the plain model has no projection."""
        raise NoPlainModel("fedmrl predicts from the features of two models, which a projection joins")


def representation(model: Any, x: Tensor) -> Tensor:
    """Return P·(features by the common model, features by the own)."""
    parts = [cut(one).base(x).flatten(1) for one in (common(model), model)]
    return model.projection(torch.cat(parts, 1))
