"""FedCP: a conditional policy divides each sample's features between the global head and the client's own.

Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedCP: Separating Feature Information for Personalized Federated Learning via
Conditional Policy, KDD 2023, Section 4 and Algorithm 1.

As in the authors' code, a client sends the mean of both heads, and MMD has four Gaussian kernels. The authors' code
adds Gumbel noise to the policy, also in tests; here the policy is a softmax. The received base gets the samples without
augmentation.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.errors import NoPlainModel
from ..core.payload import Payload
from ..models.parts import cut
from ..training.loop import predict
from ..training.phase import Batch, Forward, Phase
from .base import LocalRound, Method, excluding
from .bases.prototypes import class_by_width
from .settings import FedCPSettings

GLOBAL_HEAD = "global_head."
BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # the authors'


class ConditionalPolicy(nn.Module):
    """Shares r and 1 − r of each feature: softmax of ReLU–LayerNorm–Linear, from the features times a context."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(width, 2 * width), nn.LayerNorm(2 * width)

    def forward(self, features: Tensor, context: Tensor) -> Tensor:
        """Map features (n, d) in a context (d,) to the shares r of the client's own head, (n, d)."""
        values = self.layer(features * F.normalize(context, dim=0))
        # In the type of the weights: PyTorch 1.13 has no layer norm for bfloat16 beside float32.
        both = F.relu(self.norm(values.to(self.norm.weight.dtype)))
        return both.view(-1, 2, features.shape[1]).softmax(1)[:, 0]


class FedCP(Method):
    """Share the base, a policy and a global head; the own head stays.

    client i:
        r ← policy_i(z ⊙ v_i/‖v_i‖), v_i: sum of the rows of φ_i's weight
        train θ_i, policy_i, φ_i on CE(φ_i(r ⊙ z) + φ((1 − r) ⊙ z), y) + λ·MMD(z, θ(x))
        send θ_i, policy_i and (φ_i + φ)/2
    server: θ, policy, φ ← mean of what arrived
    predict: φ_i(r ⊙ z) + φ((1 − r) ⊙ z)
    """

    name = "fedcp"
    paper = (
        "Zhang et al., FedCP: Separating Feature Information for Personalized Federated Learning via Conditional "
        "Policy, KDD 2023"
    )
    shares = "base, conditional policy, global head"
    refuses = {"personal-head": "has a personal head already, and its other one is common to all"}
    Settings = FedCPSettings

    def build(self, model: Any) -> Any:
        """Add the global head, at first a copy of the own one, the policy, and the context."""
        model.global_head = copy.deepcopy(cut(model).head)
        model.policy = ConditionalPolicy(class_by_width(model)[1])
        model.register_buffer("context", model.head.weight.detach().sum(0))
        return model

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Keep the own head, and the context that follows from it."""
        return name != "context" and not name.startswith("head.")

    @torch.no_grad()
    def prepare(self, local: LocalRound) -> None:
        """Make the context of the own head as it is."""
        model: Any = local.model
        model.context.copy_(model.head.weight.sum(0))

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train E epochs of all but the global head, near the features of the received base."""
        received = predict(cut(local.model.eval()).base, local.samples.x)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            features = cut(model).base(batch.x)
            apart = discrepancy(features.float(), received[batch.positions].float())
            return self.training.criterion(divided(model, features), batch.y) + self.settings.alignment * apart

        all_but = excluding(lambda name: name.startswith(GLOBAL_HEAD))
        return [Phase(train=all_but, epochs=self.training.local_epochs, loss=loss)]

    @torch.no_grad()
    def conclude(self, local: LocalRound) -> Payload:
        """Move the global head, which is sent, half the way to the own one."""
        model: Any = local.model
        for common, personal in zip(model.global_head.parameters(), model.head.parameters()):
            common.add_(personal).mul_(0.5)
        return Payload()

    def personalised(self, model: nn.Module) -> Forward:
        """Divide the features between both heads."""
        return lambda x: divided(model, cut(model).base(x))

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Refuse: the plain model has no policy between base and head."""
        raise NoPlainModel("fedcp divides features by a policy, which the plain model does not have")


def divided(model: Any, features: Tensor) -> Tensor:
    """Return the sum of both heads' logits, each of its share of the features."""
    personal = model.policy(features, model.context) * features
    return model.head(personal) + model.global_head(features - personal)


def discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean of k(x_i, x_j) + k(y_i, y_j) − 2·k(x_i, y_j), k the sum of the kernels exp(−‖·‖²/2a)."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.t()
        return torch.stack([torch.exp(-squares / (2 * width)) for width in BANDWIDTHS]).sum(0)

    return (kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)).mean()
