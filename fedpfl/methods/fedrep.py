"""FedRep: a shared representation under personal heads; a client fits its head first, then the representation.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning, ICML
2021, Algorithm 1.
"""

from __future__ import annotations

from torch import nn

from ..training.phase import Phase
from .base import LocalRound, excluding
from .bases.head import HeadMethod
from .settings import FedRepSettings


class FedRep(HeadMethod):
    """p-epochs on the head over a frozen base, then E epochs on the base under a frozen head."""

    name = "fedrep"
    paper = "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021"
    shares = "the base"
    equations = (
        r"\phi_i \leftarrow \phi_i - \eta \nabla_\phi f_i(\theta, \phi_i), \quad \text{then} \quad "
        r"\theta_i \leftarrow \theta_i - \eta \nabla_\theta f_i(\theta_i, \phi_i)"
        "\n"
        r"\theta \leftarrow \frac{\sum_i n_i \theta_i}{\sum_i n_i}"
    )
    Settings = FedRepSettings

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share the base."""
        return not self.in_head(model)(name)

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train head, then base; a frozen base keeps its running statistics as well."""
        head = self.in_head(local.model)
        return [
            Phase(train=head, epochs=self.settings.p_epochs, move_statistics=False),
            Phase(train=excluding(head), epochs=self.training.local_epochs),
        ]
