"""Clustered federated learning: a cluster splits when its clients' updates point in different directions.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints, IEEE Transactions on Neural Networks and Learning Systems 32(8), 2021, Algorithms 1 and 2.

As in the authors' code, clusters split by complete linkage (in the paper by single linkage), not in the first rounds,
and only if they have at least three clients.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..core.sharing import is_parameter
from ..rules.per_client import PerClientRule, inner_products
from .base import Aggregation, Method
from .settings import ClusteredFLSettings

# Clients in a cluster that may split, at least, as in the authors' code.
SMALLEST_SPLIT = 3


class ClusteredFL(Method):
    """Run FedAvg in each cluster; initially all clients form one.

    client i:
        train w_i, from its cluster's w, on f_i
        send w_i
    server, in each cluster: Δ_i ← w_i − w;  w ← mean(w_i)
        if ‖mean(Δ_i)‖ < ε1 and max ‖Δ_i‖ > ε2: split it by cos(Δ_i, Δ_j)
    predict: the cluster's w
    """

    name = "clustered-fl"
    paper = (
        "Sattler et al., Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization …, TNNLS 2021"
    )
    shares = "everything, averaged within a cluster"
    Settings = ClusteredFLSettings

    def remarks(self, model: nn.Module, clients: int, rounds: int) -> list[str]:
        """Warn where no cluster can ever split."""
        name, first = self.name, self.settings.first_split
        if rounds < first:
            why = f"before round {first} ({name}-first-split), and the run has {rounds}"
        elif clients < SMALLEST_SPLIT:
            why = f"of fewer than {SMALLEST_SPLIT} clients, and the run has {clients}"
        else:
            return []
        return [f"{name}: no cluster splits {why}: all clients stay in one cluster, as in fedavg"]

    @property
    def aggregation(self) -> Aggregation:
        """The mean within each cluster."""
        return Aggregation(Clusters, {"settings": self.settings})


class Clusters(PerClientRule):
    """The mean within each cluster; a cluster near a stationary point splits if its clients are not near theirs.

    Sattler, Müller and Samek 2021, Algorithm 1 (bipartition) and 2. A cluster splits after a round in which ‖mean Δ‖ <
    ε1 and max ‖Δ_i‖ > ε2 over its clients that answered, where Δ_i is what local training changed in the parameters
    (not in BatchNorm's running statistics). Clients that did not answer are divided by their latest Δ_i; those that
    never have stay with the larger part. New clusters take the means of their own clients at once.

    In early rounds all updates are large and their directions say little, and a split is for good. As in the authors'
    code clusters can be kept from splitting for some rounds, and small ones (of clients that ever answered) altogether.
    """

    name = "clusters"
    no_robust_mean = ""
    remembers = ("cluster", "updates")

    def __init__(self, federation: Federation, shared: np.ndarray, settings: ClusteredFLSettings) -> None:
        super().__init__(federation, shared)
        self.settings = settings
        self.cluster = np.zeros(len(self.clients), np.int64)
        self.updates = np.zeros_like(self.for_clients)
        self._parameters = is_parameter(self.layout)

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep the reply until the clusters are known, and Δ_i beyond."""
        super().add(client, shared, reply)
        self.updates[client.id] = (shared - self.received(client)) * self._parameters

    def finish(self) -> None:
        """Split, then average within each cluster."""
        for number in range(self._clusters()):
            if self._may_split(number) and self._is_stuck(self._answered(number)):
                self._split(number)
        for number in range(self._clusters()):
            answered = self._answered(number)
            if answered:
                mean = self.averaging(self.layout.size, self.received(self.clients[answered[0]]))
                for i in answered:
                    mean.add(self.arrived[i], self._weight(i))
                self.for_clients[self.cluster == number] = mean.value()
        self.note("clusters", self._clusters())
        self.keep("clusters", self.cluster.copy())

    def _clusters(self) -> int:
        return int(self.cluster.max()) + 1

    def _answered(self, number: int) -> list[int]:
        return [i for i in self.arrived if self.cluster[i] == number]

    def _weight(self, number: int) -> float:
        client = self.clients[number]
        return client.train_samples * self.damping(client)

    def _members(self, number: int) -> list[int]:
        return [i for i in self.answered_before() if self.cluster[i] == number]

    def _may_split(self, number: int) -> bool:
        enough = len(self._members(number)) >= SMALLEST_SPLIT
        return self.round >= self.settings.first_split and enough

    def _is_stuck(self, answered: list[int]) -> bool:
        if len(answered) < 2:
            return False
        mean = self.averaging(self.layout.size)
        for i in answered:
            mean.add(self.updates[i], self._weight(i))
        largest = max(np.linalg.norm(self.updates[i]) for i in answered)
        return bool(np.linalg.norm(mean.value()) < self.settings.epsilon1 and largest > self.settings.epsilon2)

    def _split(self, number: int) -> None:
        members = self._members(number)
        _, smaller = bipartition(cosines(self.updates[members]))
        self.cluster[[members[place] for place in smaller]] = self._clusters()


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosine of every two rows, shape (clients, clients); 0 with a row of zeros."""
    products = inner_products(vectors)
    norms = np.sqrt(np.diag(products))
    lengths = np.outer(norms, norms)
    return np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)


def bipartition(similarities: np.ndarray) -> tuple[list[int], list[int]]:
    """Return two parts of at least two clients, as unlike as can be: positions, the larger part first.

    Parts are joined until two are left: those whose least similar members are most similar (complete linkage, as in the
    authors' code; the paper's Algorithm 1 has single linkage).
    """
    # A quarter of a second to import, and most rounds split nothing.
    from scipy.cluster import hierarchy

    above = np.triu_indices(len(similarities), 1)
    root = hierarchy.to_tree(hierarchy.linkage(np.maximum(1 - similarities[above], 0), "complete"))
    parts = [sorted(int(leaf) for leaf in child.pre_order()) for child in (root.get_left(), root.get_right())]
    larger, smaller = sorted(parts, key=lambda part: (-len(part), part))
    return larger, smaller
