"""Estimates of the mean that some false vectors cannot move far.

``clip`` scales long updates down, as Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019.
``median`` and ``trimmed-mean`` are Options I and II of Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed
Learning: Towards Optimal Statistical Rates, ICML 2018. ``krum`` is multi-Krum of Blanchard, El Mhamdi, Guerraoui,
Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..core.errors import ConfigError
from ..core.vectors import clipped
from ..rules.norms import distance
from ..rules.rule import Rule
from ..rules.running_mean import Averages, RunningMean
from .options.robust import RobustSettings

# Values of all clients' vectors that are compared at a time.
ROWS_BLOCK = 1 << 12


class RobustMean(RunningMean):
    """An estimate of the mean for which all vectors are looked at together."""

    def __init__(self, start: np.ndarray, settings: RobustSettings) -> None:
        super().__init__(len(start))
        self._start, self._settings = start, settings
        self._vectors: list[np.ndarray] = []
        self._client_weights: list[float] = []

    def add(self, vector: np.ndarray, weight: float, group: int | None = None) -> None:
        """Keep a vector."""
        self._vectors.append(vector)
        self._client_weights.append(weight)
        self._weights += weight

    def add_trusted(self, vector: np.ndarray, weight: float) -> None:
        """Have a vector count in the mean of the estimate and the server's own vectors."""
        super().add(vector, weight)

    def total(self) -> np.ndarray:
        """Return the estimate times the weights of its vectors, plus the trusted vectors times theirs."""
        total: np.ndarray = self._sum + sum(self._client_weights) * self._estimate()
        return total

    def value(self) -> np.ndarray:
        """Return the estimate, in a mean with the trusted vectors if there are any: float32, shape (size,)."""
        alone = self._weights == sum(self._client_weights)
        value: np.ndarray = self._estimate() if alone else self.total() / self._weights
        return value.astype(np.float32)

    def _estimate(self) -> np.ndarray:
        settings, count = self._settings, len(self._vectors)
        false = count_false(settings.robust_false_share, count)
        if settings.robust_aggregation == "clip":
            return clipped_mean(self._vectors, self._client_weights, self._start)
        if settings.robust_aggregation == "krum":
            chosen = krum(self._vectors, self._start, false)
            return trimmed_mean([self._vectors[i] for i in chosen], 0)
        return trimmed_mean(self._vectors, count if settings.robust_aggregation == "median" else false)


class RobustAverages(Averages):
    """Averages as the settings say."""

    def __init__(self, settings: RobustSettings) -> None:
        self._settings = settings
        self.looks_at_each = settings.on

    def mean(self, size: int, start: np.ndarray | None = None) -> RunningMean:
        """Return the mean, or what takes its place."""
        settings = self._settings
        if not settings.on:
            return RunningMean(size)
        start = np.zeros(size, np.float32) if start is None else start
        return RobustMean(start, settings)

    def largest_weight(self, samples: Sequence[float]) -> float:
        """Return the bound of ``max-weight-share``."""
        return largest_weight(samples, self._settings.max_weight_share)


def make_robust(config: Any, rule: Rule) -> None:
    """Have a rule average as the settings say; ``ConfigError`` if krum has too few clients in a round."""
    settings, asked = config.of(RobustSettings), config.run.asked(len(rule.participants))
    false = count_false(settings.robust_false_share, asked)
    if settings.robust_aggregation == "krum" and asked <= 2 * false + 2:  # it needs n > 2f + 2
        allowed = (
            f"krum needs at least {2 * false + 3} clients in a round if {false} may be malicious; {asked} are asked"
        )
        raise ConfigError("robust-false-share", settings.robust_false_share, allowed)
    rule.averages = RobustAverages(settings)


def count_false(share: float, clients: int) -> int:
    """Return how many of that many clients a share is, rounded up."""
    return math.ceil(share * clients - 1e-9)


def clipped_mean(vectors: Sequence[np.ndarray], weights: Sequence[float], start: np.ndarray) -> np.ndarray:
    """Return the mean of start + u·min(1, C / ‖u‖), where u are the updates and C is their median length."""
    mean, norm = RunningMean(len(start)), float(np.median([distance(vector, start) for vector in vectors]))
    for vector, weight in zip(vectors, weights):
        mean.add(start + clipped(start, vector, norm), weight)
    return mean.total() / mean.weights


def trimmed_mean(vectors: Sequence[np.ndarray], dropped: int) -> np.ndarray:
    """Return each value's mean (float64) without the ``dropped`` largest and smallest; at most, the median."""
    count = len(vectors)
    dropped = min(dropped, (count - 1) // 2)
    places = (dropped, count - 1 - dropped)
    means = np.empty(len(vectors[0]), np.float64)
    for place, rows in _blocks(vectors):
        stay = np.partition(rows, places, axis=0)[dropped : count - dropped] if dropped else rows
        means[place] = stay.mean(axis=0, dtype=np.float64)
    return means


def krum(vectors: Sequence[np.ndarray], start: np.ndarray, false: int) -> list[int]:
    """Return the positions of the vectors that are nearest to most others, in order.

    A vector's score is the sum of its squared distances to its n − f − 2 nearest others. Where n > 2f + 2 does not
    hold, the largest f with which it does is taken. The lowest n − f scores count, of equal ones the first.
    """
    count = len(vectors)
    false = max(0, min(false, (count - 3) // 2))
    near = max(1, count - false - 2)
    products = np.zeros((count, count))
    at_start = _blocks([start])
    for (_, rows), (_, origin) in zip(_blocks(vectors), at_start):
        # From the start, not from the mean, which one vector of huge values takes far from all others.
        updates = rows.astype(np.float64) - origin
        products += updates @ updates.T
    squares = np.diag(products)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)
    np.fill_diagonal(distances, np.inf)  # never among a vector's nearest
    scores = np.sort(distances, axis=1)[:, : min(near, count - 1)].sum(axis=1)
    best = np.argsort(scores, kind="stable")[: count - false]
    return sorted(best.tolist())


def largest_weight(samples: Sequence[float], share: float) -> float:
    """Return the largest c for which no min(n_i, c) is more than ``share`` of Σ_j min(n_j, c); infinity if none is.

    Where a share is below 1 / (number of n_i above 0), no c is small enough, and the least n_i makes all alike.
    """
    falling = sorted((n for n in samples if n > 0), reverse=True)
    rest = float(sum(falling))
    if not falling or falling[0] <= share * rest:
        return math.inf
    for count, n in enumerate(falling, 1):
        rest -= n
        if share * count >= 1:
            break
        largest = share * rest / (1 - share * count)  # c = share·(count·c + rest)
        if count < len(falling) and largest >= falling[count]:
            return largest
    return float(falling[-1])


def _blocks(vectors: Sequence[np.ndarray]) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield places, and what vectors of one length have there: shape (vectors, values)."""
    for start in range(0, len(vectors[0]), ROWS_BLOCK):
        place = slice(start, start + ROWS_BLOCK)
        yield place, np.stack([vector[place] for vector in vectors])
