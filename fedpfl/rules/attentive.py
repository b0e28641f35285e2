"""FedAMP's rule: each client gets a mixture in which models near its own weigh more."""

from __future__ import annotations

import numpy as np

from ..core.errors import ConfigError
from ..core.federation import Client, Federation
from ..core.payload import Payload
from ..core.sharing import is_parameter
from .per_client import PerClientRule, inner_products, mix


class Attentive(PerClientRule):
    """u_i = Σ_j ξ_ij·w_j with ξ_ij = α·exp(−‖w_i − w_j‖²/σ)/σ and ξ_ii = 1 − Σ_{j≠i} ξ_ij.

    Huang et al. 2021, Algorithm 1, with A(x) = 1 − exp(−x/σ). w_j is the newest model of client j; a client that has
    never answered weighs nothing for others, and its own w_j is the initial model. Distances are those of the
    parameters, without BatchNorm's running statistics, which are mixed with the same weights.

    Parameters
    ----------
    alpha : float
        Step α of the mixture.
    sigma : float
        Range σ of the attention, in units of squared distance.
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
        """Nothing to prepare."""

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep the client's newest model."""
        self.newest[client.id] = shared

    def finish(self) -> None:
        """Mix all clients' next models from one snapshot.

        Raises
        ------
        ConfigError
            The others' weights of a client reach 1, so that its own model would count nothing or less.
        """
        others = attention(self.newest[:, self._parameters], self.alpha, self.sigma)
        np.fill_diagonal(others, 0.0)
        others[:, sorted(self.clients.keys() - set(self.answered_before()))] = 0.0
        totals = others.sum(axis=1)
        if totals.max() >= 1:
            allowed = (
                f"the others' weights of client {totals.argmax()} add up to {totals.max():.3g} in round "
                f"{self.round}, they must stay below 1; more than fedamp-alpha × (clients − 1) = "
                f"{self.alpha * (len(totals) - 1):g} is always enough"
            )
            raise ConfigError("fedamp-sigma", self.sigma, allowed)
        self.for_clients = mix(others + np.diag(1 - totals), self.newest)
        self.note("self-weight", 1 - totals.mean())


def attention(vectors: np.ndarray, alpha: float, sigma: float) -> np.ndarray:
    """Return α·exp(−‖w_i − w_j‖²/σ)/σ for every two rows, shape (clients, clients)."""
    products = inner_products(vectors, centred=True)
    norms = np.diag(products)
    distances = np.maximum(norms[:, None] + norms[None, :] - 2 * products, 0)
    weights: np.ndarray = alpha / sigma * np.exp(-distances / sigma)
    return weights
