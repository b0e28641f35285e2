"""LG-FedAvg: local representations under a global head.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning with
Local and Global Representations, 2020, Algorithm 1, without its optional adversarial and self-supervised losses.
"""

from __future__ import annotations

from torch import nn

from .bases.head import HeadMethod


class LGFedAvg(HeadMethod):
    """Head: Σ n_i·φ_i / Σ n_i; the base never leaves the client. Both train together."""

    name = "lg-fedavg"
    paper = "Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations, 2020"
    shares = "the head"
    equations = r"\phi \leftarrow \frac{\sum_i n_i \phi_i}{\sum_i n_i}, \quad \theta_i \text{ stays}"
    refuses = {"personal-head": "shares the head and nothing else"}

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the head."""
        return self.in_head(model)(name)
