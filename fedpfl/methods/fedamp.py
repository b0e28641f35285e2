"""FedAMP: clients with similar models pull each other closer.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021,
Algorithm 1.

An absent client counts with its last model; in the paper all clients take part in every round. Distances leave out
BatchNorm's running statistics.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from ..core.errors import ConfigError
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..core.sharing import is_parameter
from ..layers.memory import in_twin
from ..rules.per_client import PerClientRule, inner_products, mix
from ..training.penalties import Proximal
from ..training.phase import Phase
from .base import Aggregation, LocalRound, excluding
from .bases.kept_models import KeepsTrained
from .settings import FedAMPSettings


class FedAMP(KeepsTrained):
    """Send each client a mixture u_i of all models, in which similar ones weigh most.

    client i:
        train w_i, from u_i, on f_i + λ/(2α)·‖w_i − u_i‖²
        send w_i
    server: ξ_ij ← α/σ·exp(−‖w_i − w_j‖²/σ);  ξ_ii ← 1 − Σ_{j ≠ i} ξ_ij
        u_i ← Σ_j ξ_ij·w_j
    predict: w_i as last trained
    """

    name = "fedamp"
    paper = "Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021"
    shares = "everything; each client gets its own mixture"
    Settings = FedAMPSettings

    def check(self) -> None:
        """Refuse α_k = 0 where λ/α_k is needed."""
        if self.settings.prox and not self.settings.alpha:
            raise ConfigError("fedamp-alpha", self.settings.alpha, "must be > 0 unless fedamp-prox = 0")

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Warn where near models could leave a client's own no weight, as each other one weighs up to α_k·exp(0)/σ."""
        most = self.settings.alpha * (clients - 1)
        if most < self.settings.sigma:
            return []
        return [
            "fedamp: the run fails if the weights of the other clients in a client's mixture add up to 1; with "
            f"{clients} clients they can reach {most / self.settings.sigma:.3g}; a fedamp-sigma above {most:g} is "
            "always enough"
        ]

    def schedule(self, local: LocalRound) -> list[Phase]:
        """Train with the pull to u_i."""
        pull = Proximal(self.settings.prox / self.settings.alpha, local.start) if self.settings.prox else None
        return [Phase(train=excluding(in_twin), epochs=self.training.local_epochs, penalty=pull)]

    @property
    def aggregation(self) -> Aggregation:
        """A mixture for each client."""
        return Aggregation(Attentive, {"alpha": self.settings.alpha, "sigma": self.settings.sigma})


class Attentive(PerClientRule):
    """u_i = Σ_j ξ_ij·w_j with ξ_ij = α·exp(−‖w_i − w_j‖²/σ)/σ and ξ_ii = 1 − Σ_{j≠i} ξ_ij.

    Huang et al. 2021, Algorithm 1, with A(x) = 1 − exp(−x/σ). w_j is the newest model of client j; a client that has
    never answered weighs nothing for others, and its own w_j is the initial model. Distances are those of the
    parameters, without BatchNorm's running statistics, which are mixed with the same weights.
    """

    name = "attentive"
    remembers = ("newest",)

    def __init__(self, federation: Federation, shared: np.ndarray, alpha: float, sigma: float) -> None:
        super().__init__(federation, shared)
        self.alpha = alpha
        self.sigma = sigma
        self.newest = self.for_clients.copy()
        self._parameters = is_parameter(self.layout)

    def begin(self) -> None:
        """Do nothing: newest models stay."""

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep the client's newest model."""
        self.newest[client.id] = shared

    def finish(self) -> None:
        """Mix all clients' next models from one snapshot; refuse weights of which none is left for a client's own."""
        others = attention(self.newest[:, self._parameters], self.alpha, self.sigma)
        np.fill_diagonal(others, 0.0)
        others[:, sorted(self.clients.keys() - set(self.answered_before()))] = 0.0
        totals = others.sum(axis=1)
        if totals.max() >= 1:
            message = (
                f"the weights of the other clients in the mixture of client {totals.argmax()} add up to "
                f"{totals.max():.3g} in round {self.round}, they must stay below 1; more than fedamp-alpha × (clients "
                f"− 1) = {self.alpha * (len(totals) - 1):g} is always enough"
            )
            raise ConfigError("fedamp-sigma", self.sigma, message)
        self.for_clients = mix(others + np.diag(1 - totals), self.newest)
        self.note("self-weight", 1 - totals.mean())


def attention(vectors: np.ndarray, alpha: float, sigma: float) -> np.ndarray:
    """Return α·exp(−‖w_i − w_j‖²/σ)/σ for every two rows, shape (clients, clients)."""
    products = inner_products(vectors, centred=True)
    norms = np.diag(products)
    distances = np.maximum(norms[:, None] + norms[None, :] - 2 * products, 0)
    return alpha / sigma * np.exp(-distances / sigma)
