"""Buffered rounds: clients train all the time, and a round ends with the first K replies (FedBuff).

Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba: Federated Learning with Buffered Asynchronous Aggregation, AISTATS
2022. What a client has learned counts with 1 / √(1 + τ), where τ is how many rounds ago it was sent what it started
from. The server adds it to what the shared arrays are now, and its rule makes the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.layout import rounded
from ...core.rng import generator
from ...core.server_view import Client
from ...core.vectors import without_negative_variances
from ..rounds import MIN_FOR_TESTS, RoundLoop
from ..transport import TRAIN, Request, Transport, Wait
from .participation import Participation

PENDING, STARTS, NOW = STATE = ("buffered_pending", "buffered_starts", "buffered_now")


@dataclass(frozen=True)
class Started:
    """A training that has not been taken yet."""

    round: int  # in which it was asked for
    shared: np.ndarray  # what it starts from
    # When it ends, in microseconds of the clock; without one all clients are equally fast, and it is the number of
    # training samples that one could have done by then.
    due: int


class BufferedLoop(RoundLoop):
    """Runs rounds that end with the first ``buffer-size`` replies; ``fraction-train`` sets how many train."""

    attendance: Participation

    def __init__(self, size: int, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._size = size
        self._trainings: dict[int, Started] = {}
        self._now = 0

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that the next round depends on, the trainings on their way included."""
        starts = {one.round: one.shared for one in self._trainings.values()}
        rows = [(client, one.round, one.due) for client, one in sorted(self._trainings.items())]
        size = self.rule.layout.size
        return {
            **super().state(),
            PENDING: np.array(rows, np.int64).reshape(-1, 3),
            STARTS: np.array([starts[number] for number in sorted(starts)], np.float32).reshape(-1, size),
            NOW: np.array(self._now),
        }

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what :meth:`state` returned; the trainings are asked for again, with the same messages."""
        super().load_state(state)
        if PENDING not in state:
            return
        rows = state[PENDING].tolist()
        starts = dict(zip(sorted({row[1] for row in rows}), state[STARTS], strict=True))
        self._trainings = {client: Started(number, starts[number], due) for client, number, due in rows}
        self._now = int(state[NOW])

    def train(self, transport: Transport, number: int) -> list[Client]:
        """Ask clients that are free, and combine the first replies of all that train."""
        rule, done, pending = self.rule, self.round, self._trainings
        asked = self._draw(number)
        self.begin(number, asked)
        self._test_first(transport, number)
        done.asked = [client.id for client in asked]
        start = rounded(rule.shared, self.settings.wire_dtype)
        clock = self.attendance.clock
        ready = {} if clock is None else clock.due(asked, TRAIN, keep=True)
        for client in asked:
            pending[client.id] = Started(number, start, ready.get(client.id, self._now + client.train_samples))
        count = min(self._size, len(pending))
        due = {client: one.due for client, one in pending.items()}
        taken = transport.first(due, count)
        self._now = sorted(due.values())[count - 1]
        if clock is not None:
            clock.now = max(clock.now, self._now)
        wait = Wait(self.settings.round_timeout, count, keep=True)
        if self.settings.evaluates_in(number):
            wait = replace(wait, timeout=wait.timeout * (1 - MIN_FOR_TESTS))
        self.combine(number, transport.replies(self._all_requests(sorted(taken)), wait, self.fail))
        late = [number - pending[client].round for client in done.trained]
        done.details["staleness"] = float(np.mean(late))
        for over in done.trained.keys() | (done.failed.keys() & pending.keys()):
            del pending[over]
        done.late = sorted(pending)
        return asked

    def relative(self, client: Client, shared: np.ndarray) -> np.ndarray:
        """Return w + s(τ)·(trained − start), where w is what the shared arrays are now."""
        started = self._trainings[client.id]
        weight = 1 / math.sqrt(1 + self.round.number - started.round)
        moved = self.rule.shared + weight * (shared.astype(np.float64) - started.shared)
        return without_negative_variances(self.rule.layout, moved.astype(np.float32))

    def trained_in(self, client: int) -> int:
        """Return the round that a client was told."""
        return self._trainings[client].round

    def outgoing(self, client: Client, kind: str) -> np.ndarray:
        """Return the arrays from which a training starts, as they were when it was asked for."""
        return self._trainings[client.id].shared if kind == TRAIN else super().outgoing(client, kind)

    def _draw(self, number: int) -> list[Client]:
        """Draw clients that are free, as many as bring those that train to the number of ``fraction-train``."""
        there = self.attendance.present(self.rule, self.round)
        free = [client for client in there if client.id not in self._trainings]
        count = min(self.settings.asked(len(self.rule.participants)) - len(self._trainings), len(free))
        chosen = generator(self.settings.seed, "clients", number).choice(len(free), max(0, count), replace=False)
        return [free[i] for i in sorted(chosen)]

    def _all_requests(self, clients: list[int]) -> list[Request]:
        """Return the requests of trainings, those of one round together: they share their arrays."""
        by_round: dict[int, list[Client]] = {}
        for client in clients:
            by_round.setdefault(self._trainings[client].round, []).append(self.rule.clients[client])
        return [one for number, asked in sorted(by_round.items()) for one in self.requests(asked, number, TRAIN)]
