"""IFCA: each client joins the cluster whose model has the lowest loss on its data.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, Algorithm 1 with
model averaging (option II).

The first model is the run's initial one; the others have its values in another order within each array. A client also
chooses a cluster before each test, by its training samples. A client that changes its cluster sends its update added to
the model of its last cluster, so that limits, clipping and noise apply to the update; the server adds the update to the
chosen model.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from ..core.errors import LayoutError
from ..core.extra_arrays import CLIENT, SERVER, SHARED, SHARES, Extra
from ..core.payload import Payload
from ..core.server_view import Client, Federation
from ..core.sharing import is_parameter
from ..rules import Rule
from ..training.loop import evaluate
from .base import Aggregation, LocalRound, Method
from .settings import IFCASettings


class ClusterMeans(Rule):
    """The plain mean of a cluster's clients, who are sent that and, beside it, the others; without clients it stays."""

    name = "cluster-means"
    one_model = False
    no_robust_mean = ""
    remembers = ("models", "cluster")

    def __init__(self, federation: Federation, shared: np.ndarray, clusters: int) -> None:
        super().__init__(federation, shared)
        self.cluster = np.zeros(len(self.clients), np.int64)
        self._parameters = is_parameter(self.layout)
        orders = [self.generator(f"cluster {number}") for number in range(1, clusters)]
        places = self.layout.slices().values()
        self.models = np.stack([shared, *([shared] * len(orders))])
        for model, order in zip(self.models[1:], orders):
            for place in places:
                model[place] = order.permutation(model[place])

    def begin(self) -> None:
        """Start without replies."""
        self._means: dict[int, Any] = {}
        self._chosen: dict[int, int] = {}

    def outgoing(self, client: Client) -> np.ndarray:
        """Return the model of the client's cluster."""
        return self.models[self.cluster[client.id]]

    @property
    def common(self) -> np.ndarray:
        """The mean of the clusters' models."""
        mean: np.ndarray = self.models.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean

    def attachments(self, client: Client, kind: str) -> Payload:
        """Send the client's cluster, and the other clusters' models in their order."""
        cluster = int(self.cluster[client.id])
        return Payload(config={"cluster": cluster}, arrays={"models": np.delete(self.models, cluster, axis=0)})

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Expect one choice; noise makes other numbers of it."""
        choice = reply.arrays["choice"]
        if not self.federation.noisy and sorted(choice) != [*[0.0] * (len(choice) - 1), 1.0]:
            raise LayoutError(
                f"a choice of {len(choice)} clusters must be one 1 among zeros; {choice.tolist()} arrived"
            )

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add the client's model to the mean of the cluster that it has chosen."""
        chosen = self._chosen[client.id] = int(reply.arrays["choice"].argmax())
        if chosen != self.cluster[client.id]:
            shared = moved(shared, self.outgoing(client), self.models[chosen], self._parameters)
        if chosen not in self._means:
            self._means[chosen] = self.averaging(self.layout.size, self.models[chosen])
        self._means[chosen].add(shared, 1.0)

    def finish(self) -> None:
        """Divide."""
        self.models, self.cluster = self.models.copy(), self.cluster.copy()
        for number, mean in self._means.items():
            self.models[number] = mean.value()
        for client, number in self._chosen.items():
            self.cluster[client] = number
        self.note("clusters", len({*self._chosen.values()}))
        self.keep("clusters", self.cluster)


class IFCA(Method):
    """Keep M models; a client trains the one that suits it best.

    client i, with all w_m:
        m_i ← the m of the lowest f_i(w_m)
        train w_i, from w of m_i, on f_i
        send w_i, m_i
    server: w_m ← plain mean(w_i) over the clients with m_i = m
    predict: the w_m of the lowest f_i(w_m)
    """

    name = "ifca"
    paper = "Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020"
    shares = "everything; the server sends the models of all clusters"
    Settings = IFCASettings

    @property
    def extras(self) -> Sequence[Extra]:
        """The other clusters' models, and the choice."""
        clusters = self.settings.clusters
        return (
            Extra("models", CLIENT, "models of the other clusters, a row each", (clusters - 1, SHARED)),
            Extra("choice", SERVER, "1 for the cluster that the client has chosen, 0 for others", (clusters,),
                  kind=SHARES),
        )  # fmt: skip

    def prepare(self, local: LocalRound) -> None:
        """Take the model of the lowest loss on the training samples; of equal ones that of the client's cluster."""
        split = self.sharing(local.model)
        candidates = [split.get_shared(), *local.received("models")]
        losses = np.zeros(len(candidates))
        local.model.eval()
        for place in range(len(candidates)) if len(local.train_labels()) else ():
            split.set_shared(candidates[place])
            losses[place] = evaluate(local.model, local.samples, self.training.labels).loss_sum
        best = int(np.nan_to_num(losses, nan=np.inf).argmin())
        split.set_shared(candidates[best])
        cluster = int(local.message.config["cluster"])
        local.notes["choice"] = [cluster, *(m for m in range(self.settings.clusters) if m != cluster)][best]
        local.notes["models"] = candidates[best], candidates[0]

    def conclude(self, local: LocalRound) -> Payload:
        """Send the choice, and the update as one of the client's last cluster."""
        chosen, last = local.notes["models"]
        if chosen is not last:
            split = self.sharing(local.model)
            split.set_shared(moved(split.get_shared(), chosen, last, is_parameter(local.layout)))
        choice = np.zeros(self.settings.clusters, np.float32)
        choice[local.notes["choice"]] = 1
        return Payload(arrays={"choice": choice})

    @property
    def aggregation(self) -> Aggregation:
        """The mean within each cluster."""
        return Aggregation(ClusterMeans, {"clusters": self.settings.clusters})


def moved(vector: np.ndarray, start: np.ndarray, goal: np.ndarray, parameters: np.ndarray) -> np.ndarray:
    """Return a vector whose parameters lie from ``goal`` as they lay from ``start``."""
    return np.where(parameters, vector + (goal - start), vector)
