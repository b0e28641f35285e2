"""Base of the rules that send each client another model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from ..core.layout import rounded
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from .rule import Rule

# Values of a vector that are computed with at a time: sums over all clients run in float64 without a copy of it all.
BLOCK = 1 << 16


class PerClientRule(Rule):
    """Base of the rules without one global model.

    ``for_clients``, float32 of shape (clients, layout.size), is what each client gets next, by client id; the initial
    arrays at first. A rule writes rows of it in ``finish``; ``arrived`` is what clients have sent in the round, by id.

    Examples
    --------
    Send each client what is half-way between its own model and the mean of all:

    >>> import fedpfl
    >>> class HalfWay(fedpfl.PerClientRule):
    ...     name = "half-way"
    ...
    ...     def finish(self):
    ...         mean = sum(self.arrived.values()) / len(self.arrived)
    ...         for client, shared in self.arrived.items():
    ...             self.for_clients[client] = (shared + mean) / 2
    >>> class Method(fedpfl.Method):
    ...     name = "half-way"
    ...     aggregation = fedpfl.Aggregation(HalfWay)
    >>> run = fedpfl.run(
    ...     method=Method, dataset="digits", model="mlp", num_clients=4, num_server_rounds=2, local_epochs=1,
    ...     quiet=True,
    ... )
    >>> run.summary["rounds"]
    2
    """

    one_model = False
    remembers: ClassVar[tuple[str, ...]] = ("for_clients",)

    def __init__(self, federation: Federation, shared: np.ndarray) -> None:
        super().__init__(federation, shared)
        self.for_clients = np.tile(self.shared, (len(self.clients), 1))

    def begin(self) -> None:
        """Start without replies."""
        self.arrived: dict[int, np.ndarray] = {}

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep what the client has sent."""
        self.arrived[client.id] = shared

    def outgoing(self, client: Client) -> np.ndarray:
        """Return the client's row."""
        return self.for_clients[client.id]

    @property
    def trained_and_new(self) -> tuple[list[int], list[int]]:
        """The numbers of the clients that train, and of those that are held out."""
        trained = [client.id for client in self.participants]
        return trained, [client for client in self.clients if client not in trained]

    @property
    def common(self) -> np.ndarray:
        """The mean of the rows."""
        mean: np.ndarray = self.for_clients.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean

    def received(self, client: Client) -> np.ndarray:
        """Return the client's row as the client reads it, which ``wire-dtype`` may have rounded."""
        return rounded(self.outgoing(client), self.federation.wire_dtype)


def mix(weights: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return Σ_j weights[i, j]·vectors[j] for each i: float32 (mixtures, size), from float64 and float32 arrays."""
    mixed = np.empty((len(weights), vectors.shape[1]), np.float32)
    for place, block in _blocks(vectors):
        mixed[:, place] = weights @ block
    return mixed


def inner_products(vectors: np.ndarray, centred: bool = False) -> np.ndarray:
    """Return the inner product of every two rows, float64, shape (clients, clients).

    Rows may be of any type; counts of ones come out exactly. ``centred`` takes off the rows' mean first, which changes
    no difference of two rows and keeps its digits.
    """
    products = np.zeros((len(vectors), len(vectors)))
    for _, block in _blocks(vectors):
        rows = block - block.mean(axis=0) if centred else block
        products += rows @ rows.T
    return products


def _blocks(vectors: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    for start in range(0, vectors.shape[1], BLOCK):
        place = slice(start, start + BLOCK)
        yield place, vectors[:, place].astype(np.float64)
