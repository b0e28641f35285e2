"""FedCAC: parameters that matter to a client are averaged only among clients to whom they matter.

Wu, Liu, Niu, Zhu, Tang: Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through
Cautiously Aggressive Collaboration, ICCV 2023, Section 3 and Algorithm 1.

The server computes the masks M_i; in the paper the clients do. As in the authors' code, a mask marks only values that
changed. Tests take place after the server's mean; the authors' program also tests before it. An absent client counts
with its last model.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from ..core.layout import Layout
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..core.sharing import is_parameter
from ..rules.per_client import PerClientRule, inner_products, mix
from ..rules.running_mean import RunningMean
from .base import Aggregation, Method
from .settings import FedCACSettings


class FedCAC(Method):
    """Start each client from the global model, its critical values from those of similar clients.

    client i:
        train w_i, from ŵ_i, on f_i
        send w_i
    server: w ← mean(w_i);  M_i marks the share τ of each array with the largest |(w_i − ŵ_i) ⊙ w_i|
        v_i ← plain mean(w_j) over clients j whose M_j overlaps enough with M_i
        ŵ_i ← M_i ⊙ v_i + (1 − M_i) ⊙ w
    predict: ŵ_i
    """

    name = "fedcac"
    paper = "Wu et al., Bold but Cautious: … Personalized Federated Learning through … Collaboration, ICCV 2023"
    shares = "everything; critical parameters only with similar clients"
    Settings = FedCACSettings

    @property
    def aggregation(self) -> Aggregation:
        """Another mean for critical than for other parameters."""
        return Aggregation(Critical, asdict(self.settings))


class Critical(PerClientRule):
    """Start of client i = M_i ⊙ custom_i + (1 − M_i) ⊙ global.

    Wu et al. 2023, Section 3 and Algorithm 1. M_i marks in every array the share of values with the largest |Δw·w|. As
    in the authors' code it marks only what moved (of an embedding the rows of the client's words), and so fewer where
    less than the share did. global is the mean over this round's clients, weighted by samples; custom_i the plain mean
    of the newest models of i and of all j whose masks overlap with M_i by at least the threshold of the round. The
    server computes all of it, as it knows what it sent and what came back. A client that has never answered gets the
    global model. BatchNorm's running statistics are never critical.
    """

    name = "critical"
    no_robust_mean = "also mixes models of few clients"
    remembers = ("masks", "newest")

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
        self._mean.add(shared, client.train_samples * self.damping(client))

    def finish(self) -> None:
        """Put every client's next model together."""
        self.shared = self._mean.value()
        answered = self.answered_before()
        overlap = overlaps(self.masks[answered])
        matches = overlap >= threshold(overlap, self.round, self.beta)
        np.fill_diagonal(matches, True)
        custom = mix(matches / matches.sum(axis=1, keepdims=True), self.newest[answered])
        self.for_clients[:] = self.shared
        self.for_clients[answered] = np.where(self.masks[answered], custom, self.shared)
        self.note("collaborators", matches.sum(axis=1).mean() - 1)


def top_share(values: np.ndarray, layout: Layout, share: float) -> np.ndarray:
    """Mark each array's largest values, ``share`` of them rounded down and those equal to the last; no 0."""
    marked = np.zeros(layout.size, bool)
    for place in layout.slices().values():
        array = values[place]
        count = int(share * array.size)
        if count:
            least = np.partition(array, array.size - count)[array.size - count]
            marked[place] = (array >= least) & (array > 0)
    return marked


def overlaps(masks: np.ndarray) -> np.ndarray:
    """Return 1 − ‖M_i − M_j‖₁ / (2‖M_i‖₁) for every two rows of bool masks, shape (clients, clients).

    A mask without a mark, of a client in whose model nothing moved, overlaps with none but itself.
    """
    common = inner_products(masks)
    sizes = np.diag(common)
    differing = sizes[:, None] + sizes[None, :] - 2 * common
    empty = sizes == 0
    overlap: np.ndarray = 1 - differing / (2 * np.where(empty, 1, sizes)[:, None])
    overlap[empty[:, None] | empty] = 0.0
    np.fill_diagonal(overlap, 1.0)
    return overlap


def threshold(overlap: np.ndarray, server_round: int, beta: float) -> float:
    """Return avg + (t/β)(max − avg) over the overlaps of different clients; infinity for a single one."""
    pairs = overlap[~np.eye(len(overlap), dtype=bool)]
    if not pairs.size:
        return float("inf")
    most = pairs.max()
    average = min(pairs.mean(), most)  # rounded, the mean of equal overlaps can exceed them
    return float(average + server_round / beta * (most - average))
