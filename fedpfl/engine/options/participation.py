"""Clients that come late, are absent in a round, or are asked beyond those that are needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from logging import INFO, WARNING, getLogger

from ...core.errors import FedpflError
from ...core.payload import Payload
from ...core.server_view import Client
from ...results.record import Round
from ...results.run_folder import RunFolder
from ...rules import Rule
from ...setup.config import Config
from ...setup.options.participation import ParticipationSettings
from ..agreement import agree_with
from ..attendance import Attendance
from ..transport import Members, Wait
from .available import available
from .clock import VirtualClock

logger = getLogger("flwr")


class Participation(Attendance):
    """Also asks more clients than are waited for, lets absent ones join, or asks those that are available."""

    clock: VirtualClock | None = None  # of virtual time

    def __init__(self, config: Config, folder: RunFolder, transport: Members) -> None:
        super().__init__(config.run, transport.least)
        self.who, self._config, self._folder = config.of(ParticipationSettings), config, folder
        text = self.who.available_clients
        self._available = available(text, config, folder.client_number) if text else None

    def begin(self, transport: Members, rule: Rule, done: Round) -> None:
        """Let clients take part that have come."""
        for number, description in sorted(transport.newcomers().items()):
            if client := self._admit(transport, number, description):
                rule.join(client)
                done.joined.append(number)

    def _admit(self, transport: Members, client: int, description: Payload) -> Client | None:
        """Return a client that was absent, and store that it takes part; None if it does not fit the run's task."""
        task, said = self._folder.described(), int(description.config["num-classes"])
        try:
            if said > task["num_classes"]:
                message = f"client {client} has {said} classes, the run was started for {task['num_classes']}"
                raise FedpflError(message)
            agreed = agree_with(self._config, {client: description}, task)
        except FedpflError as error:
            logger.log(WARNING, "fedpfl: client %d cannot join: %s", client, error)
            return None
        joined = agreed.clients[client]
        logger.log(INFO, "fedpfl: client %d joins, with %d training samples", client, joined.train_samples)
        task, samples = self._folder.task(), [*task["samples"]]
        samples[client] = [joined.train_samples, joined.test_samples]
        models = {"models": {**task.get("models", {}), **agreed.models}} if agreed.models else {}
        identities = {**transport.identities(), **task.get("identities", {})}
        self._folder.note(samples=samples, identities=identities, **models)
        return joined

    def drawn(self, clients: int) -> int:
        """Return the number of clients that are drawn, more than are waited for."""
        return math.ceil(super().drawn(clients) * (1 + self.who.over_selection) - 1e-9)

    def sent(self, transport: Members, rule: Rule, done: Round, chosen: Sequence[Client]) -> tuple[list[Client], Wait]:
        """Return the chosen clients that get a message, and the wait for their replies."""
        done.asked = [client.id for client in chosen]
        asked, wait = super().sent(transport, rule, done, chosen)
        wait = replace(wait, deadline=self.who.round_deadline)
        if self.who.over_selection and not self.everyone(rule, done):
            wait = replace(wait, first=min(len(asked), super().drawn(len(self.askable(rule, done)))))
        return self.in_time(transport, asked, wait)

    def in_time(self, transport: Members, asked: list[Client], wait: Wait) -> tuple[list[Client], Wait]:
        """Return the asked clients among which the first to reply are, and the wait for them."""
        if wait.first is None:
            return asked, wait
        first = set(transport.first({client.id: client.train_samples for client in asked}, wait.first))
        return [client for client in asked if client.id in first], wait

    def present(self, rule: Rule, done: Round) -> list[Client]:
        """Return the participants that are there; all of them if none would be left."""
        return [client for client in rule.participants if client.id not in done.offline] or rule.participants

    def askable(self, rule: Rule, done: Round) -> list[Client]:
        """Return the clients that ``available-clients`` names."""
        there = super().askable(rule, done)
        return there if self._available is None else self._available(done.number, there)
