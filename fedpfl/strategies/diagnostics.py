"""How far the shared arrays move, for ``diagnostics``.

Wu et al., Decoupling General and Personalized Knowledge in Federated Learning via Additive and Low-Rank Decomposition,
ACM Multimedia 2024, Sections 4.4 and 4.5, measures two distances for its σ; here they are of the shared arrays of any
method.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .base import PersonalisedStrategy

STATE = "diagnostics"


class Diagnostics:
    """Keeps the vectors of a round, and those that the clients started the first one from."""

    def __init__(self) -> None:
        self._first: np.ndarray | None = None

    def begin(self, strategy: PersonalisedStrategy) -> None:
        """Forget the vectors of the round before; the first time, keep what all start from."""
        self._trained: dict[int, np.ndarray] = {}
        if self._first is None and strategy.layout.size:
            self._first = _vectors(strategy)

    def add(self, client: int, shared: np.ndarray) -> None:
        """Keep what a client has trained, float32, shape (layout.size,)."""
        self._trained[client] = shared

    def finish(self, strategy: PersonalisedStrategy) -> dict[str, float]:
        """Measure the round that the strategy has just finished.

        Returns
        -------
        dict
            ``drift``: (1/N)·Σ‖σ_i − σ̄‖₂ over the N clients that answered, where σ̄ is what client i gets next.
            ``shared-change``: ‖σ̄ − σ̄¹‖₂ since before round 1; where each client gets a model of its own, the mean over
            all clients. Nothing if the method shares nothing, or shares less after this round than before (then
            ``shared-change`` counts from here).
        """
        sizes = {vector.size for vector in self._trained.values()}
        if not strategy.layout.size or sizes != {strategy.layout.size}:
            return {}
        now = _vectors(strategy)
        assert self._first is not None  # begin has seen to it
        if self._first.shape != now.shape:
            self._first = now
        drift = [_distance(vector, strategy.outgoing(strategy.clients[i])) for i, vector in self._trained.items()]
        change = [_distance(vector, first) for vector, first in zip(now, self._first, strict=True)]
        return {"drift": float(np.mean(drift)), "shared-change": float(np.mean(change))}

    def state(self) -> dict[str, np.ndarray]:
        """Return what a resumed run needs."""
        return {} if self._first is None else {STATE: self._first}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Take back what :meth:`state` returned."""
        self._first = state.get(STATE)


def _vectors(strategy: PersonalisedStrategy) -> np.ndarray:
    """Return what goes out next: one row, or one for each client, float32."""
    if strategy.one_model:
        return strategy.shared[None].copy()
    return np.stack([strategy.outgoing(client) for client in strategy.clients.values()])


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a.astype(np.float64) - b))
