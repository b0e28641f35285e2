"""Participation in virtual time: the clock decides which clients are there, and whose replies come in time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...client.options import of_client
from ...core.errors import ConfigError
from ...core.names import shape_of
from ...core.server_view import Client
from ...results.record import Round
from ...results.run_folder import RunFolder
from ...rules import Rule
from ...setup.config import Config
from ...setup.options.virtual_time import VirtualTimeSettings
from ..transport import EVALUATE, TRAIN, Members, Wait
from .clock import SECOND, VirtualClock, first_in_time
from .devices import KEY, read_bench
from .participation import Participation


class TimedParticipation(Participation):
    """Asks a :class:`VirtualClock`, which is made when the first round begins."""

    clock: VirtualClock

    def __init__(self, config: Config, folder: RunFolder, transport: Members) -> None:
        if transport.real:
            place = config.of(VirtualTimeSettings).devices_model
            raise ConfigError(KEY, place, "must be empty where real devices set the pace")
        super().__init__(config, folder, transport)
        # Of the round: how many messages were sent, and after how many microseconds nobody is waited for any longer.
        self._messages, self._until = 0, 0

    def take_rule(self, rule: Rule) -> None:
        """Make the clock, for messages of the size of the rule's shared arrays."""
        shape = shape_of(self._folder.task()["input_shape"])
        size = rule.layout.size * np.dtype(self._config.run.wire_dtype).itemsize
        bench = read_bench(self._config, shape)
        config = self._config
        settings_of = of_client(config, self._folder.task().get("client_names", ()))
        training = (
            (lambda client: config.training)
            if settings_of is None
            else lambda client: settings_of(config, client).training
        )
        self.clock = VirtualClock(bench, training, size, size if rule.takes_shared else 0)

    def begin(self, transport: Members, rule: Rule, done: Round) -> None:
        """Begin the round of the clock as well, and note who is offline."""
        super().begin(transport, rule, done)
        self._messages = self._until = 0
        self.clock.begin()
        done.offline = self.clock.offline(client.id for client in rule.participants)

    def in_time(self, transport: Members, asked: list[Client], wait: Wait) -> tuple[list[Client], Wait]:
        """Return the clients whose replies come in time."""
        limit = round(wait.deadline * SECOND) or None
        due = {client: moment - self.clock.now for client, moment in self.clock.due(asked, TRAIN).items()}
        count = len(asked) if wait.first is None else wait.first
        first = first_in_time(due, count, limit, wait.least)
        if limit is not None and len(first) < count:
            self._until = limit
        return [client for client in asked if client.id in first], replace(wait, first=None)

    def trained(self, done: Round, chosen: Sequence[Client]) -> None:
        """Note who was not waited for, and how long it took."""
        super().trained(done, chosen)
        answered = done.trained.keys() | done.failed.keys()
        # Replies to tests have next to no bytes.
        self.clock.count_bytes(done.bytes_down, self._messages + len(answered), done.bytes_up, len(done.trained))
        begun, due = self.clock.now, self.clock.due(chosen, TRAIN, keep=True)
        self.clock.now = max(begun + self._until, *(due[client] for client in due.keys() & answered))

    def tested(self, rule: Rule, done: Round) -> list[Client]:
        """Return who is tested: of those that are on the network after the last round also who still trains."""
        late = set() if done.number == self.settings.num_server_rounds else {*done.late}
        late.update(self.clock.offline(client.id for client in rule.participants))
        tested = [client for client in rule.participants if client.id not in late]
        self._messages += len(tested)
        self.clock.now = max(self.clock.due(tested, EVALUATE, keep=True).values(), default=self.clock.now)
        return tested

    def end(self, done: Round, chosen: Sequence[Client], answered: Collection[int]) -> None:
        """Note the round's time."""
        done.seconds_virtual, done.joules = self.clock.end()
        super().end(done, chosen, answered)

    def state(self) -> dict[str, np.ndarray]:
        """Return the clock's state as well."""
        return {**self.clock.state(), **super().state()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self.clock.load_state(state)
