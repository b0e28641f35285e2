"""Means whose weights differ between the parts of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.errors import LayoutError
from ..core.federation import Client, Federation
from ..core.payload import Payload
from ..data.rebalance import THRESHOLDS
from .rule import Rule


class MeanByPart(Rule):
    """w ← Σ a_i·w_i / Σ a_i for each array, over the clients that answered; a_i is the array's own kind of weight.

    Parameters
    ----------
    weight_of : callable, str → str
        The metric in the clients' replies by which an array is weighted, by the array's name. It counts some of the
        client's training samples.
    """

    name = "mean-by-part"
    no_server_step = ""

    def __init__(self, federation: Federation, shared: np.ndarray, weight_of: Callable[[str], str]) -> None:
        super().__init__(federation, shared)
        self._places: dict[str, list[slice]] = {}
        for name, place in self.layout.slices().items():
            self._places.setdefault(weight_of(name), []).append(place)

    def begin(self) -> None:
        """Start the sums at zero."""
        self._sum = np.zeros(self.layout.size, np.float64)
        self._total = dict.fromkeys(self._places, 0.0)

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Require each weight, and that it counts no more samples than the client has."""
        for metric in self._places:
            weight = reply.metrics.get(metric)
            if weight is None or not 0 <= weight <= client.train_samples:
                raise LayoutError(f"its reply lacks a proper {metric}: {weight}")

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add a_i·w_i, part by part."""
        for metric, places in self._places.items():
            self._total[metric] += reply.metrics[metric]
            for place in places:
                self._sum[place] += reply.metrics[metric] * shared[place].astype(np.float64)

    def finish(self) -> None:
        """Divide by the sums of the weights; a part that nobody has samples for stays as it is."""
        new = self.shared.copy()
        for metric, places in self._places.items():
            for place in places if self._total[metric] else []:
                new[place] = self._sum[place] / self._total[metric]
        self.shared = new


class MeanOfRebalanced(MeanByPart):
    """The rule of FedReG (Equations 4 and 5), which tells clients the threshold for their rebalanced data.

    Parameters
    ----------
    threshold : str
        How t follows from the training samples of all clients, a key of :data:`~fedpfl.data.rebalance.THRESHOLDS`.
    """

    name = "mean-of-rebalanced"
    no_server_step = ""
    reads = ("effective-samples",)

    def __init__(self, federation: Federation, shared: np.ndarray, threshold: str, **options: Any) -> None:
        super().__init__(federation, shared, **options)
        self.threshold = float(THRESHOLDS[threshold]([client.train_samples for client in self.participants]))

    def attachments(self, client: Client, kind: str) -> Payload:
        """Send t, in samples, with training."""
        return Payload({"rebalance-threshold": self.threshold}) if kind == "train" else Payload()
