"""Strategies around a method's, such as Flower's for differential privacy, and what they do to its arrays."""

from __future__ import annotations

import inspect
from dataclasses import fields
from logging import WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from ..core.errors import ConfigError
from ..core.vectors import without_negative_variances
from ..engine.rounds import RoundLoop
from ..methods import Method
from ..rules import Rule
from .split import Split

logger = getLogger("flwr")


def wrapper_of(strategy: Strategy) -> Wrapper | None:
    """Return the wrapper whose hook has called one of the strategy's, which calls this function; None without one."""
    frame: Any = inspect.currentframe()
    assert frame is not None
    frame = frame.f_back
    while frame is not None and frame.f_locals.get("self") is strategy:
        frame = frame.f_back
    caller = None if frame is None else frame.f_locals.get("self")
    is_wrapper = isinstance(caller, Strategy) and getattr(caller, "strategy", None) is strategy
    return Wrapper(caller) if is_wrapper and caller is not None else None


class Wrapper:
    """A strategy that calls another one's hooks, and changes the arrays between them."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy, self._name = strategy, type(strategy).__name__

    @property
    def adds_noise(self) -> bool:
        """Tell whether it is one of Flower's for differential privacy."""
        return self._name.startswith("DifferentialPrivacy")

    def require_right(self, method: Method, arrays: ArrayRecord, split: Split | None, model: str = "") -> None:
        """Refuse a strategy with which it cannot be right: without ``split`` that is one with ``model``."""
        rule = method.aggregation.rule
        if not rule.one_model:
            raise _for_nobody(method, f"changed by {self._name}")
        if not self.adds_noise:
            return
        if split is None:
            message = f"cannot be given inside {self._name}, which sees named arrays alone: use dp_noise_multiplier="
            raise ConfigError("model", model, message)
        if not rule.only_a_sum:
            message = f"computes more of arrays than the mean that {self._name} adds noise to"
            raise ConfigError("method", method.name, message)
        if not split.takes(arrays) and [*arrays] != [*split.shared(arrays)]:
            message = f"{self._name} has to be started with strategy.shared(arrays)"
            raise ConfigError("initial_arrays", [*arrays], message)

    def require_right_noise(self, method: Method, loop: RoundLoop, weighted_by: str) -> None:
        """Refuse a round for which it makes too little noise: that of an equal mean of all who were asked."""
        if not self.adds_noise:
            return
        asked = getattr(self._strategy, "num_sampled_clients", 0)
        if len(loop.round.trained) < asked:
            message = f"{len(loop.round.trained)} replies count, and its noise is for the mean of so many"
            raise ConfigError("num_sampled_clients", asked, f"{self._name}: {message}")
        weights = {loop.rule.clients[client].train_samples for client in loop.round.trained}
        if method.aggregation.options.get("weights") != "uniform" and len(weights) > 1:
            message = f"must be equal in {self._name}, whose noise is for the mean of equal clients"
            has_weights = any(field.name == "weights" for field in fields(method.Settings))
            advice = "give weights='uniform'" if has_weights else "weighted_by_key= may name a metric that is"
            raise ConfigError(weighted_by, sorted(weights), f"{message}: {advice}")


def take_changed(method: Method, rule: Rule, vector: np.ndarray) -> None:
    """Have a rule go on from shared values that a wrapper or a subclass may have changed."""
    if np.array_equal(vector, rule.common):
        return
    if not np.isfinite(vector).all():
        raise ConfigError("arrays", "changed by a wrapper or a subclass", "hold values that are not finite")
    if not rule.one_model:
        raise _for_nobody(method, "changed by a wrapper")
    if not rule.only_a_sum:
        warning = "fedpfl: the rule of %s computes more of clients' arrays than the sum that a wrapper changes"
        logger.log(WARNING, warning, method.name)
    rule.shared = without_negative_variances(rule.layout, vector)


def _for_nobody(method: Method, change: str) -> ConfigError:
    message = f"{method.name} sends each client arrays of its own; changes of the shared ones would not reach them"
    return ConfigError("arrays", change, message)
