"""The listener: the one interface for everything about a run that is not the algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.errors import ConfigError, LayoutError
from ..core.extra_arrays import Extras
from ..core.payload import Payload
from ..core.references import article
from ..core.server_view import Client
from ..core.user_code import require_hooks
from ..results.round_record import Round
from ..results.run_folder import RunFolder
from ..rules import Rule, Vector
from ..setup.config import Config
from .agreement import Agreement

if TYPE_CHECKING:
    from torch import Tensor


class Server(NamedTuple):
    """What the server of a run has once the task is agreed: what listeners are made of."""

    config: Config
    folder: RunFolder
    agreed: Agreement
    rule: Rule
    extras: Extras


class CheckedReply(NamedTuple):
    """A client's reply as the rule takes it."""

    client: Client
    shared: Vector
    reply: Payload


class Listener:
    """Follows a run on the server: records, displays, measures, limits, or ends it.

    Each hook does nothing unless it is overridden. The order in a run, with the rule's own calls in brackets:

    1. :meth:`run_started`;
    2. [``begin``], :meth:`round_started`;
    3. for each message to train [``outgoing``, ``attachments``], :meth:`attach`;
    4. for each reply, in client order [``check``], :meth:`receive`, [``add``], :meth:`added`; all before the first
       ``add`` where a listener :meth:`compares` them;
    5. [``finish``], :meth:`combined`;
    6. for each message to test, in rounds with tests, as in 3;
    7. :meth:`round_ended`; then 2 again, or
    8. :meth:`run_ended`.

    3 and 4 overlap: a message may be made after another client's reply was added. Replies that come together are all
    received before the first of them is added. Vectors that a batch of clients has computed stay there, and are
    received by :meth:`receive_rows`, unless a listener needs each (:meth:`sees_each_reply`). Listeners are called in
    the order in which they were given. The package's own are first, so that ``done.line`` has the record of the round
    in :meth:`round_ended`.

    Examples
    --------
    >>> from fedpfl import Listener
    >>> class Best(Listener):
    ...     accuracy = 0.0
    ...
    ...     def round_ended(self, rule, done, state):
    ...         self.accuracy = max(self.accuracy, done.line["personalised"]["accuracy"])
    ...         return self.accuracy > 0.99
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_hooks("listener", cls, Listener)

    def run_started(self, folder: RunFolder, remarks: Sequence[str]) -> None:
        """Prepare for the rounds; the clients are known, and ``remarks`` is what a user should know of them."""

    def round_started(self, rule: Rule, done: Round, clients: Sequence[Client]) -> None:
        """Prepare for a round in which these clients are asked to train."""

    def attach(self, rule: Rule, client: Client, kind: str) -> Mapping[str, np.ndarray]:
        """Return more arrays for a message of this kind (``train`` or ``evaluate``) to a client.

        The method's or :mod:`fedpfl.setup.assembly`'s extras declare them.
        """
        return {}

    def receive(self, rule: Rule, client: Client, shared: np.ndarray, reply: Payload) -> np.ndarray:
        """Return a client's shared vector as the rule should take it: float32 or float64, of the layout's size.

        Raises
        ------
        LayoutError
            The reply is refused; it counts as a failure of this client.
        """
        return shared

    def compares(self, rule: Rule) -> bool:
        """Return whether the replies of this round are to wait until all can be compared (:meth:`compare`)."""
        return False

    def compare(self, replies: Sequence[CheckedReply]) -> Mapping[Client, str]:
        """Return why replies do not count beside all others of the round, by client; called before any counts."""
        return {}

    def added(self, rule: Rule, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Use a reply that the rule has just taken."""

    def sees_each_reply(self) -> bool:
        """Return whether the listener needs each vector here, so that none may stay where it was computed."""
        return any(getattr(type(self), hook) is not getattr(Listener, hook) for hook in ("receive", "added"))

    def receive_rows(
        self, rule: Rule, clients: Sequence[Client], rows: Sequence[Tensor]
    ) -> Sequence[LayoutError | None]:
        """Return why each reply is refused, or None, by its vector alone, in place of :meth:`receive`."""
        return [None] * len(clients)

    def combined(self, rule: Rule, done: Round) -> None:
        """Use the rule's result of all replies."""

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Use the finished round and all that the next one depends on; return True to end the run."""
        return False

    def run_ended(self, reason: str) -> None:
        """Clean up; ``reason`` tells why the run failed, and is empty if it ended well."""

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays that a resumed run needs, under names that no other listener uses."""
        return {}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what :meth:`state` returned, found among the arrays of others."""


def require_listeners(key: str, listeners: Any) -> None:
    """Raise ``ConfigError`` about ``key`` for anything that is no list of listeners."""
    for listener in listeners if isinstance(listeners, Sequence) else [listeners]:
        if listener is listeners or not isinstance(listener, Listener):
            hint = "; give an instance, not the class" if isinstance(listener, type) else ""
            raise ConfigError(key, article(listener), f"must be a list of fedpfl.Listener objects{hint}")
