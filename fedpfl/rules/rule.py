"""What a rule is: it takes the clients' replies of a round one after the other and makes the next shared arrays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Union, cast

import numpy as np

from ..core.layout import Layout, rounded
from ..core.payload import Payload
from ..core.rng import generator
from ..core.server_view import Client, Federation
from ..core.user_code import require_hooks
from .running_mean import Averages, RunningMean, group_size

if TYPE_CHECKING:
    from torch import Tensor

# A client's shared vector, here or where it was computed.
Vector = Union[np.ndarray, "Tensor"]
# Makes the noise of differential privacy for a sum of clients' updates, of the same shape.
Noise = Callable[[np.ndarray], np.ndarray]


class Step(ABC):
    """A step of the server's own from what clients started from to the mean of what they sent, with its state."""

    @abstractmethod
    def __call__(self, start: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Return the new shared vector."""

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays on which the next step depends, by names that no rule uses."""

    @abstractmethod
    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore it."""


class Rule(ABC):
    """Base of the aggregation rules.

    A rule implements :meth:`begin`, :meth:`add` and :meth:`finish`. It may override :meth:`outgoing` to send each
    client another vector, :meth:`attachments` to send more, and :meth:`check` to refuse replies; :attr:`remembers`
    names all that it keeps between rounds. ``docs/contributing/architecture.md`` lists the order of the calls.

    Parameters
    ----------
    federation : Federation
        Clients, layout, seed.
    shared : ndarray of float32, shape (layout.size,)
        The initial shared arrays.

    Attributes
    ----------
    name : str
        What documentation and records call the rule.
    one_model : bool
        False: each client gets a different model, and there is no global one.
    only_a_sum : bool
        True: of clients' arrays the rule computes nothing but their sum, to which the server may thus add the noise of
        differential privacy. A class declares this for itself and never inherits it: a subclass may compute more.
    no_server_step : str
        Why ``server-optimizer`` cannot be used with the rule, after its name in a sentence; empty if the rule makes a
        mean and nothing else of :attr:`shared`. A class never inherits the empty one either.
    no_robust_mean : str
        Likewise for ``robust-aggregation``; empty if the rule makes its means by :meth:`averaging` alone.
    sees_personal : bool
        Whether the rule looks at clients' personal arrays too, to decide which ones are personal.
    starts_with_all : bool
        Whether all participants are asked to train in round 1, whatever ``fraction-train`` is.
    takes_shared : bool
        Whether the rule computes with clients' shared vectors. If not, clients do not send them, and :meth:`add` gets
        the vector that the client was sent.
    takes_slices : bool
        Whether a client may have a slice of the shared arrays: that of the run's model at a width.
    combines : bool
        Whether anything is made of replies. If not, settings of what clients send are refused.
    remembers : tuple of str
        Attributes, arrays all of them, that the next round depends on: they are stored with the run and come back when
        it is resumed, free to be written to. A class names its own; those of its bases are added.
    reads : tuple of str
        Numbers of a method's own (``conclude``) that the rule computes with. With differential privacy they are the
        only ones of those that leave a client, and no noise covers them.
    clients : dict of int to Client
        All clients, in order of their ids.
    participants : list of Client
        Those that train: all but the ones that are held out.
    layout : Layout
        Layout of the shared vector; a rule may share less in a later round and then sets another one.
    shared : ndarray of float32, shape (layout.size,)
        What clients get next, unless :meth:`outgoing` returns something else.
    round : int
        The round that is running, from 1.
    personal_round : dict of int to int
        For each client the last round in which its reply counted, 0 before the first. It changes between :meth:`add` of
        the last reply and :meth:`finish`.
    noise : callable or None
        Noise that a rule with ``only_a_sum`` has to add to its sum. All clients weigh alike then.
    server_step : Step or None
        Where the server goes from the mean that :meth:`finish` makes; ``None``: nowhere.
    averages : Averages
        What :meth:`averaging` and :meth:`damping` do.

    Examples
    --------
    The median of what clients send, value by value:

    >>> import fedpfl
    >>> import numpy as np
    >>> class Median(fedpfl.Rule):
    ...     name = "median"
    ...
    ...     def begin(self):
    ...         self.sent = []
    ...
    ...     def add(self, client, shared, reply):
    ...         self.sent.append(shared)
    ...
    ...     def finish(self):
    ...         self.shared = np.median(self.sent, axis=0).astype(np.float32)
    >>> class MedianMethod(fedpfl.Method):
    ...     name = "median"
    ...     aggregation = fedpfl.Aggregation(Median)
    """

    name: ClassVar[str]
    one_model: ClassVar[bool] = True
    only_a_sum: ClassVar[bool] = False
    no_server_step: ClassVar[str] = "does not compute a mean"
    no_robust_mean: ClassVar[str] = "does not compute a mean"
    sees_personal: ClassVar[bool] = False
    starts_with_all: ClassVar[bool] = False
    takes_shared: ClassVar[bool] = True
    takes_slices: ClassVar[bool] = False
    combines: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_hooks("rule", cls, Rule)
        cls.only_a_sum = vars(cls).get("only_a_sum", False)
        named = (name for base in reversed(cls.__mro__) for name in vars(base).get("remembers", ()))
        cls.remembers = tuple(dict.fromkeys(named))
        for reason in ("no_server_step", "no_robust_mean"):
            if not getattr(cls, reason) and reason not in vars(cls):
                setattr(cls, reason, getattr(Rule, reason))

    def __init__(self, federation: Federation, shared: np.ndarray) -> None:
        self.federation = federation
        self.clients = {client.id: client for client in federation.clients}
        self.participants = [client for client in federation.clients if client.id not in federation.held_out]
        self.layout = federation.layout
        self._layouts = dict(federation.layouts)
        self.shared = shared
        self.round = 0
        self.personal_round = dict.fromkeys(self.clients, 0)
        self.noise: Noise | None = None
        self.server_step: Step | None = None
        self.averages = Averages()
        self._largest_weight = math.inf
        self._groups: dict[int, int] = {}
        self.numbers: dict[str, float] = {}
        self.arrays: dict[str, np.ndarray] = {}

    def join(self, client: Client, layout: Layout | None = None) -> None:
        """Let a client take part that was absent, before a round; ``layout`` is that of its slice, if it has one."""
        if layout is not None:
            self._layouts[client.id] = layout
        self.clients[client.id] = client
        self.participants = sorted([*self.participants, client], key=lambda one: one.id)

    # -- a round -----------------------------------------------------------------------------------------------------

    def begin_round(self, number: int, asked: Sequence[Client] = ()) -> None:
        """Start a round, from 1: forget what was recorded of the one before, and :meth:`begin`.

        Parameters
        ----------
        number : int
            The round.
        asked : sequence of Client, optional
            The clients that are asked to train; all participants unless given.
        """
        self.round, self.numbers, self.arrays = number, {}, {}
        asked = asked or self.participants
        size = group_size(len(asked))
        self._groups = {client.id: place // size for place, client in enumerate(asked)} if size > 1 else {}
        self.bound_weights([client.train_samples for client in asked])
        self.begin()

    def bound_weights(self, samples: Sequence[float], most: float = math.inf) -> None:
        """Bound what one of the clients with so many samples counts in a round (``max-weight-share``), at ``most``."""
        self._largest_weight = min(most, self.averages.largest_weight(samples))

    def finish_round(self) -> None:
        """End a round: :meth:`finish`, then the server's own step if it has one."""
        before = self.shared
        self.finish()
        if self.server_step is not None:
            # What the clients started from: `wire-dtype` may have rounded it.
            self.shared = self.server_step(rounded(before, self.federation.wire_dtype), self.shared)

    def layout_of(self, client: Client) -> Layout:
        """Return the layout of what a client gets and sends, which is all of :attr:`layout` unless it has a slice."""
        return self._layouts.get(client.id, self.layout)

    @property
    def common(self) -> np.ndarray:
        """One vector that stands for all clients' shared arrays."""
        return self.shared

    def group(self, client: Client) -> int | None:
        """Return the group with which a client's vector is added up; None in a round of few clients."""
        return self._groups.get(client.id)

    def damping(self, client: Client) -> float:
        """Return the factor of a client's weight where that is a number of samples (``max-weight-share``)."""
        return min(1.0, self._largest_weight / client.train_samples) if client.train_samples else 1.0

    def averaging(self, size: int, start: np.ndarray | None = None) -> RunningMean:
        """Return an average of the clients' vectors of this length, as ``robust-aggregation`` says.

        ``start`` is what the clients started from, zeros unless it is given.
        """
        return self.averages.mean(size, start)

    @abstractmethod
    def begin(self) -> None:
        """Prepare for the replies of a round; called before any message of the round is made."""

    def outgoing(self, client: Client) -> np.ndarray:
        """Return the shared vector that ``client`` gets next; the same for all unless overridden."""
        return self.shared

    def attachments(self, client: Client, kind: str) -> Payload:
        """Return settings and arrays to send to ``client`` along with its shared vector.

        Called when the message is made. That may be before or after the replies of others: it must not depend on what
        :meth:`add` has taken in this round from anyone but ``client``, and a message that is made again must be the
        same. The arrays are those that the method's ``extras`` declare, in their shapes. Clients that get the same
        array object share one copy on the way; equal arrays are packed and sent once for each client.

        Parameters
        ----------
        client : Client
            Who gets the message.
        kind : str
            ``train`` or ``evaluate``.
        """
        return Payload()

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:  # noqa: B027  most have nothing to check
        """Raise ``LayoutError`` if a reply lacks what the rule needs; it comes from the network."""

    @abstractmethod
    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Take one client's reply; called in client order, whatever the order of arrival.

        Parameters
        ----------
        client : Client
            Who answered.
        shared : ndarray of float32, shape (layout.size,), or that of its slice
            Its shared arrays after training.
        reply : Payload
            Its numbers, and its further arrays as the method's ``extras`` declare them.
        """

    @property
    def only_adds(self) -> bool:
        """Whether replies are added up and nothing else is computed of each: :meth:`add_rows` then takes tensors."""
        return False

    def add_rows(self, clients: Sequence[Client], rows: Sequence[Vector], replies: Sequence[Payload]) -> None:
        """Take the replies that have come together, in client order: :meth:`add` each, unless overridden.

        Parameters
        ----------
        clients : sequence of Client
            Who answered.
        rows : sequence of ndarray, or of Tensor
            Their shared arrays after training, float32 of shape (layout.size,). Tensors, on the device that computed
            them, come only to a rule that :attr:`only_adds`.
        replies : sequence of Payload
            Their numbers and further arrays.
        """
        for client, row, reply in zip(clients, rows, replies):
            self.add(client, cast(np.ndarray, row), reply)

    @abstractmethod
    def finish(self) -> None:
        """Make the new shared arrays from what was added (at least one reply)."""

    def note(self, name: str, value: float) -> None:
        """Record a number of this round: it appears among the ``details`` of ``metrics.jsonl``."""
        self.numbers[name] = float(value)

    def keep(self, name: str, array: np.ndarray) -> None:
        """Record an array of this round: it is stored as a file in the run's ``arrays/NAME``."""
        self.arrays[name] = array

    def generator(self, purpose: str) -> np.random.Generator:
        """Return the source of the rule's random choices for one purpose in this round."""
        return generator(self.federation.seed, f"rule {purpose}", self.round)

    @contextmanager
    def torch_draws(self, purpose: str) -> Iterator[None]:
        """Have PyTorch draw from :meth:`generator`, such as a new module's weights; its own source stays as it was."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(self.generator(purpose).integers(2**63 - 1)))
            yield

    # -- between rounds ----------------------------------------------------------------------------------------------

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that the next round depends on, by name."""
        remembered = {name: getattr(self, name) for name in self.remembers}
        step = {} if self.server_step is None else self.server_step.state()
        counted = np.array(list(self.personal_round.values()), np.int64)
        return {"shared": self.shared, "personal_round": counted, **remembered, **step}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what :meth:`state` returned; its arrays are read-only.

        Raises
        ------
        LayoutError
            It is of another model.
        """
        self.layout.unflatten(state["shared"])
        self.shared = state["shared"]
        self.personal_round = dict(zip(self.clients, state["personal_round"].tolist()))
        for name in self.remembers:
            setattr(self, name, state[name].copy())
        if self.server_step is not None:
            self.server_step.load_state(state)

    def answered_before(self) -> list[int]:
        """Return the clients whose reply has counted in this or an earlier round, in order."""
        return [client for client, last in self.personal_round.items() if last]
