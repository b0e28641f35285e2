"""One mean for all: FedAvg's rule, and that of most methods, which differ in what they share."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..payload import Payload
from .base import Client, PersonalisedStrategy


class Mean(PersonalisedStrategy):
    """w ← Σ a_i·w_i / Σ a_i over the clients that answered.

    The sums run in float64 in client order: the result is the same to the bit in every order of arrival, and the mean
    of equal vectors is that vector.

    Parameters
    ----------
    weights : str
        ``examples``: a_i is the number of training samples (McMahan et al. 2017, Algorithm 1); ``uniform``: 1.
    absent : str
        ``skip``: only clients that answered count; ``last``: the others count with the mean of the last round, as in
        FedDecomp's published code.
    """

    rule = "mean"

    def __init__(self, *args: Any, weights: str = "examples", absent: str = "skip", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.weights = weights
        self.absent = absent

    def begin(self, server_round: int) -> None:
        """Start the sums at zero."""
        self._sum = np.zeros(self.layout.size, np.float64)
        self._answered: set[int] = set()

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add a_i·w_i."""
        self._sum += self._weight(client) * shared.astype(np.float64)
        self._answered.add(client.id)

    def finish(self) -> None:
        """Divide by the sum of the weights."""
        if self.absent == "last":
            missing = sum(self._weight(c) for c in self.clients.values() if c.id not in self._answered)
            self._sum += missing * self.shared.astype(np.float64)
            counted = set(self.clients)
        else:
            counted = self._answered
        total = sum(self._weight(self.clients[i]) for i in sorted(counted))
        self.shared = (self._sum / total).astype(np.float32)

    def _weight(self, client: Client) -> float:
        return float(client.train_samples) if self.weights == "examples" else 1.0
