"""The running mean of vectors, and how a rule averages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .norms import ROOM

if TYPE_CHECKING:
    from torch import Tensor

# Values that are added at a time: they stay in a core's cache, and no copy of a whole vector is made.
BLOCK = 1 << 15
# Neighbours in a round of many clients are added up by themselves first: groups of a round at least, clients at most.
MIN_GROUPS, MAX_GROUP = 128, 16


class RunningMean:
    """Σ a_i·w_i / Σ a_i, added up in float64 one vector after the other; the mean of equal vectors is that vector."""

    def __init__(self, size: int) -> None:
        """Begin at 0."""
        self._sum = np.zeros(size, np.float64)
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

    def add_rows(self, rows: Sequence[Tensor], weights: Sequence[float], groups: Sequence[int | None]) -> None:
        """Add vectors where they were computed, with the bits of :meth:`add` called with one after the other.

        Those at the same place in their groups are added at once.
        """
        import torch

        device = rows[0].device
        # Where each group begins and ends; who is in none is added by itself.
        begins = [i for i, group in enumerate(groups) if not i or group is None or group != groups[i - 1]]
        spans = list(zip(begins, [*begins[1:], len(rows)]))
        if groups[0] is None or groups[0] != self._group:
            self._end_group()
        total = torch.tensor(self._sum, device=device)
        several = max(1, ROOM // max(1, total.numel() * 8))
        for first in range(0, len(spans), several):
            some = spans[first : first + several]
            longest_first = sorted(some, key=lambda span: span[0] - span[1])
            sums = torch.zeros(len(some), total.numel(), dtype=torch.float64, device=device)
            if self._part is not None:
                sums[longest_first.index(some[0])] = torch.tensor(self._part.total(), device=device)
                self._part = None
            for place in range(longest_first[0][1] - longest_first[0][0]):
                there = [begin + place for begin, end in longest_first if begin + place < end]
                factors = torch.tensor([weights[i] for i in there], dtype=torch.float64, device=device)
                # Two steps: a GPU would round their fusion differently.
                products = torch.stack([rows[i] for i in there]).double().mul_(factors[:, None])
                sums[: len(there)].add_(products)
            for span in some:
                of_group = sums[longest_first.index(span)]
                if span is spans[-1] and groups[-1] is not None:  # it may go on
                    self._part, self._group = RunningMean(total.numel()), groups[-1]
                    self._part._sum = of_group.clone().cpu().numpy()
                else:
                    total.add_(of_group)
        self._sum = total.cpu().numpy()
        for weight in weights:
            self._weights += weight

    def _add(self, vector: np.ndarray, weight: float) -> None:
        for start in range(0, len(vector), BLOCK):
            values = vector[start : start + BLOCK]
            product = self._block[: len(values)]
            product[...] = values  # in float64, as all that follows
            np.multiply(product, weight, out=product)
            total = self._sum[start : start + BLOCK]
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
    """The average of a rule: the running mean, in which clients count with all their samples."""

    #: Whether each vector is looked at by itself, so that none may stay where it was computed.
    looks_at_each = False

    def mean(self, size: int, start: np.ndarray | None = None) -> RunningMean:
        """Return an average of vectors of this length, which are compared with ``start``, or with zeros."""
        return RunningMean(size)

    def largest_weight(self, samples: Sequence[float]) -> float:
        """Return with how many samples one of the clients that have so many counts at most."""
        return math.inf


def group_size(clients: int) -> int:
    """Return the number of neighbours in a round that are added up by themselves; 1 below 256 clients."""
    return min(MAX_GROUP, max(1, clients // MIN_GROUPS))
