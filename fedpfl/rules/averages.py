"""How vectors are averaged: the running mean, and estimates of it that some false vectors cannot move far.

``clip`` scales long updates down, as Sun, Kairouz, Suresh, McMahan: Can You Really Backdoor Federated Learning?, 2019.
``median`` and ``trimmed-mean`` are Options I and II of Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed
Learning: Towards Optimal Statistical Rates, ICML 2018. ``krum`` is multi-Krum of Blanchard, El Mhamdi, Guerraoui,
Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, NeurIPS 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.errors import ConfigError
from ..core.privacy import clipped
from ..core.settings import items, setting
from .norms import distance

# Values that are added at a time: they stay in a core's cache, and no copy of a whole vector is made.
BLOCK = 1 << 15
# Neighbours in a round of many clients are added up by themselves first: groups of a round at least, clients at most.
MIN_GROUPS, MAX_GROUP = 128, 16
# Values of all clients' vectors that are compared at a time.
ROWS_BLOCK = 1 << 12

# The settings that an estimate reads.
READS = {
    "none": (),
    "clip": ("robust-clip",),
    "median": (),
    "trimmed-mean": ("robust-false-share",),
    "krum": ("robust-false-share", "krum-clients"),
}


@dataclass(frozen=True)
class RobustSettings:
    """What the server does about clients that send false updates."""

    update_norm_limit: float = setting(
        4.0,
        "Factor f: refuse a client's update whose norm exceeds f · max(norm of the shared vector, 5 · median norm of "
        "recent updates). 0: no limit besides that of the number type (docs/robustness.md).",
        minimum=0,
    )
    robust_aggregation: str = setting(
        "none",
        "Replacement for the mean, in methods whose rule is a mean. clip: mean of shortened updates. median: median "
        "of each value. trimmed-mean: mean of each value without the extremes. krum: mean of the updates closest to "
        "most others. The last three give all clients equal weight.",
        choices=tuple(READS),
    )
    robust_clip: float = setting(
        0.0, "clip: norm to which longer updates are shortened. 0: the round's median norm.", minimum=0
    )
    robust_false_share: float = setting(
        0.2,
        "trimmed-mean, krum: share of a round's clients that may be malicious, rounded up. trimmed-mean drops this "
        "many of the largest and of the smallest values.",
        minimum=0,
        maximum=0.49,
    )
    krum_clients: int = setting(
        0, "krum: number of updates to average. 1: Krum. 0: all except as many as may be malicious.", minimum=0
    )
    max_weight_share: float = setting(
        1.0,
        "Maximum weight of one client, as a share of the samples of all clients asked in a round. Below 1 / clients "
        "all clients have equal weight.",
        above=0,
        maximum=1,
    )

    @property
    def on(self) -> bool:
        """Whether something takes the mean's place."""
        return self.robust_aggregation != "none"

    @property
    def keeps_all(self) -> bool:
        """Whether all vectors of a round are kept until the last has arrived."""
        return self.on and not (self.robust_aggregation == "clip" and self.robust_clip)

    def require_enough(self, asked: int) -> None:
        """Raise :class:`ConfigError` if krum has too few clients in a round: it needs n > 2f + 2."""
        false = count_false(self.robust_false_share, asked)
        if self.robust_aggregation == "krum" and asked <= 2 * false + 2:
            allowed = f"krum needs more than 2 × {false} + 2 clients in a round, of which {false} may be false"
            raise ConfigError("robust-false-share", self.robust_false_share, f"{allowed}; {asked} are asked")

    def remarks(self, asked: int, shared: int) -> list[str]:
        """Return what to know before round 1, given the clients asked in a round and the number of shared values."""
        default = dict(items(RobustSettings()))
        always = ("update-norm-limit", "robust-aggregation", "max-weight-share", *READS[self.robust_aggregation])
        idle = [key for key, value in items(self) if value != default[key] and key not in always]
        found = [f"not used with robust-aggregation = {self.robust_aggregation}: {', '.join(idle)}"] if idle else []
        if self.on and not shared:
            found.append("robust-aggregation does nothing: no model's arrays are shared")
        elif self.keeps_all:
            size = f"{asked} clients × {shared} values × 4 bytes = {asked * shared * 4 / 2**20:.1f} MiB"
            found.append(f"robust-aggregation = {self.robust_aggregation} keeps all vectors of a round: {size}")
        return found


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


class ClippedMean(RunningMean):
    """The mean of start + u_i·min(1, C / ‖u_i‖), where u_i is vector i less the start and C the norm."""

    def __init__(self, start: np.ndarray, norm: float) -> None:
        super().__init__(len(start))
        self._start, self._norm = start, norm

    def add(self, vector: np.ndarray, weight: float, group: int | None = None) -> None:
        """Shorten the update and add it."""
        super().add(self._start + clipped(self._start, vector, self._norm), weight, group)


