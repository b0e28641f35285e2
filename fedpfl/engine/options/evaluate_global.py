"""The mean of the clients' whole models, for ``evaluate-global``.

FedReG's tables (Section 4.1) test it as the global model of methods that have none: the shared arrays as the rule made
them, the personal ones averaged over the clients of the round. Clients never train with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ...core.errors import ConfigError, LayoutError
from ...core.layout import Layout
from ...core.payload import EVALUATION_ONLY, Payload
from ...core.server_view import Client
from ...results.round_record import Round
from ...rules import Rule
from ...setup.mean_model import mean_model_layout
from ..listener import Listener, Server

STATE = "mean-model"


class MeanModel(Listener):
    """Averages personal arrays, weighted by training samples, and sends the mean with the tests that follow.

    With ``remembered`` those tests are in the next round, which a resumed run may begin with.
    """

    def __init__(self, layout: Layout, wanted_after: Callable[[int], bool], remembered: bool = False) -> None:
        self.layout = layout
        self.wanted_after = wanted_after
        self.remembered = remembered
        self._due = False
        self._sent: dict[str, np.ndarray] = {}

    def round_started(self, rule: Rule, done: Round, clients: Sequence[Client]) -> None:
        """Start the sums at zero."""
        self._due = self.wanted_after(done.number)
        self._sum = np.zeros(self.layout.size, np.float64)
        self._samples = 0.0

    def receive(self, rule: Rule, client: Client, shared: np.ndarray, reply: Payload) -> np.ndarray:
        """Require the personal arrays."""
        if self._due and EVALUATION_ONLY not in reply.arrays:
            raise LayoutError(f"a reply without the array {EVALUATION_ONLY!r} arrived")
        return shared

    def added(self, rule: Rule, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Add n_i·w_i."""
        if self._due:
            samples = client.train_samples * rule.damping(client)
            self._sum += samples * reply.arrays[EVALUATION_ONLY].astype(np.float64)
            self._samples += samples

    def combined(self, rule: Rule, done: Round) -> None:
        """Make the mean of what was added, ready to be sent."""
        if self._due:
            self._sent = {EVALUATION_ONLY: self._sum / max(1, self._samples)}

    def attach(self, rule: Rule, client: Client, kind: str) -> Mapping[str, np.ndarray]:
        """Send the mean to clients that are tested."""
        return self._sent if kind == "evaluate" else {}

    def state(self) -> dict[str, np.ndarray]:
        """Return the mean, if tests of the next round need it."""
        return {STATE: self._sent[EVALUATION_ONLY]} if self.remembered and self._sent else {}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Take it back."""
        self._sent = {EVALUATION_ONLY: state[STATE]} if STATE in state else {}


def mean_model(server: Server) -> MeanModel | None:
    """Return the listener of a run, if personal arrays travel; ``ConfigError`` where clients' models have no mean."""
    config, rule, agreed = server.config, server.rule, server.agreed
    personal = mean_model_layout(config, agreed.model, agreed.sharing)
    if not personal.size:
        return None
    if not rule.one_model:
        message = f"{config.method.name} has no mean: each client gets different arrays"
        raise ConfigError("evaluate-global", True, message)
    if len(set(agreed.classes)) > 1:
        raise ConfigError("evaluate-global", True, "clients with different numbers of classes have no mean model")
    return MeanModel(personal, config.run.evaluates_after, config.run.test_at == "start")
