"""Clients that come late, fall silent and come back, or are named by a recorded run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import ConfigError, FedpflError
from ...core.payload import Payload
from ...core.rng import generator
from ...core.server_view import Client
from ...results.record import Round
from ...results.run_folder import RunFolder, find_run
from ...rules import Rule
from ...setup.config import Config
from ...setup.options.participation import ParticipationSettings
from ..agreement import agree_with
from ..attendance import Attendance
from ..transport import Transport, Wait
from .available import available
from .clock import Clock

logger = getLogger("flwr")

# The name of who has been silent for how long, among a run's state.
SILENT = "silent_rounds"


@dataclass(frozen=True)
class Recorded:
    """A run of which another one repeats who counted."""

    lines: Mapping[int, Mapping[str, Any]]  # of its metrics, by round
    absent: frozenset[int]  # clients that were not there at its start

    @classmethod
    def of(cls, run: str, rounds: int, runs: Path) -> Recorded:
        """Read the run that ``replay`` names; it must have as many rounds as the one that repeats it."""
        folder = find_run(run, runs)
        lines = {int(line["round"]): line for line in folder.metrics()}
        if len(lines) < rounds:
            raise ConfigError("replay", folder.path.name, f"has {len(lines)} rounds, and num-server-rounds = {rounds}")
        joined = {client for line in lines.values() for client in line.get("joined", ())}
        nothing = {client for client, sizes in enumerate(folder.described().get("samples", ())) if not any(sizes)}
        return cls(lines, frozenset(joined | nothing))


class Participation(Attendance):
    """Also asks more clients than are waited for, forgets silent ones, lets absent ones join, or repeats a run."""

    clock: Clock | None = None  # of virtual time

    def __init__(self, config: Config, folder: RunFolder, transport: Transport) -> None:
        super().__init__(config.run, transport.least)
        self.who, self._config, self._folder = config.of(ParticipationSettings), config, folder
        rounds, runs = config.run.num_server_rounds, folder.path.parent
        self._recorded = Recorded.of(self.who.replay, rounds, runs) if self.who.replay else None
        text = self.who.available_clients
        self._available = available(text, config, folder.client_number) if text else None
        # How clients described themselves that join in the run that is repeated.
        self._later: dict[int, Payload] = {}
        # For each client the rounds in a row in which it was asked and did not answer.
        self._silent: dict[int, int] = {}

    def present_at_start(self, found: Mapping[int, Payload]) -> dict[int, Payload]:
        """Return the descriptions without those of clients that join later in the run that is repeated."""
        absent = self._recorded.absent if self._recorded else frozenset()
        self._later = {client: found[client] for client in absent & found.keys()}
        return {client: description for client, description in found.items() if client not in absent}

    def begin(self, transport: Transport, rule: Rule, done: Round) -> None:
        """Let clients take part that have come, and note which ones are not asked in a round."""
        line = self.recorded(done.number)
        joined = [] if line is None else line.get("joined", ())
        found = transport.newcomers() if line is None else {i: self._later[i] for i in joined if i in self._later}
        for number, description in sorted(found.items()):
            if client := self._admit(transport, number, description):
                rule.join(client)
                done.joined.append(number)
        if line is not None:
            done.forgotten = list(line.get("forgotten", ()))
        elif self.who.forget_after:
            silent = [client for client, rounds in self._silent.items() if rounds >= self.who.forget_after]
            for back in transport.speaking(silent):
                del self._silent[back]
            done.forgotten = sorted(self._silent.keys() & silent)

    def _admit(self, transport: Transport, client: int, description: Payload) -> Client | None:
        """Return a client that was absent, and store that it takes part; None if it does not fit the run's task."""
        task, said = self._folder.described(), int(description.config["num-classes"])
        try:
            if said > task["num_classes"]:
                words = f"client {client} has {said} classes, the run was started for {task['num_classes']}"
                raise FedpflError(words)
            agreed = agree_with(self._config, {client: description}, task)
        except FedpflError as error:
            logger.log(WARNING, "fedpfl: client %d cannot join: %s", client, error)
            return None
        joined = agreed.clients[client]
        logger.log(INFO, "fedpfl: client %d joins, with %d training samples", client, joined.train_samples)
        task, samples = self._folder.task(), [*task["samples"]]
        samples[client] = [joined.train_samples, joined.test_samples]
        models = {"models": {**task.get("models", {}), **agreed.models}} if agreed.models else {}
        known = {**transport.identities(), **task.get("identities", {})}
        self._folder.note(samples=samples, identities=known, **models)
        return joined

    def choose(self, rule: Rule, done: Round) -> list[Client]:
        """Draw the clients that are asked to train in a round, or take those of the recorded run."""
        asked = (self.recorded(done.number) or {}).get("asked")
        if asked is None:
            return super().choose(rule, done)
        return [client for client in rule.participants if client.id in asked]

    def drawn(self, clients: int) -> int:
        """Return how many of that many clients are drawn, more than are waited for."""
        return math.ceil(super().drawn(clients) * (1 + self.who.over_selection) - 1e-9)

    def sent(
        self, transport: Transport, rule: Rule, done: Round, chosen: Sequence[Client]
    ) -> tuple[list[Client], Wait]:
        """Return which of the chosen clients get a message, and how many replies are waited for, and how long."""
        done.asked = [client.id for client in chosen]
        asked, wait = super().sent(transport, rule, done, chosen)
        if (line := self.recorded(done.number)) is not None:
            self.require_counted(done.number, {client.id for client in chosen}, "is not asked")
            return [client for client in chosen if client.id in line["clients"]], wait
        wait = replace(wait, deadline=self.who.round_deadline, pace=self.who.round_deadline_pace)
        if self.who.drop_rate:
            done.dropped = self._drawn_to_drop(done.number, asked)
            asked = [client for client in asked if client.id not in done.dropped]
        if self.who.over_selection and not self.everyone(rule, done):
            wait = replace(wait, first=min(len(asked), super().drawn(len(self.askable(rule, done)))))
        return self.in_time(transport, asked, wait)

    def _drawn_to_drop(self, number: int, asked: Sequence[Client]) -> list[int]:
        """Return which of the clients that are asked drop out, by a number that each draws; min-replies stay."""
        drawn = {one.id: generator(self.settings.seed, "drop out", one.id, number).random() for one in asked}
        dropped = [client for client in sorted(drawn, key=drawn.__getitem__) if drawn[client] < self.who.drop_rate]
        return sorted(dropped[: max(0, len(asked) - self.settings.min_replies)])

    def in_time(self, transport: Transport, asked: list[Client], wait: Wait) -> tuple[list[Client], Wait]:
        """Return those of the asked clients among which the first to reply are, and how to wait for them."""
        if wait.first is None:
            return asked, wait
        first = set(transport.first({client.id: client.train_samples for client in asked}, wait.first))
        return [client for client in asked if client.id in first], wait

    def require_counted(self, number: int, there: Collection[int], otherwise: str) -> None:
        """Raise ``FedpflError`` if a client that counted in a round of the recorded run is not there."""
        line = self.recorded(number)
        if line is not None and (missing := set(line["clients"]) - {*there}):
            what = f"counted in round {number} of {self.who.replay} and {otherwise} here"
            raise FedpflError(f"replay: client {min(missing)} {what}")

    def trained(self, done: Round, chosen: Sequence[Client]) -> None:
        """Note who was not waited for, here or in the recorded run."""
        line = self.recorded(done.number)
        if line is not None:
            done.late, done.dropped = list(line.get("late", ())), list(line.get("dropped", ()))
        else:
            super().trained(done, [client for client in chosen if client.id not in done.dropped])

    def end(self, done: Round, chosen: Sequence[Client], answered: Collection[int]) -> None:
        """Count the rounds in which the clients that were asked have been silent."""
        for client in chosen:
            self._silent[client.id] = 0 if client.id in answered else self._silent.get(client.id, 0) + 1

    def state(self) -> dict[str, np.ndarray]:
        """Return who has been silent for how long, if that decides who is asked."""
        if not self.who.forget_after:
            return {}
        return {SILENT: np.array(sorted(self._silent.items()), np.int64).reshape(-1, 2)}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what :meth:`state` returned."""
        self._silent = dict(state[SILENT].tolist()) if SILENT in state else {}

    def present(self, rule: Rule, done: Round) -> list[Client]:
        """Return the participants that are there; all of them if none would be left."""
        gone = {*done.forgotten, *done.offline}
        return [client for client in rule.participants if client.id not in gone] or rule.participants

    def askable(self, rule: Rule, done: Round) -> list[Client]:
        """Return those of them that ``available-clients`` names."""
        there = super().askable(rule, done)
        return there if self._available is None else self._available(done.number, there)

    def recorded(self, number: int) -> Mapping[str, Any] | None:
        """Return the line of the run that is repeated; None if none is."""
        return None if self._recorded is None else self._recorded.lines[number]
