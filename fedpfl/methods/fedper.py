"""FedPer: the base is shared, the head is personal, both train together.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019, Algorithms 1 and 2.
"""

from __future__ import annotations

from torch import nn

from .bases.head import HeadMethod


class FedPer(HeadMethod):
    """Base: Σ n_i·θ_i / Σ n_i; the head never leaves the client."""

    name = "fedper"
    paper = "Arivazhagan et al., Federated Learning with Personalization Layers, 2019"
    shares = "the base"
    equations = r"\theta \leftarrow \frac{\sum_i n_i \theta_i}{\sum_i n_i}, \quad \phi_i \text{ stays}"

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the base."""
        return not self.in_head(model)(name)
