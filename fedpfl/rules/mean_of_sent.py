"""The mean of each value over the clients that sent it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from .rule import Rule


class MeanOfSent(Rule):
    """The plain mean of each value over the clients that sent it; one that nobody sent stays.

    A rule's ``add`` calls :meth:`add_values`.
    """

    no_robust_mean: ClassVar[str] = "averages each value over other clients"

    def begin(self) -> None:
        """Start the sums at zero."""
        self._sums, self._counts = np.zeros(self.layout.size), np.zeros(self.layout.size, np.int64)

    def add_values(self, where: np.ndarray, values: np.ndarray) -> None:
        """Add a client's values; ``where`` has their positions in the shared vector, or marks them."""
        self._sums[where] += values
        self._counts[where] += 1

    def finish(self) -> None:
        """Divide."""
        means = self._sums / np.maximum(self._counts, 1)
        self.shared = np.where(self._counts > 0, means, self.shared).astype(np.float32)

    @property
    def share_sent(self) -> float:
        """The share of the values that a client sent in this round."""
        return float((self._counts > 0).mean())
