"""Accounting of privacy: the budget that releases with Gaussian noise spend, and the noise that a budget takes.

T releases with noise z (in units of the largest difference that one client makes) are one with z / √T: with µ = √T / z,
δ(ε) = Φ(µ/2 − ε/µ) − e^ε Φ(−µ/2 − ε/µ) is exact (Balle and Wang: Improving the Gaussian Mechanism for Differential
Privacy, ICML 2018, theorem 8; Dong, Roth, Su: Gaussian Differential Privacy, 2022, corollary 3.3). Releases with
different noise add up in µ².
"""

from __future__ import annotations

import math
from typing import Callable

# Below it Φ is made of its series: erfc has no digits left at −37.
_FAR = -25.0


def epsilon(mu: float, delta: float) -> float:
    """Return the least ε for which releases with this µ together are (ε, δ)-private."""
    if mu == 0 or _delta(0.0, mu) <= delta:
        return 0.0
    if math.isinf(mu):
        return math.inf
    # Enough by the tail bound of the Gaussian distribution of the privacy loss, whose mean is µ²/2 and deviation µ.
    enough = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    return _bisect(lambda e: _delta(e, mu) > delta, 0.0, enough)[1]


def noise_multiplier(budget: float, delta: float, releases: int) -> float:
    """Return the least z with which that many releases together are (budget, δ)-private."""
    high = 1.0
    while _delta(budget, high) <= delta:
        high *= 2
    mu = _bisect(lambda mu: _delta(budget, mu) <= delta, 0.0, high)[0]
    return math.sqrt(releases) / mu * (1 + 1e-12)  # whatever the last bits of ε are


def most_draws(rounds: int, share: float, tail: float = 1e-6) -> int:
    """Return the largest number of rounds that draw a client with this probability each, but for the tail."""
    if share >= 1:
        return rounds
    beyond, chance = 1.0, math.log(share / (1 - share))
    for count in range(rounds):
        ways = math.lgamma(rounds + 1) - math.lgamma(count + 1) - math.lgamma(rounds - count + 1)
        beyond -= math.exp(ways + rounds * math.log1p(-share) + count * chance)
        if beyond <= tail:
            return max(1, count)
    return rounds


def _delta(budget: float, mu: float) -> float:
    first = _log_normal(mu / 2 - budget / mu)
    return math.exp(first) - math.exp(min(first, budget + _log_normal(-mu / 2 - budget / mu)))


def _log_normal(x: float) -> float:
    """Return log Φ(x)."""
    if x > _FAR:
        return math.log(math.erfc(-x / math.sqrt(2)) / 2)
    inverse = 1 / (x * x)
    series = 1 - inverse * (1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse * (1 - 9 * inverse))))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log(series)


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return two neighbours between two numbers: what holds at the first one does not at the second."""
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
