"""FedPer: the base is shared, the head is personal, both train together.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019, Algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ..core.settings import setting
from .bases.head import HeadMethod, HeadSettings


@dataclass(frozen=True)
class FedPerSettings(HeadSettings):
    """Settings of FedPer."""

    head_layers: int = setting(
        1, "Number of linear layers at the model's end that form its head. 0: none, which is FedAvg.", minimum=0
    )


class FedPer(HeadMethod):
    """Base: Σ n_i·θ_i / Σ n_i; the head never leaves the client."""

    name = "fedper"
    paper = "Arivazhagan et al., Federated Learning with Personalization Layers, 2019"
    shares = "the base"
    equations = r"\theta \leftarrow \frac{\sum_i n_i \theta_i}{\sum_i n_i}, \quad \phi_i \text{ stays}"
    Settings = FedPerSettings

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the base."""
        return self.settings.head_layers == 0 or not self.in_head(model)(name)
