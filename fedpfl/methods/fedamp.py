"""FedAMP: clients with similar models pull each other closer.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021,
Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from ..core.errors import ConfigError
from ..core.settings import setting
from ..layers.memory import in_twin
from ..rules.attentive import Attentive
from ..training.phase import Phase, Proximal
from .base import Aggregation, LocalRound, excluding
from .trained import KeepsTrained


@dataclass(frozen=True)
class FedAMPSettings:
    """Settings of FedAMP."""

    alpha: float = setting(1.0, "Step α_k of the mixture; 0: every client keeps its own model.", minimum=0)
    sigma: float = setting(
        50.0, "Range σ of the attention exp(−‖w_i − w_j‖²/σ); the others' weights must stay below 1 together.", above=0
    )
    prox: float = setting(0.1, "Weight λ of the pull λ/(2α_k)·‖w − u_i‖² to the client's mixture.", minimum=0)


class FedAMP(KeepsTrained):
    """u_i = Σ_j ξ_ij·w_j goes to client i, which minimises its loss near u_i."""

    name = "fedamp"
    paper = "Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021"
    shares = "everything; each client gets its own mixture"
    equations = (
        r"u_i = \sum_j \xi_{ij} w_j, \quad \xi_{ij} = \frac{\alpha}{\sigma} \exp \left( -\frac{\|w_i - "
        r"w_j\|^2}{\sigma} \right) \; (j \neq i), \quad \xi_{ii} = 1 - \sum_{j \neq i} \xi_{ij}"
        "\n"
        r"w_i \leftarrow \arg\min_w f_i(w) + \frac{\lambda}{2 \alpha} \|w - u_i\|^2"
    )
    Settings = FedAMPSettings

    def check(self) -> None:
        """λ/α_k needs an α_k."""
        if self.settings.prox and not self.settings.alpha:
            raise ConfigError("fedamp-alpha", self.settings.alpha, "must be > 0 unless fedamp-prox = 0")

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Say so where models that are near each other could leave a client's own no weight, which ends the run.

        Each of the others weighs at most α_k·exp(0)/σ.
        """
        most = self.settings.alpha * (clients - 1)
        if most < self.settings.sigma:
            return []
        return [
            f"fedamp: a run ends in the round in which the others' weights of a client add up to 1, and with {clients} "
            f"clients they can reach {most / self.settings.sigma:.3g}; a fedamp-sigma above {most:g} is always enough"
        ]

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train with the pull to u_i."""
        pull = Proximal(self.settings.prox / self.settings.alpha, local.start) if self.settings.prox else None
        return [Phase(train=excluding(in_twin), epochs=self.training.local_epochs, penalty=pull)]

    @property
    def aggregation(self) -> Aggregation:
        """A mixture for each client."""
        return Aggregation(Attentive, {"alpha": self.settings.alpha, "sigma": self.settings.sigma})
