"""LG-FedAvg: local representations under a global head.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning with
Local and Global Representations, 2020, Algorithm 1, without its optional adversarial and self-supervised losses.

The authors' program starts from a model that FedAvg trained; here ``initial-weights`` gives one.
"""

from __future__ import annotations

from torch import nn

from .bases.head import HeadMethod


class LGFedAvg(HeadMethod):
    """Share the head; the base stays.

    client i:
        train θ_i, and φ_i from φ, on f_i
        send φ_i
    server: φ ← mean(φ_i)
    predict: (θ_i, φ)
    """

    name = "lg-fedavg"
    paper = "Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020"
    shares = "the head"
    refuses = {"personal-head": "shares the head and nothing else"}

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the head."""
        return self.in_head(model)(name)
