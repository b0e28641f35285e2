"""GPFL: features are steered towards global class embeddings and conditioned on the client's class mix.

Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan: GPFL: Simultaneously Learning Global and Personalized Feature Information
for Personalized Federated Learning, ICCV 2023, Section 3.

As in the authors' code, the distance to E_y is the Frobenius norm over a batch, which grows with √B. The conditions g
and g_i are computed from the received embeddings; in the authors' code from the client's last trained ones, and in
round 1 they are zero.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import NoPlainModel
from ..layers.memory import Memory
from ..training.penalties import Proximal
from ..training.phase import Batch, Forward, Phase
from .base import LocalRound, Method, everything
from .bases.prototypes import class_by_width
from .settings import GPFLSettings


class GPFL(Method):
    """Share the base, class embeddings E and a conditional valve V; the head stays.

    client i:
        g ← mean_c E_c;  g_i ← Σ_c n_ic/n_i·E_c
        train θ_i, V_i, E_i, φ_i on CE(φ_i(V_i(z, g_i)), y)
            + CE(cos(V_i(z, g), E_i), y) + λ·‖V_i(z, g) − E_y‖
        send θ_i, V_i, E_i
    server: θ, V, E ← mean of what arrived
    predict: φ_i(V(z, g_i))
    """

    name = "gpfl"
    paper = (
        "Zhang et al., GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized FL, "
        "ICCV 2023"
    )
    shares = "base, class embeddings, conditional valve"
    refuses = {
        "personal-head": "keeps its head already, and shares class embeddings, for which a class means the same to all",
        "loss": "has an embedding of each class",
    }
    Settings = GPFLSettings

    def build(self, model: Any) -> Any:
        """Add the class embeddings E (GCE), the valve (CoV) and the two conditions to the model."""
        classes, width = class_by_width(model)
        model.embeddings = nn.Embedding(classes, width)
        model.valve = ConditionalValve(width)
        model.conditions = Memory({"general": torch.zeros(width), "own": torch.zeros(width)})
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Keep the head, and the conditions, which tell the client's mix of classes."""
        return not name.startswith(("head.", "conditions."))

    @torch.no_grad()
    def prepare(self, local: LocalRound) -> None:
        """Make the conditions from the received embeddings: c_g = mean_k E_k and c_i = Σ_k p_ik·E_k (Section 3.3)."""
        embeddings, model = local.start["embeddings.weight"], cast(Any, local.model)
        conditions = model.conditions.arrays()
        shares = torch.from_numpy(local.class_shares).to(embeddings)
        conditions["general"].copy_(embeddings.mean(0))
        conditions["own"].copy_(shares @ embeddings)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs of everything on the sum of three losses (Equation 8)."""
        frozen = local.start["embeddings.weight"]

        def loss(model: Any, batch: Batch) -> Tensor:
            features, conditions = model.base(batch.x), model.conditions.arrays()
            personal = model.head(model.valve(features, conditions["own"]))
            general = model.valve(features, conditions["general"])
            angles = F.linear(F.normalize(general), F.normalize(model.embeddings.weight))
            distance = (general - frozen[batch.y]).norm()  # over all entries of the batch
            guidance = self.training.criterion(angles, batch.y) + self.settings.guidance_weight * distance
            return self.training.criterion(personal, batch.y) + guidance

        weights = {n: p for n, p in local.model.named_parameters() if n.startswith(("embeddings.", "valve."))}
        zeros = {name: torch.zeros_like(array) for name, array in weights.items()}
        decay = Proximal(self.settings.embedding_decay, zeros)
        return [Phase(train=everything, epochs=self.training.local_epochs, loss=loss, penalty=decay)]

    def personalised(self, model: Any) -> Forward:
        """Return head(CoV(base(x), c_i))."""

        def forward(x: Tensor) -> Tensor:
            return model.head(model.valve(model.base(x), model.conditions.arrays()["own"]))

        return forward

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Refuse: the plain model has no valve between base and head."""
        raise NoPlainModel("gpfl predicts through a conditional valve, which the plain model does not have")


class LayerNorm(nn.LayerNorm):
    """A layer norm that computes in the type of its weights; PyTorch 1.13 cannot mix bfloat16 and float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (…, d)."""
        return super().forward(x.to(self.weight.dtype))


class ConditionalValve(nn.Module):
    """CoV(f, c) = ReLU(f ⊙ (γ(c) + 1) + β(c)), where γ and β are Linear–ReLU–LayerNorm (Section 3.3)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(nn.Linear(width, width), nn.ReLU(), LayerNorm(width))
        self.shift = nn.Sequential(nn.Linear(width, width), nn.ReLU(), LayerNorm(width))

    def forward(self, features: Tensor, condition: Tensor) -> Tensor:
        """Map features (n, d) under a condition (d,) to features (n, d)."""
        return F.relu(features * (self.scale(condition) + 1) + self.shift(condition))
