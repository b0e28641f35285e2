"""Who takes part in a round: clients come late, fall silent and come back, or a recorded run names them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import ConfigError, FedpflError
from ..core.federation import Client
from ..core.payload import Payload
from ..core.rng import generator
from ..results.record import Round
from ..results.run import find_run
from ..rules import Rule
from ..setup.config import RunSettings
from .clock import SECOND, Clock, first_in_time
from .transport import EVALUATE, TRAIN, Transport, Wait

SILENT = "silent_rounds"


@dataclass(frozen=True)
class Recorded:
    """A run of which another one repeats who counted."""

    lines: Mapping[int, Mapping[str, Any]]  # of its metrics, by round
    absent: frozenset[int]  # clients that were not there at its start

    @classmethod
    def of(cls, settings: RunSettings, runs: Path) -> Recorded:
        """Read the run that ``replay`` names; it must have as many rounds as the one that repeats it."""
        folder, rounds = find_run(settings.replay, runs), settings.num_server_rounds
        lines = {int(line["round"]): line for line in folder.metrics()}
        if len(lines) < rounds:
            raise ConfigError("replay", folder.path.name, f"has {len(lines)} rounds, and num-server-rounds = {rounds}")
        joined = {client for line in lines.values() for client in line.get("joined", ())}
        nothing = {client for client, sizes in enumerate(folder.described().get("samples", ())) if not any(sizes)}
        return cls(lines, frozenset(joined | nothing))


class Attendance:
    """Decides who is asked in a round, and keeps who has been silent.

    ``admit`` checks the description of a client that was absent, and returns the client or None. ``later`` are the
    descriptions of clients that join that ``recorded`` names. With a ``clock``, its virtual time decides which clients
    are there and which replies come first.
    """

    def __init__(
        self,
        settings: RunSettings,
        admit: Callable[[int, Payload], Client | None] = lambda client, description: None,
        recorded: Recorded | None = None,
        later: Mapping[int, Payload] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._settings, self._admit, self.clock = settings, admit, clock
        self._recorded, self._later = recorded, later or {}
        # For each client the rounds in a row in which it was asked and did not answer.
        self._silent: dict[int, int] = {}
        # Of the round: how many messages were sent, and after how many microseconds nobody is waited for any longer.
        self._messages, self._until = 0, 0

    def begin(self, transport: Transport, rule: Rule, done: Round) -> None:
        """Let clients take part that have come, and note which ones are not asked in a round."""
        line = self.recorded(done.number)
        joined = [] if line is None else line.get("joined", ())
        found = transport.newcomers() if line is None else {i: self._later[i] for i in joined if i in self._later}
        for number, description in sorted(found.items()):
            if client := self._admit(number, description):
                rule.join(client)
                done.joined.append(number)
        if line is not None:
            done.forgotten = list(line.get("forgotten", ()))
        elif self._settings.forget_after:
            silent = [client for client, rounds in self._silent.items() if rounds >= self._settings.forget_after]
            for back in transport.speaking(silent):
                del self._silent[back]
            done.forgotten = sorted(self._silent.keys() & silent)
        self._messages = self._until = 0
        if self.clock is not None:
            self.clock.begin()
            done.offline = self.clock.offline(client.id for client in rule.participants)

    def choose(self, rule: Rule, done: Round) -> list[Client]:
        """Draw the clients that are asked to train in a round, or take those of the recorded run."""
        clients = self.present(rule, done)
        asked = (self.recorded(done.number) or {}).get("asked")
        if asked is None and self._everyone(rule, done):
            return clients
        if asked is None:
            over = math.ceil(self._settings.asked(len(clients)) * (1 + self._settings.over_selection) - 1e-9)
            rng = generator(self._settings.seed, "clients", done.number)
            asked = [clients[i].id for i in rng.choice(len(clients), min(len(clients), over), replace=False)]
        wanted = set(asked)
        return [client for client in rule.participants if client.id in wanted]

    def sent(
        self, transport: Transport, rule: Rule, done: Round, chosen: Sequence[Client]
    ) -> tuple[list[Client], Wait]:
        """Return which of the chosen clients get a message, and how many replies are waited for, and how long."""
        settings = self._settings
        wait = Wait(
            settings.round_timeout, None, settings.round_deadline, settings.round_deadline_pace, settings.min_replies
        )
        if settings.records_asked:
            done.asked = [client.id for client in chosen]
        if (line := self.recorded(done.number)) is not None:
            if missing := set(line["clients"]) - {client.id for client in chosen}:
                what = f"counted in round {done.number} of {settings.replay} and is not asked here"
                raise FedpflError(f"replay: client {min(missing)} {what}")
            return [client for client in chosen if client.id in line["clients"]], replace(wait, deadline=0.0, pace=0.0)
        everyone = not settings.over_selection or self._everyone(rule, done)
        count = len(chosen) if everyone else min(len(chosen), settings.asked(len(self.present(rule, done))))
        if self.clock is not None:
            in_time = self._in_time(self.clock, chosen, count, wait)
            return [client for client in chosen if client.id in in_time], wait
        if everyone:
            return list(chosen), wait
        first = set(transport.first({client.id: client.train_samples for client in chosen}, count))
        return [client for client in chosen if client.id in first], replace(wait, first=count)

    def _in_time(self, clock: Clock, chosen: Sequence[Client], count: int, wait: Wait) -> set[int]:
        """Return the clients whose replies come in time."""
        limits = [round(wait.deadline * SECOND), round(wait.pace * clock.pace())]
        limit = min(filter(None, limits), default=None)
        due = {client: moment - clock.now for client, moment in clock.due(chosen, TRAIN).items()}
        found = first_in_time(due, count, limit, wait.least)
        if limit is not None and len(found) < count:
            self._until = limit
        return {*found}

    def trained(self, done: Round, chosen: Sequence[Client]) -> None:
        """Note who was not waited for, and how long it took."""
        line = self.recorded(done.number)
        answered = done.trained.keys() | done.failed.keys()
        late = [client.id for client in chosen if client.id not in answered]
        done.late = late if line is None else list(line.get("late", ()))
        if self.clock is not None:
            # Replies to tests have next to no bytes.
            self.clock.count_bytes(done.bytes_down, self._messages + len(answered), done.bytes_up, len(done.trained))
            begun, due = self.clock.now, self.clock.due(chosen, TRAIN, keep=True)
            self.clock.now = max(begun + self._until, *(due[client] for client in due.keys() & answered))

    def tested(self, rule: Rule, done: Round) -> list[Client]:
        """Return who is tested: after the last round also those that still train."""
        late = set() if done.number == self._settings.num_server_rounds else {*done.late}
        if self.clock is None:
            return [client for client in self.present(rule, done) if client.id not in late]
        late.update(self.clock.offline(client.id for client in rule.participants))
        found = [client for client in rule.participants if client.id not in late]
        self._messages += len(found)
        self.clock.now = max(self.clock.due(found, EVALUATE, keep=True).values(), default=self.clock.now)
        return found

    def end(self, done: Round, chosen: Sequence[Client], answered: Collection[int]) -> None:
        """Count the rounds in which the clients that were asked have been silent."""
        if self.clock is not None:
            done.seconds_virtual, done.joules = self.clock.end()
        for client in chosen:
            self._silent[client.id] = 0 if client.id in answered else self._silent.get(client.id, 0) + 1

    def state(self) -> dict[str, np.ndarray]:
        """Return who has been silent for how long, if that decides who is asked, and the clock's state."""
        found = {} if self.clock is None else self.clock.state()
        if not self._settings.forget_after:
            return found
        return {**found, SILENT: np.array(sorted(self._silent.items()), np.int64).reshape(-1, 2)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what :meth:`state` returned."""
        self._silent = dict(state[SILENT].tolist()) if SILENT in state else {}
        if self.clock is not None:
            self.clock.load_state(state)

    def _everyone(self, rule: Rule, done: Round) -> bool:
        return done.number == 1 and rule.starts_with_all

    def present(self, rule: Rule, done: Round) -> list[Client]:
        """Return the participants that are asked at all; all of them if none would be left."""
        gone = {*done.forgotten, *done.offline}
        return [client for client in rule.participants if client.id not in gone] or rule.participants

    def recorded(self, number: int) -> Mapping[str, Any] | None:
        """Return the line of the run that is repeated; None if none is."""
        return None if self._recorded is None else self._recorded.lines[number]
