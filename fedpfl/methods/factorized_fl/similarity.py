"""A mean for each client over the clients that are like it: Factorized-FL's rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Mapping

import numpy as np

from ...core.payload import Payload
from ...core.rng import generator
from ...core.server_view import Client, Federation
from ...rules.per_client import PerClientRule

# Clients that the controls "random" and "worst" give a client (Factorized-FL, section 5.2).
CONTROL = 3
# Entries of the shared vectors that are averaged at a time: the sums of some tens of clients then fit into a cache.
BLOCK = 4096


class Similarity(PerClientRule):
    """w_i ← Σ_j ω_ij·w_j, ω_i = softmax(ε·s_i) over the clients matched with i (Factorized-FL, equations 4 and 5).

    s_ij is the cosine between the vectors by which i and j are compared: what ``compared`` picks by name from the
    shared arrays, or the array of that name in a reply. Matched with i are the clients with s_ij ≥ ``threshold``, and
    at least ``min_aggregate`` nearest ones, i itself first. To compare with that (``matching``): three drawn for each
    client in each round (``random``), or the three that are least like i (``worst``).

    All means are made from one snapshot, of the newest arrays that each client ever sent; a client that never sent any
    gets the mean of all others weighted by their samples. Recorded for each round are ``similarity`` (clients ×
    clients, NaN for those never heard of) and ``matches``, how often j's arrays have gone into what i gets.
    """

    name = "similarity"

    def __init__(
        self,
        federation: Federation,
        shared: np.ndarray,
        threshold: float = 0.0,
        scaling: float = 1.0,
        min_aggregate: int = 1,
        matching: str = "similar",
        compared: Callable[[Iterable[str]], str] | None = None,
    ) -> None:
        super().__init__(federation, shared)
        self.threshold = threshold
        self.scaling = scaling
        self.min_aggregate = min_aggregate
        self.matching = matching
        self._place = None if compared is None else self.layout.slices()[compared(self.layout.names)]
        self._matches = np.zeros((len(self.clients), len(self.clients)), np.int64)
        self._latest: dict[int, np.ndarray] = {}
        self._compared: dict[int, np.ndarray] = {}

    def begin(self) -> None:
        """Do nothing: what clients sent before still counts."""

    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep the client's newest arrays."""
        self._latest[client.id] = shared
        compared = reply.arrays["compared"] if self._place is None else shared[self._place]
        self._compared[client.id] = compared.reshape(-1)

    def finish(self) -> None:
        """Make every client's mean from the latest arrays of all that have replied."""
        seen = sorted(self._latest)
        similarity = cosines(np.stack([self._compared[i] for i in seen]))
        matched = np.stack([self._matched(i, row) for i, row in zip(seen, similarity)])
        # Taking the largest exponent of a row out changes none of its quotients and keeps all from overflowing.
        exponents = np.where(matched, self.scaling * similarity, -np.inf)
        weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
        self.for_clients[seen] = self._means(weights)
        unseen = [i for i in self.clients if i not in self._latest]
        samples = np.array([[self.clients[j].train_samples * self.damping(self.clients[j]) for j in seen]])
        if unseen:
            self.for_clients[unseen] = self._means(samples)
        self._record(seen, similarity, matched)

    def _matched(self, i: int, similarity: np.ndarray) -> np.ndarray:
        """Mark the clients, of those that have replied, that are matched with i by its similarities to them."""
        count = len(similarity)
        if self.matching == "random":
            rng = generator(self.federation.seed, "random matching", self.round, i)
            chosen = rng.choice(count, min(CONTROL, count), replace=False)
        else:
            is_self = np.arange(count) == sorted(self._latest).index(i)
            nearest = np.lexsort((~is_self, -similarity))
            kept = max(int((similarity >= self.threshold).sum()), self.min_aggregate)
            chosen = nearest[:kept] if self.matching == "similar" else nearest[-CONTROL:]
        matched = np.zeros(count, bool)
        matched[chosen] = True
        return matched

    def _means(self, weights: np.ndarray) -> np.ndarray:
        """Return the means of the clients' latest arrays, float32, one row for each row of ``weights``."""
        vectors = [self._latest[i] for i in sorted(self._latest)]
        means = np.empty((len(weights), self.layout.size), np.float32)
        totals = weights.sum(axis=1, keepdims=True)
        for start in range(0, self.layout.size, BLOCK):
            block = slice(start, start + BLOCK)
            sums = np.zeros(means[:, block].shape, np.float64)
            for column, vector in zip(weights.T, vectors):
                sums += column[:, None] * vector[block].astype(np.float64)
            means[:, block] = sums / totals
        return means

    def _record(self, seen: list[int], similarity: np.ndarray, matched: np.ndarray) -> None:
        square = np.ix_(seen, seen)
        self._matches[square] += matched
        every = np.full(self._matches.shape, np.nan, np.float32)
        every[square] = similarity
        self.keep("similarity", every)
        self.keep("matches", self._matches.copy())
        self.note("matched-clients", matched.sum(axis=1).mean())

    def state(self) -> dict[str, np.ndarray]:
        """Add each client's latest arrays and the matches so far."""
        seen = sorted(self._latest)
        return {
            **super().state(),
            "known": np.array(seen, np.int64),
            "latest": np.array([self._latest[i] for i in seen], np.float32),
            "compared": np.array([self._compared[i] for i in seen], np.float32),
            "matches": self._matches,
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore it."""
        super().load_state(state)
        seen = state["known"].tolist()
        self._latest = dict(zip(seen, state["latest"]))
        self._compared = dict(zip(seen, state["compared"]))
        self._matches = state["matches"].copy()  # what safetensors loads is read-only


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosines of all pairs of rows, float64: 1 with itself, 0 with a row of zeros."""
    rows = vectors.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows /= np.where(lengths > 0, lengths, 1.0)
    similarity = np.clip(rows @ rows.T, -1.0, 1.0)
    np.fill_diagonal(similarity, 1.0)
    return similarity
