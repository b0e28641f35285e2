"""Who takes part in a round: those that ``fraction-train`` draws, and in its tests all."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..core.rng import generator
from ..core.server_view import Client
from ..results.round_record import Round
from ..rules import Rule
from ..setup.config import RunSettings
from .transport import Members


class ClientSampling:
    """Decides who is asked in a round."""

    def __init__(self, settings: RunSettings, least: int = 1) -> None:
        self.settings, self.least = settings, least

    def begin(self, transport: Members, rule: Rule, done: Round) -> None:
        """Let clients take part that have come."""

    def end(self, done: Round) -> None:
        """Note what a finished round told of the clients."""

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays on which the choices of later rounds depend, under names of their own."""
        return {}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what :meth:`state` returned, found among the arrays of others."""

    def choose(self, rule: Rule, done: Round) -> list[Client]:
        """Draw who is asked to train: the share, at least ``least``; in round 1 all if the rule starts with all."""
        clients = self.askable(rule, done)
        if done.number == 1 and rule.starts_with_all:
            return clients
        count = min(len(clients), max(self.settings.asked(len(clients)), self.least))
        rng = generator(self.settings.seed, "clients", done.number)
        wanted = {clients[i].id for i in rng.choice(len(clients), count, replace=False)}
        return [client for client in rule.participants if client.id in wanted]

    def tested(self, rule: Rule, done: Round) -> list[Client]:
        """Return who is tested."""
        return self.present(rule, done)

    def present(self, rule: Rule, done: Round) -> list[Client]:
        """Return the participants that are there."""
        return rule.participants

    def askable(self, rule: Rule, done: Round) -> list[Client]:
        """Return the participants among which are drawn those that are asked to train: that have samples for it."""
        there = self.present(rule, done)
        return [client for client in there if client.train_samples] or there