class RobustMean(RunningMean):
    """An estimate of the mean for which all vectors are looked at together."""

    def __init__(self, start: np.ndarray, settings: RobustSettings) -> None:
        super().__init__(len(start))
        self._start, self._settings = start, settings
        self._vectors: list[np.ndarray] = []
        self._given: list[float] = []

    def add(self, vector: np.ndarray, weight: float, group: int | None = None) -> None:
        """Keep a vector."""
        self._vectors.append(vector)
        self._given.append(weight)
        self._weights += weight

    def add_trusted(self, vector: np.ndarray, weight: float) -> None:
        """Have a vector count in the mean of the estimate and the server's own vectors."""
        super().add(vector, weight)

    def total(self) -> np.ndarray:
        """Return the estimate times the weights of its vectors, plus the trusted vectors times theirs."""
        found: np.ndarray = self._sum + sum(self._given) * self._estimate()
        return found

    def value(self) -> np.ndarray:
        """Return the estimate, in a mean with the trusted vectors if there are any: float32, shape (size,)."""
        alone = self._weights == sum(self._given)
        value: np.ndarray = self._estimate() if alone else self.total() / self._weights
        return value.astype(np.float32)

    def _estimate(self) -> np.ndarray:
        settings, count = self._settings, len(self._vectors)
        false = count_false(settings.robust_false_share, count)
        if settings.robust_aggregation == "clip":
            return clipped_mean(self._vectors, self._given, self._start)
        if settings.robust_aggregation == "krum":
            chosen = krum(self._vectors, self._start, false, settings.krum_clients)
            return trimmed_mean([self._vectors[i] for i in chosen], 0)
        return trimmed_mean(self._vectors, count if settings.robust_aggregation == "median" else false)


def averaging(settings: RobustSettings, size: int, start: np.ndarray | None = None) -> RunningMean:
    """Return what averages vectors of this length, which are compared with ``start``, or with zeros."""
    if not settings.on:
        return RunningMean(size)
    start = np.zeros(size, np.float32) if start is None else start
    return RobustMean(start, settings) if settings.keeps_all else ClippedMean(start, settings.robust_clip)


def group_size(clients: int) -> int:
    """Return how many neighbours of a round with that many clients are added up by themselves; 1 below 256 clients."""
    return min(MAX_GROUP, max(1, clients // MIN_GROUPS))


def count_false(share: float, clients: int) -> int:
    """Return how many of that many clients a share is, rounded up."""
    return math.ceil(share * clients - 1e-9)


def clipped_mean(vectors: Sequence[np.ndarray], weights: Sequence[float], start: np.ndarray) -> np.ndarray:
    """Return the weighted mean of the vectors, of which the longer half is shortened to the median length.

    Lengths are those of the differences from ``start``.
    """
    mean = ClippedMean(start, float(np.median([distance(vector, start) for vector in vectors])))
    for vector, weight in zip(vectors, weights):
        mean.add(vector, weight)
    return mean.total() / mean.weights


def trimmed_mean(vectors: Sequence[np.ndarray], dropped: int) -> np.ndarray:
    """Return each value's mean (float64) without the ``dropped`` largest and smallest; one or two values at least stay.

    It is the median if ``dropped`` is as large as can be.
    """
    count = len(vectors)
    dropped = min(dropped, (count - 1) // 2)
    places = (dropped, count - 1 - dropped)
    found = np.empty(len(vectors[0]), np.float64)
    for place, rows in _blocks(vectors):
        stay = np.partition(rows, places, axis=0)[dropped : count - dropped] if dropped else rows
        found[place] = stay.mean(axis=0, dtype=np.float64)
    return found


def krum(vectors: Sequence[np.ndarray], start: np.ndarray, false: int, chosen: int = 0) -> list[int]:
    """Return the positions of the vectors that are nearest to most others, in order.

    A vector's score is the sum of its squared distances to its n − f − 2 nearest others. Where n > 2f + 2 does not
    hold, the largest f with which it does is taken. The lowest ``chosen`` scores count (n − f if it is 0), of equal
    ones the first.
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
    best = np.argsort(scores, kind="stable")[: min(chosen, count) or count - false]
    return sorted(best.tolist())


def largest_weight(samples: Sequence[int], share: float) -> float:
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
    for at in range(0, len(vectors[0]), ROWS_BLOCK):
        place = slice(at, at + ROWS_BLOCK)
        yield place, np.stack([vector[place] for vector in vectors])
