"""Who takes part in a round: those that ``fraction-train`` draws, and in its tests all."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ..core.payload import Payload
from ..core.rng import generator
from ..core.server_view import Client
from ..results.record import Round
from ..rules import Rule
from ..setup.config import RunSettings
from .transport import Members, Wait


class Attendance:
    """Decides who is asked in a round, and who is waited for: all that are drawn."""

    def __init__(self, settings: RunSettings, least: int = 1) -> None:
        self.settings, self.least = settings, least

    def present_at_start(self, answers: Mapping[int, Payload]) -> dict[int, Payload]:
        """Return the descriptions of the clients that take part from round 1 on."""
        return dict(answers)

    def take_rule(self, rule: Rule) -> None:
        """Take the run's rule, before round 1."""

    def begin(self, transport: Members, rule: Rule, done: Round) -> None:
        """Let clients take part that have come, and note which ones are not asked in a round."""

    def choose(self, rule: Rule, done: Round) -> list[Client]:
        """Draw the clients that are asked to train in a round."""
        clients = self.askable(rule, done)
        if self.everyone(rule, done):
            return clients
        count = min(len(clients), self.drawn(len(clients)))
        rng = generator(self.settings.seed, "clients", done.number)
        wanted = {clients[i].id for i in rng.choice(len(clients), count, replace=False)}
        return [client for client in rule.participants if client.id in wanted]

    def drawn(self, clients: int) -> int:
        """Return how many of that many clients are drawn: the share, and at least as many as a strategy asks for."""
        return max(self.settings.asked(clients), self.least)

    def sent(self, transport: Members, rule: Rule, done: Round, chosen: Sequence[Client]) -> tuple[list[Client], Wait]:
        """Return which of the chosen clients get a message, and how many replies are waited for, and how long."""
        return list(chosen), Wait(self.settings.round_timeout, least=self.settings.min_replies)

    def trained(self, done: Round, chosen: Sequence[Client]) -> None:
        """Note who was not waited for."""
        answered = done.trained.keys() | done.failed.keys()
        done.late = [client.id for client in chosen if client.id not in answered]

    def tested(self, rule: Rule, done: Round) -> list[Client]:
        """Return who is tested: after the last round also those that still train."""
        late = set() if done.number == self.settings.num_server_rounds else {*done.late}
        return [client for client in self.present(rule, done) if client.id not in late]

    def end(self, done: Round, chosen: Sequence[Client], answered: Collection[int]) -> None:
        """End a round, in which these clients have answered."""

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays that a resumed run needs."""
        return {}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what :meth:`state` returned."""

    def everyone(self, rule: Rule, done: Round) -> bool:
        """Return whether all are asked, whatever ``fraction-train`` is."""
        return done.number == 1 and rule.starts_with_all

    def present(self, rule: Rule, done: Round) -> list[Client]:
        """Return the participants that are there."""
        return rule.participants

    def askable(self, rule: Rule, done: Round) -> list[Client]:
        """Return the participants among which are drawn those that are asked to train: that have samples for it."""
        there = self.present(rule, done)
        return [client for client in there if client.train_samples] or there
