"""FedCAC's rule: critical parameters come from clients with the same critical parameters, the others from all."""

from __future__ import annotations

from typing import Mapping

import numpy as np

from ..core.federation import Client, Federation
from ..core.layout import Layout
from ..core.payload import Payload
from ..core.sharing import is_parameter
from .mean import RunningMean
from .per_client import PerClientRule, inner_products, mix


class Critical(PerClientRule):
    """Start of client i = M_i ⊙ custom_i + (1 − M_i) ⊙ global.

    Wu et al. 2023, Section 3 and Algorithm 1. M_i marks in every array the share of values with the largest
    |Δw·w|; global is the mean over this round's clients, weighted by samples; custom_i the plain mean of the newest
    models of i and of all j whose masks overlap with M_i by at least the threshold of the round. The server computes
    all of it, as it knows what it sent and what came back. A client that has never answered gets the global model.
    BatchNorm's running statistics are never critical.

    Parameters
    ----------
    share : float
        Share τ of each array's values that are critical.
    beta : float
        Rounds β until no overlap is enough.
    """

    name = "critical"

    def __init__(self, federation: Federation, shared: np.ndarray, share: float, beta: float) -> None:
        super().__init__(federation, shared)
        self.share = share
        self.beta = beta
        self.newest = self.for_clients.copy()
        self.masks = np.zeros(self.newest.shape, bool)
        self._parameters = is_parameter(self.layout)

    def begin(self) -> None:
        """Start the global mean."""
        self._mean = RunningMean(self.layout.size)

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Find the client's critical values and add it to the global mean."""
        criticality = np.abs((shared - self.received(client)) * shared)
        self.masks[client.id] = top_share(criticality, self.layout, self.share) & self._parameters
        self.newest[client.id] = shared
        self._mean.add(shared, client.train_samples)

    def finish(self) -> None:
        """Put every client's next model together."""
        self.shared = self._mean.value()
        known = self.answered_before()
        overlap = overlaps(self.masks[known])
        matches = overlap >= threshold(overlap, self.round, self.beta)
        np.fill_diagonal(matches, True)
        custom = mix(matches / matches.sum(axis=1, keepdims=True), self.newest[known])
        self.for_clients[:] = self.shared
        self.for_clients[known] = np.where(self.masks[known], custom, self.shared)
        self.note("collaborators", matches.sum(axis=1).mean() - 1)

    def state(self) -> dict[str, np.ndarray]:
        """Add the masks and the clients' newest models."""
        return {**super().state(), "masks": self.masks, "newest": self.newest}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Take them back."""
        super().load_state(state)
        self.masks, self.newest = state["masks"].copy(), state["newest"].copy()


def top_share(values: np.ndarray, layout: Layout, share: float) -> np.ndarray:
    """Mark in each array of a flat vector its largest values: ``share`` of them, rounded, at least one."""
    marked = np.zeros(layout.size, bool)
    for place in layout.slices().values():
        array = values[place]
        if array.size:
            count = max(1, int(share * array.size + 0.5))
            marked[place.start + np.argpartition(array, array.size - count)[array.size - count :]] = True
    return marked


def overlaps(masks: np.ndarray) -> np.ndarray:
    """Return 1 − ‖M_i − M_j‖₁ / (2‖M_i‖₁) for every two rows of bool masks, shape (clients, clients)."""
    common = inner_products(masks)
    sizes = np.diag(common)
    differing = sizes[:, None] + sizes[None, :] - 2 * common
    overlap: np.ndarray = 1 - differing / (2 * sizes[:, None])
    return overlap


def threshold(overlap: np.ndarray, server_round: int, beta: float) -> float:
    """Return avg + (t/β)(max − avg) over the overlaps of different clients; infinity for a single one."""
    pairs = overlap[~np.eye(len(overlap), dtype=bool)]
    if not pairs.size:
        return float("inf")
    most = pairs.max()
    average = min(pairs.mean(), most)  # rounded, the mean of equal overlaps can exceed them
    return float(average + server_round / beta * (most - average))
