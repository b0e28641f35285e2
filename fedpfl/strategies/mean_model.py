"""The mean of the clients' whole models, for ``evaluate-global``.

FedReG's tables (Section 4.1) test it as the global model of methods that have none: the shared arrays as the rule made
them, the personal ones averaged over the clients of the round. Clients never train with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..core.errors import LayoutError
from ..core.federation import Client
from ..core.layout import Layout
from ..core.payload import EVALUATION_ONLY, Payload
from ..results.record import Round
from ..rules import Rule
from .companion import Companion


class MeanModel(Companion):
    """Averages personal arrays, weighted by training samples, and sends the mean with the tests.

    Parameters
    ----------
    layout : Layout
        Layout of the personal arrays.
    tested_in : callable, int → bool
        Says of a round whether clients are tested in it: only then do they send their personal arrays.
    """

    def __init__(self, layout: Layout, tested_in: Callable[[int], bool]) -> None:
        self.layout = layout
        self.tested_in = tested_in
        self._due = False
        self._sent: dict[str, np.ndarray] = {}

    def begin(self, rule: Rule, done: Round, clients: Sequence[Client]) -> None:
        """Start the sums at zero."""
        self._due = self.tested_in(done.number)
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
