"""FedPer: the base is shared, the head is personal, both train together.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019, Algorithms 1 and 2.
"""

from __future__ import annotations

from torch import nn

from .bases.head import HeadMethod


class FedPer(HeadMethod):
    """Share the base; the head stays.

    client i:
        train θ_i, from θ, and φ_i on f_i
        send θ_i
    server: θ ← mean(θ_i)
    predict: (θ, φ_i)
    """

    name = "fedper"
    paper = "Arivazhagan et al., Federated Learning with Personalization Layers, 2019"
    shares = "the base"

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the base."""
        return not self.in_head(model)(name)
