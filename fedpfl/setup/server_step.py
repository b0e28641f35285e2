"""A step of the server from what clients started from towards their mean, by an optimiser of the server's own.

``momentum`` is FedAvgM (Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019). ``adam`` and ``yogi`` are FedAdam and FedYogi (Reddi, Charles, Zaheer, Garrett, Rush, Konečný,
Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021, Algorithm 2).
"""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from ..core.errors import ConfigError
from ..core.layout import Layout
from ..core.metric_bounds import LARGEST
from ..core.sharing import is_parameter
from ..core.vectors import largest_of
from ..rules.rule import Rule, Step
from .options.server_step import ServerStepSettings

# 0.01 is the best first step, or close to it, in most tasks of Reddi et al.
ADAPTIVE_LEARNING_RATE = 0.01

# β₂ and τ of adam and yogi; the larger τ is, the less the step adapts to each parameter.
BETA2, TAU = 0.99, 0.001


class ServerStep(Step):
    """w ← w + η·step(Δ), where Δ is the mean less w, and w what the clients started from.

    ``momentum``: m ← β₁·m + Δ, step m. ``adam`` and ``yogi``: m ← β₁·m + (1 − β₁)·Δ, step m / (√v + τ), with v ← β₂·v +
    (1 − β₂)·Δ² or v ← v − (1 − β₂)·Δ²·sign(v − Δ²). m starts at 0 and v at τ², the least that the paper allows. As
    there, m and v are not corrected for their start.

    BatchNorm's running statistics are no weights, and a step could make a variance negative: their mean is taken.
    """

    def __init__(self, settings: ServerStepSettings, layout: Layout) -> None:
        self.settings = settings
        momentum = settings.server_optimizer == "momentum"
        default = 1 - settings.server_momentum if momentum else ADAPTIVE_LEARNING_RATE
        self.rate = settings.server_learning_rate or default
        self._parameters = is_parameter(layout)
        self.m = np.zeros(layout.size, np.float64)
        self.v = np.full(layout.size, TAU**2, np.float64)

    def __call__(self, start: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return the new shared vector from what the clients started from and the mean of what they sent."""
        way = mean.astype(np.float64) - start
        # From the mean, not from the start: a step that is the whole way ends at the mean to the bit.
        beyond = self.rate * self._direction(way) - way
        with np.errstate(over="ignore"):
            stepped: np.ndarray = (mean + np.where(self._parameters, beyond, 0.0)).astype(np.float32)
        if not (largest := largest_of(stepped)) <= max(LARGEST, largest_of(mean)):
            allowed = f"leads to a shared value of {largest:g}, and no model computes beyond {LARGEST:g}; take less"
            raise ConfigError("server-learning-rate", self.rate, allowed)
        return stepped

    def _direction(self, way: np.ndarray) -> np.ndarray:
        kind, beta1, beta2 = self.settings.server_optimizer, self.settings.server_momentum, BETA2
        if kind == "momentum":
            self.m = beta1 * self.m + way
            return self.m
        square = np.square(way)
        self.m = beta1 * self.m + (1 - beta1) * way
        if kind == "adam":
            self.v = beta2 * self.v + (1 - beta2) * square
        else:
            self.v = self.v - (1 - beta2) * square * np.sign(self.v - square)
        adapted: np.ndarray = self.m / (np.sqrt(self.v) + TAU)
        return adapted

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays on which the next step depends, by names that no rule uses."""
        return {"server-m": self.m, "server-v": self.v}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore it."""
        self.m, self.v = state["server-m"], state["server-v"]


def add_step(config: Any, rule: Rule) -> None:
    """Have a rule end each round with the step of the settings."""
    rule.server_step = ServerStep(config.of(ServerStepSettings), rule.layout)
