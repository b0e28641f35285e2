"""FedRep: personal heads on a shared representation; a client fits its head first.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning, ICML
2021, Algorithm 1.

In the paper the base takes one step in a round; fedpfl trains it for ``local-epochs``.
"""

from __future__ import annotations

from torch import nn

from ..training.phase import Phase
from .base import LocalRound, excluding
from .bases.head import HeadMethod
from .settings import FedRepSettings


class FedRep(HeadMethod):
    """Share the base; the head stays, and trains first.

    client i:
        train φ_i on f_i(θ, φ_i)
        train θ_i, from θ, on f_i(θ_i, φ_i)
        send θ_i
    server: θ ← mean(θ_i)
    predict: (θ, φ_i)
    """

    name = "fedrep"
    paper = "Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021"
    shares = "the base"
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
