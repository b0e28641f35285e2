"""Clients that come late, and the choice of who can be asked in a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING, getLogger
from typing import Any

import numpy as np

from ...core import references, user_code
from ...core.errors import ConfigError, FedpflError
from ...core.layout import Layout
from ...core.payload import Payload
from ...core.rng import generator
from ...core.server_view import Client, LastTraining
from ...results.round_record import Round
from ...results.run_folder import RunFolder
from ...rules import Rule
from ...setup.config import Config
from ...setup.options.availability import AvailabilitySettings
from ..agreement import agree_with
from ..client_sampling import ClientSampling
from ..transport import Members

logger = getLogger("flwr")

KEY = "available-clients"
STATE = "last trainings"  # a row each: client, round, loss, norm of the update

Available = Callable[[int, Sequence[Client], Mapping[int, LastTraining]], list[Client]]


class Availability(ClientSampling):
    """Also lets absent clients join, and asks those that a function of the user's names."""

    def __init__(self, config: Config, folder: RunFolder, transport: Members) -> None:
        super().__init__(config.run, transport.least)
        self._config, self._folder = config, folder
        self._available = available(config)
        self._trained: dict[int, LastTraining] = {}

    def begin(self, transport: Members, rule: Rule, done: Round) -> None:
        """Let clients take part that have come."""
        for number, description in sorted(transport.newcomers().items()):
            if admitted := self._admit(transport, number, description):
                rule.join(*admitted)
                done.joined.append(number)

    def _admit(self, transport: Members, client: int, description: Payload) -> tuple[Client, Layout | None] | None:
        """Store that an absent client takes part; return it and its slice's layout, None if it does not fit."""
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
        return joined, agreed.layouts.get(client)

    def askable(self, rule: Rule, done: Round) -> list[Client]:
        """Return the clients that ``available-clients`` names."""
        there = super().askable(rule, done)
        return there if self._available is None else self._available(done.number, there, dict(self._trained))

    def end(self, done: Round) -> None:
        """Note the clients' losses and the norms of their updates."""
        for client, metrics in done.trained.items():
            loss, norm = metrics.get("train-loss", math.nan), done.norms.get(client, 0.0)
            self._trained[client] = LastTraining(done.number, loss, norm)

    def state(self) -> dict[str, np.ndarray]:
        """Return them, if a function is given them."""
        rows = [(client, last.round, last.loss, last.update_norm) for client, last in sorted(self._trained.items())]
        return {STATE: np.array(rows)} if rows and self._available else {}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore them."""
        rows = state.get(STATE, np.empty((0, 4))).tolist()
        self._trained = {int(client): LastTraining(int(number), *numbers) for client, number, *numbers in rows}


def available(config: Config) -> Available | None:
    """Return who of those that are there can be asked in a round, by ``available-clients``; None: all of them."""
    if not (text := config.of(AvailabilitySettings).available_clients):
        return None
    if not references.is_reference(text):
        raise ConfigError(KEY, text, f"must be {references.FORM}")
    function = user_code.find(KEY, text)
    user_code.guarded(KEY, text, function)

    def available_in(number: int, there: Sequence[Client], trained: Mapping[int, LastTraining]) -> list[Client]:
        rng = generator(config.run.seed, "available clients", number)
        offered = {"round": number, "clients": list(there), "trained": trained, "rng": rng}
        said = user_code.call(KEY, text, function, offered)
        each: list[Any] = user_code.guarded(KEY, text, list)(said) if isinstance(said, Iterable) else [None]
        each = [client.item() if hasattr(client, "item") else client for client in each]
        if odd := [client for client in each if type(client) is not int]:  # truth values are a mask
            what = f" of {references.article(odd[0])}" if isinstance(said, Iterable) else ""
            raise ConfigError(KEY, text, f"returns {references.article(said)}{what}, and must return clients' numbers")
        named = {*each}
        if others := named - {client.id for client in there}:
            raise ConfigError(KEY, text, f"returns {min(others)} in round {number}, and there is no such client")
        if not (left := [client for client in there if client.id in named]):
            raise ConfigError(KEY, text, f"leaves no client in round {number}")
        return left

    return available_in
