"""The hooks of a round, for everything that goes along with it and is not the algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import require_hooks
from ..core.federation import Client
from ..core.payload import Payload
from ..results.record import Round
from ..rules import Rule


class Companion:
    """Goes along with the rounds: records, measures, bounds, or ends the run. Each hook does nothing unless overridden.

    The order in a round, with the rule's own calls in brackets:

    1. [``begin``], :meth:`begin`;
    2. for each message to train [``outgoing``, ``attachments``], :meth:`attach`;
    3. for each reply, in client order [``check``], :meth:`receive`, [``add``], :meth:`added`;
    4. [``finish``], :meth:`combined`;
    5. for each message to test, in rounds with tests, as in 2;
    6. :meth:`ended`.

    2 and 3 overlap: a message may be made after another client's reply was added. Companions are called in the order in
    which they were given.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_hooks("companion", cls, Companion)

    def begin(self, rule: Rule, done: Round, clients: Sequence[Client]) -> None:
        """Prepare for a round in which these clients are asked to train."""

    def attach(self, rule: Rule, client: Client, kind: str) -> Mapping[str, np.ndarray]:
        """Return arrays that a message of this kind (``train`` or ``evaluate``) to a client carries besides.

        The method's or :mod:`fedpfl.setup.assembly`'s extras declare them.
        """
        return {}

    def receive(self, rule: Rule, client: Client, shared: np.ndarray, reply: Payload) -> np.ndarray:
        """Return a client's shared arrays as the rule is to take them.

        Raises
        ------
        LayoutError
            Something is wrong with the reply, which then counts as none.
        """
        return shared

    def added(self, rule: Rule, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Look at what the rule has just taken."""

    def combined(self, rule: Rule, done: Round) -> None:
        """Look at what the rule has made of all replies."""

    def ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Look at the finished round and at all that the next one depends on; return whether the run is to end."""
        return False

    def state(self) -> dict[str, np.ndarray]:
        """Return what the companion remembers between rounds, by names that nobody else uses."""
        return {}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Take back what :meth:`state` returned, among others' arrays."""
