"""One mean for all: FedAvg's rule, and that of most methods, which differ in what they share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.federation import Client, Federation
from ..core.layout import rounded
from ..core.payload import Payload
from ..core.privacy import without_negative_variances
from ..core.sharing import is_parameter
from .rule import Rule

# Values that are added at a time: they stay in a core's cache, and no copy of a whole vector is made.
BLOCK = 1 << 15


class RunningMean:
    """Σ a_i·w_i / Σ a_i, added up in float64 one vector after the other; the mean of equal vectors is that vector.

    Parameters
    ----------
    size : int
        Length of the vectors.
    """

    def __init__(self, size: int) -> None:
        self._sum = np.zeros(size, np.float64)
        self._weights = 0.0
        self._block = np.empty(min(size, BLOCK), np.float64)

    def add(self, vector: np.ndarray, weight: float) -> None:
        """Add a vector, shape (size,), with its weight, at least 0."""
        for at in range(0, len(vector), BLOCK):
            values = vector[at : at + BLOCK]
            product = self._block[: len(values)]
            product[...] = values  # in float64, as all that follows
            np.multiply(product, weight, out=product)
            total = self._sum[at : at + BLOCK]
            np.add(total, product, out=total)
        self._weights += weight

    def disturb(self, noise: Callable[[np.ndarray], np.ndarray]) -> None:
        """Add to the sum what ``noise`` makes for it."""
        self._sum += noise(self._sum)

    def value(self) -> np.ndarray:
        """Return the mean as float32, shape (size,)."""
        mean: np.ndarray = (self._sum / self._weights).astype(np.float32)
        return mean


class Mean(Rule):
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
    step : float
        How far the server moves from what it sent towards the mean: w ← (1 − step)·w + step·mean, above 0. BatchNorm's
        running statistics are averaged only: a step beyond the mean could make a variance negative.
    """

    name = "mean"
    only_a_sum = True
    no_server_step = ""

    def __init__(
        self,
        federation: Federation,
        shared: np.ndarray,
        weights: str = "examples",
        absent: str = "skip",
        step: float = 1.0,
    ) -> None:
        super().__init__(federation, shared)
        self.weights = weights
        self.absent = absent
        self.step = step

    def begin(self) -> None:
        """Start the sums at zero."""
        self._mean = RunningMean(self.layout.size)
        self._answered: set[int] = set()

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add a_i·w_i."""
        self._mean.add(shared, self._weight(client))
        self._answered.add(client.id)

    def finish(self) -> None:
        """Divide by the sum of the weights, and step."""
        sent = self.shared
        if self.absent == "last":
            missing = sum(self._weight(c) for c in self.participants if c.id not in self._answered)
            self._mean.add(self.shared, missing)
        if self.noise is not None:
            self._mean.disturb(self.noise)
            self.shared = without_negative_variances(self.layout, self._mean.value())
        else:
            self.shared = self._mean.value()
        if self.step != 1:
            # What the clients started from: `wire-dtype` may have rounded it.
            before = rounded(sent, self.federation.wire_dtype).astype(np.float64)
            stepped = (1 - self.step) * before + self.step * self.shared
            self.shared = np.where(is_parameter(self.layout), stepped, self.shared).astype(np.float32)

    def _weight(self, client: Client) -> float:
        # Noise on the sum hides a client only if none counts for more than the noise is made for.
        alike = self.weights == "uniform" or self.noise is not None
        return 1.0 if alike else float(client.train_samples)
