"""Flower's ``Result`` of a run in fedpfl's own loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from ..core.checksummed_files import read_arrays
from ..engine.listener import Listener
from ..results.round_record import Round
from ..results.run_folder import GLOBAL, RunFolder
from ..rules import Rule
from .messages import Names
from .reported_numbers import EPSILON

logger = getLogger("flwr")

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


class ResultRecorder(Listener):
    """Makes Flower's ``Result`` of a run in fedpfl's own loop, and calls ``evaluate_fn``."""

    def __init__(self, evaluate_fn: EvaluateFunction | None, names: Callable[[RunFolder], Names]) -> None:
        self.result, self._evaluate_fn, self._names = Result(), evaluate_fn, names
        self._had_rounds = False

    def run_started(self, folder: RunFolder, remarks: Sequence[str]) -> None:
        """Find the names of the arrays."""
        self._folder, self._plain = folder, self._names(folder)

    def run_ended(self, reason: str) -> None:
        """Take the arrays of a run that was resumed and had no round left."""
        if reason or self._had_rounds:
            return
        stored = self._folder.path / GLOBAL
        if stored.is_file():
            arrays = read_arrays(stored)
            self.result.arrays = ArrayRecord({self._plain(name): Array(array) for name, array in arrays.items()})
        no_round = "fedpfl: no round was left; the result has the run's last arrays, if all clients get the same"
        logger.log(WARNING, no_round)

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Keep a round's metrics, and the arrays that it has made."""
        self._had_rounds = True
        arrays = rule.layout.unflatten(rule.common)
        self.result.arrays = ArrayRecord({self._plain(name): Array(array) for name, array in arrays.items()})
        # The mean over samples, as in Flower's loop.
        trained = [metrics for metrics in done.trained.values() if "train-loss" in metrics]
        weights = [metrics["train-samples"] for metrics in trained]
        means: dict[str, Any] = {}
        if sum(weights):
            means["train-loss"] = float(np.average([metrics["train-loss"] for metrics in trained], weights=weights))
        if done.privacy:
            means[EPSILON] = done.privacy["epsilon"]
        if means:
            self.result.train_metrics_clientapp[done.number] = MetricRecord(means)
        scores = {}
        for model in ("personalised", "global"):
            test = done.line.get(model, {})
            of_test = {"accuracy": test.get("weighted", test.get("accuracy")), "loss": test.get("loss")}
            scores.update({f"{model}-{name}": mean for name, mean in of_test.items() if mean is not None})
        if scores:
            self.result.evaluate_metrics_clientapp[done.number] = MetricRecord(scores)
        if self._evaluate_fn and (metrics := self._evaluate_fn(done.number, self.result.arrays)) is not None:
            self.result.evaluate_metrics_serverapp[done.number] = metrics
        return False
