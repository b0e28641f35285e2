"""One mean for all: FedAvg's rule, and that of most methods, which differ in what they share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.layout import rounded
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..core.vectors import without_negative_variances
from .rule import Rule, Vector

# A subclass that overrides one of these needs each vector, or may send each client another one.
NEED_EACH_REPLY = ("add", "check", "outgoing", "weight")


class Mean(Rule):
    """w ← Σ a_i·w_i / Σ a_i over the clients that answered.

    The sums run in float64 in client order, from 256 clients on in groups: the result is the same to the bit in every
    order of arrival, and the mean of equal vectors is that vector.

    Parameters
    ----------
    weights : str
        ``examples``: a_i is the number of training samples (McMahan et al. 2017, Algorithm 1); ``uniform``: 1.
    absent : str
        ``skip``: only clients that answered count; ``last``: the others count with the mean of the last round, as in
        FedDecomp's published code.

    Examples
    --------
    >>> import fedpfl
    >>> import numpy as np
    >>> from torch import nn
    >>> layout = fedpfl.Sharing(nn.Linear(1, 1, bias=False), lambda name: True).layout
    >>> clients = tuple(fedpfl.Client(i, samples, test_samples=5) for i, samples in enumerate((10, 30)))
    >>> mean = fedpfl.Mean(fedpfl.Federation(clients, layout), np.zeros(1, np.float32))
    >>> mean.begin_round(1)
    >>> for client, value in zip(clients, (0, 4)):
    ...     mean.add(client, np.array([value], np.float32), fedpfl.Payload())
    >>> mean.finish()
    >>> mean.shared
    array([3.], dtype=float32)
    """

    name = "mean"
    only_a_sum = True
    no_server_step = ""
    no_robust_mean = ""

    def __init__(
        self,
        federation: Federation,
        shared: np.ndarray,
        weights: str = "examples",
        absent: str = "skip",
    ) -> None:
        super().__init__(federation, shared)
        self.weights = weights
        self.absent = absent
        self.own_weights: dict[int, float] = {}  # factors of some clients' weights

    def begin(self) -> None:
        """Start the sums at zero."""
        self._mean = self.averaging(self.layout.size, rounded(self.shared, self.federation.wire_dtype))
        self.answered: set[int] = set()

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add a_i·w_i."""
        self._mean.add(shared, self.weight(client, reply), self.group(client))
        self.answered.add(client.id)

    @property
    def only_adds(self) -> bool:
        """Whether neither a subclass nor ``robust-aggregation`` looks at each reply."""
        each = any(getattr(type(self), hook) is not getattr(Mean, hook) for hook in NEED_EACH_REPLY)
        return not (each or self.averages.looks_at_each)

    def add_rows(self, clients: Sequence[Client], rows: Sequence[Vector], replies: Sequence[Payload]) -> None:
        """Add Σ a_i·w_i of some clients, where their vectors are."""
        there = [row for row in rows if not isinstance(row, np.ndarray)]
        if len(there) < len(rows):
            super().add_rows(clients, rows, replies)
            return
        weights = [self.weight(client, reply) for client, reply in zip(clients, replies)]
        self._mean.add_rows(there, weights, [self.group(client) for client in clients])
        self.answered.update(client.id for client in clients)

    def finish(self) -> None:
        """Divide by the sum of the weights."""
        if self.absent == "last":
            missing = sum(self.weight(c) for c in self.participants if c.id not in self.answered)
            self._mean.add_trusted(self.shared, missing)
        if self.noise is not None:
            self._mean.disturb(self.noise)
            self.shared = without_negative_variances(self.layout, self._mean.value())
        else:
            self.shared = self._mean.value()

    def finish_round(self) -> None:
        """End a round and drop the sums, which are as large as two copies of the model."""
        super().finish_round()
        vars(self).pop("_mean", None)  # a subclass may have begun otherwise

    def weight(self, client: Client, reply: Payload | None = None) -> float:
        """Return a_i; a rule may override it. There is no reply of a client that counts with the last mean."""
        # Noise on the sum hides a client only if none counts for more than the noise is made for.
        alike = self.weights == "uniform" or self.noise is not None
        weight = 1.0 if alike else client.train_samples * self.damping(client)
        return weight * self.own_weights.get(client.id, 1.0)
