"""The movement of the shared arrays, for the setting ``diagnostics``.

Wu et al., Decoupling General and Personalized Knowledge in Federated Learning via Additive and Low-Rank Decomposition,
ACM Multimedia 2024, Sections 4.4 and 4.5, measures two distances for its σ; here they are of the shared arrays of any
method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...core.payload import Payload
from ...core.server_view import Client
from ...core.sharing import is_parameter
from ...results.round_record import Round
from ...rules import Rule
from ..listener import Listener

STATE = "diagnostics"


class Diagnostics(Listener):
    """Notes, for each round, ``drift`` and ``shared-change``.

    ``drift`` is (1/N)·Σ‖σ_i − σ̄‖₂ over the N clients that answered, where σ̄ is what client i gets next.
    ``shared-change`` is ‖σ̄ − σ̄¹‖₂ since before round 1; where each client gets a model of its own, the mean over all
    clients. Both are distances of parameters: BatchNorm's running statistics, which move much farther, do not count.
    Neither is noted if the method shares nothing, or shares less after the round than before
    (``shared-change`` counts from there then).
    """

    def __init__(self) -> None:
        self._first: np.ndarray | None = None
        self._trained: dict[int, np.ndarray] = {}

    def round_started(self, rule: Rule, done: Round, clients: Sequence[Client]) -> None:
        """Forget the vectors of the round before; the first time, keep what all start from."""
        self._trained = {}
        if self._first is None and rule.layout.size:
            self._first = _vectors(rule)

    def added(self, rule: Rule, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Keep what a client has trained."""
        self._trained[client.id] = shared

    def combined(self, rule: Rule, done: Round) -> None:
        """Measure the round."""
        layouts = {client: rule.layout_of(rule.clients[client]) for client in self._trained}
        same = all(vector.size == layouts[client].size for client, vector in self._trained.items())
        if not rule.layout.size or not same:
            return
        now = _vectors(rule)
        assert self._first is not None  # begin has seen to it
        if self._first.shape != now.shape:
            self._first = now
        counts = is_parameter(rule.layout)
        drift = [
            _distance(vector, rule.outgoing(rule.clients[i]), is_parameter(layouts[i]))
            for i, vector in self._trained.items()
        ]
        change = [_distance(vector, first, counts) for vector, first in zip(now, self._first, strict=True)]
        done.details.update({"drift": float(np.mean(drift)), "shared-change": float(np.mean(change))})

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays that a resumed run needs."""
        return {} if self._first is None else {STATE: self._first}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore it."""
        self._first = state.get(STATE)


def _vectors(rule: Rule) -> np.ndarray:
    """Return the vectors that go out next: one row, or one for each client, float32."""
    if rule.one_model:
        return rule.shared[None].copy()
    return np.stack([rule.outgoing(client) for client in rule.clients.values()])


def _distance(a: np.ndarray, b: np.ndarray, counts: np.ndarray) -> float:
    return float(np.linalg.norm((a.astype(np.float64) - b)[counts]))
