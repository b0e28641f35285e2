"""The running mean of vectors, and how a rule averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

# Values that are added at a time: they stay in a core's cache, and no copy of a whole vector is made.
BLOCK = 1 << 15
# Neighbours in a round of many clients are added up by themselves first: groups of a round at least, clients at most.
MIN_GROUPS, MAX_GROUP = 128, 16


class RunningMean:
    """Σ a_i·w_i / Σ a_i, added up in float64 one vector after the other; the mean of equal vectors is that vector."""

    def __init__(self, size: int, room: np.ndarray | None = None) -> None:
        """Begin at 0, in ``room`` if there is memory for the sum: float64, shape (size,)."""
        if room is not None:
            room.fill(0)
        self._sum = np.zeros(size, np.float64) if room is None else room
        self._weights = 0.0
        self._block = np.empty(min(size, BLOCK), np.float64)
        # The sum of the group that is being added, and its number.
        self._part: RunningMean | None = None
        self._group: int | None = None

    def add(self, vector: np.ndarray, weight: float, group: int | None = None) -> None:
        """Add a vector, shape (size,), with its weight, at least 0.

        Vectors of one ``group``, which follow each other, are added up by themselves first.
        """
        if group != self._group:
            self._end_group()
            self._group = group
        if group is None:
            self._add(vector, weight)
        else:
            self._part = self._part or RunningMean(len(self._sum))
            self._part.add(vector, weight)
        self._weights += weight

    def add_sum(self, total: np.ndarray, weights: Iterable[float]) -> None:
        """Add the sum of a group's vectors times their weights, float64, as if each vector had been added."""
        self._end_group()
        self._sum += total
        for weight in weights:
            self._weights += weight

    def _add(self, vector: np.ndarray, weight: float) -> None:
        for at in range(0, len(vector), BLOCK):
            values = vector[at : at + BLOCK]
            product = self._block[: len(values)]
            product[...] = values  # in float64, as all that follows
            np.multiply(product, weight, out=product)
            total = self._sum[at : at + BLOCK]
            np.add(total, product, out=total)

    def _end_group(self) -> None:
        if self._part is not None:
            self._sum += self._part.total()
        self._part = self._group = None

    def add_trusted(self, vector: np.ndarray, weight: float) -> None:
        """Add a vector of the server's, which no robust estimate has to doubt."""
        self.add(vector, weight)

    def disturb(self, noise: Callable[[np.ndarray], np.ndarray]) -> None:
        """Add to the sum what ``noise`` makes for it."""
        self._sum += noise(self.total())

    @property
    def weights(self) -> float:
        """The sum of the weights."""
        return self._weights

    def total(self) -> np.ndarray:
        """Return the mean times the sum of the weights, float64, shape (size,)."""
        self._end_group()
        return self._sum

    def value(self) -> np.ndarray:
        """Return the mean as float32, shape (size,)."""
        total = self.total()
        # Straight into float32: another float64 vector would be two more copies of the model.
        mean = np.empty(len(total), np.float32)
        np.divide(total, self._weights, out=mean, dtype=np.float64)
        return mean


class Averages:
    """How a rule averages: by the running mean, in which clients count with all their samples."""

    #: Whether each vector is looked at by itself, so that workers may not add them up.
    looks_at_each = False

    def mean(self, size: int, start: np.ndarray | None = None) -> RunningMean:
        """Return what averages vectors of this length, which are compared with ``start``, or with zeros."""
        return RunningMean(size)

    def largest_weight(self, samples: Sequence[int]) -> float:
        """Return with how many samples one of the clients that have so many counts at most."""
        return math.inf


def group_size(clients: int) -> int:
    """Return how many neighbours of a round with that many clients are added up by themselves; 1 below 256 clients."""
    return min(MAX_GROUP, max(1, clients // MIN_GROUPS))
