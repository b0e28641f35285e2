"""Means whose weights differ between the parts of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.errors import LayoutError
from ...core.layout import rounded
from ...core.payload import Payload
from ...core.server_view import Client, Federation
from ...rules.rule import Rule
from .rebalance import THRESHOLDS


class MeanByPart(Rule):
    """w ← Σ a_i·w_i / Σ a_i for each array, over the clients that answered; a_i is the array's own kind of weight.

    ``weight_of`` returns, by an array's name, the metric in the replies that weighs it, a number of training samples.
    """

    name = "mean-by-part"
    no_server_step = ""
    no_robust_mean = ""

    def __init__(self, federation: Federation, shared: np.ndarray, weight_of: Callable[[str], str]) -> None:
        super().__init__(federation, shared)
        self._places: dict[str, list[slice]] = {}
        for name, place in self.layout.slices().items():
            self._places.setdefault(weight_of(name), []).append(place)

    def begin(self) -> None:
        """Start the sums at zero."""
        start = self._parts(rounded(self.shared, self.federation.wire_dtype))
        self._means = {metric: self.averaging(len(part), part) for metric, part in start.items()}

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Require each weight, and that it counts no more samples than the client has."""
        for metric in self._places:
            weight = reply.metrics.get(metric)
            if weight is None or not 0 <= weight <= client.train_samples:
                raise LayoutError(f"its reply lacks a proper {metric}: {weight}")

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add a_i·w_i, part by part."""
        for metric, part in self._parts(shared).items():
            self._means[metric].add(part, reply.metrics[metric] * self.damping(client))

    def finish(self) -> None:
        """Divide by the sums of the weights; a part for which no client has samples stays as it is."""
        new = self.shared.copy()
        for metric, mean in self._means.items():
            if mean.weights:
                ends = np.cumsum([place.stop - place.start for place in self._places[metric]])[:-1]
                for place, values in zip(self._places[metric], np.split(mean.value(), ends)):
                    new[place] = values
        self.shared = new

    def _parts(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the part of a vector that each metric weighs."""
        return {metric: np.concatenate([vector[place] for place in places]) for metric, places in self._places.items()}


class MeanOfRebalanced(MeanByPart):
    """The rule of FedReG (Equations 4 and 5), which tells clients the threshold for their rebalanced data."""

    name = "mean-of-rebalanced"
    no_server_step = ""
    reads = ("effective-samples",)
    no_robust_mean = ""

    def __init__(self, federation: Federation, shared: np.ndarray, threshold: str, **options: Any) -> None:
        super().__init__(federation, shared, **options)
        self.threshold = float(THRESHOLDS[threshold]([client.train_samples for client in self.participants]))

    def attachments(self, client: Client, kind: str) -> Payload:
        """Send t, in samples, with training."""
        return Payload({"rebalance-threshold": self.threshold}) if kind == "train" else Payload()
