"""The base of all strategies: the round loop, and what every aggregation rule can rely on.

Flower's own loop waits up to 3 s between looks for replies, has no checkpoint, and "completes" when every client
fails. This one leaves it to a transport how clients are reached. It hands replies to the rule in client order, each as
soon as its turn comes: sums in a fixed order are the same to the bit, however the replies arrive. It records every
round, so that a run can be resumed, and fails with the clients' own words.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from logging import INFO, WARNING, getLogger
from typing import Any, ClassVar, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from ..core.errors import ConfigError, FedpflError, LayoutError
from ..core.extras import CLIENT, SERVER, Extras
from ..core.layout import Layout
from ..core.payload import EVALUATION_ONLY, Payload
from ..core.rng import generator
from ..core.settings import Value
from ..setup.config import RunSettings
from ..transports import Client, Request, Transport
from ..transports.base import array_bytes, count_bytes
from .diagnostics import Diagnostics
from .mean_model import MeanModel
from .privacy import ServerPrivacy

__all__ = ["Client", "PersonalisedStrategy", "Recorder", "Round", "RoundFailed"]

logger = getLogger("flwr")

# Numbers that a reply must have: what is computed with here.
REQUIRED = {
    MessageType.TRAIN: ("train-samples", "train-loss"),
    MessageType.EVALUATE: ("personalised-correct", "personalised-loss-sum", "personalised-samples"),
}
# Models that a reply may have the scores of: all three numbers, or none.
TESTED = ("trained", "personalised", "global", "validation")
# Of round-timeout, in rounds with tests: training waits no longer than leaves them this share.
LEAST_FOR_TESTS = 0.25
# Vectors that go to several clients are packed once: of this many different ones, the latest.
KEPT_PACKED = 16
# Of a round in which nobody trained, the reasons that are told.
TOLD_REASONS = 3


@dataclass
class Round:
    """What one round did, as it is recorded.

    Attributes
    ----------
    number : int
        From 1.
    trained, evaluated : dict
        Numbers reported by each client, by client id.
    failed : dict
        Reasons of clients that did not answer or answered with an error, by client id.
    seconds_train, seconds_evaluate : float
        Wall time of the two halves, messages included.
    bytes_down, bytes_up : int
        Content of all messages to and from clients.
    bytes_evaluation_only : int
        Not among those: what travels for ``evaluate-global`` alone, both ways.
    details : dict of str to float
        What the rule itself measured, for ``metrics.jsonl``.
    arrays : dict of str to ndarray
        What the rule wants kept of this round, each in a file of its own.
    privacy : dict of str to float
        What differential privacy has cost so far, see :meth:`ServerPrivacy.spent`; empty without it.
    """

    number: int
    trained: dict[int, dict[str, float]] = field(default_factory=dict)
    evaluated: dict[int, dict[str, float]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    seconds_train: float = 0.0
    seconds_evaluate: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_evaluation_only: int = 0
    details: dict[str, float] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    privacy: dict[str, float] = field(default_factory=dict)


class Recorder(Protocol):
    """Where rounds are recorded, before the next one starts."""

    def record(self, done: Round, strategy: PersonalisedStrategy) -> bool:
        """Store what the round did and the strategy's state after it; return whether the run is to end early."""


def new_clients(settings: RunSettings, num_clients: int) -> list[int]:
    """Draw the clients that are held out as new ones: ``new-clients`` of all, but never all; in order."""
    count = min(round(settings.new_clients * num_clients), num_clients - 1)
    return sorted(generator(settings.seed, "new-clients").choice(num_clients, count, replace=False).tolist())


class RoundFailed(FedpflError):
    """Too few clients answered in a round."""


class PersonalisedStrategy(Strategy):
    """Base of the aggregation rules.

    A rule implements :meth:`begin`, :meth:`add` and :meth:`finish`, which combine the replies of a round, and may
    override :meth:`outgoing` to send each client something else, :meth:`attachments` to send more, :meth:`check`,
    and :meth:`state` with :meth:`load_state` for all that it remembers between rounds.

    Parameters
    ----------
    clients : sequence of Client
        All clients of the federation, by id.
    layout : Layout
        Layout of the shared vector.
    shared : ndarray of float32, shape (layout.size,)
        The initial shared arrays.
    settings : RunSettings
        Rounds, share of clients, seed, time limits.
    state_key : str
        Key under which clients keep their personal state.
    """

    rule: ClassVar[str]
    one_model: ClassVar[bool] = True  # False: each client gets a model of its own, and there is no global one
    # True: of clients' arrays the rule computes nothing but their sum, to which the server may thus add the noise of
    # differential privacy. A class says so of itself: what a subclass computes is another matter.
    only_a_sum: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.only_a_sum = vars(cls).get("only_a_sum", False)

    def __init__(
        self, clients: Sequence[Client], layout: Layout, shared: np.ndarray, settings: RunSettings, state_key: str
    ) -> None:
        self.clients = {client.id: client for client in sorted(clients, key=lambda c: c.id)}
        self.layout = layout
        self.shared = shared
        self.settings = settings
        self.state_key = state_key
        # The last round of each client whose reply counted: the client goes on from what it held after it.
        self.personal_round = dict.fromkeys(self.clients, 0)
        self._new = frozenset(new_clients(settings, len(self.clients)))
        self.extras = Extras()
        self.recorder: Recorder | None = None
        self.mean_model: MeanModel | None = None
        self.privacy: ServerPrivacy | None = None
        self._diagnostics = Diagnostics() if settings.diagnostics else None
        self._round = Round(0)

    # -- the rule ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, server_round: int) -> None:
        """Prepare for the replies of a round."""

    def check(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Raise ``LayoutError`` if a reply lacks what the rule needs; it comes from the network."""

    @abstractmethod
    def add(self, client: Client, shared: np.ndarray, reply: Payload) -> None:
        """Take one client's reply; called in client order.

        Parameters
        ----------
        client : Client
            Who answered.
        shared : ndarray of float32, shape (layout.size,)
            Its shared arrays after training.
        reply : Payload
            Its numbers, and its arrays beside the shared ones as the method's ``extras`` declare them.
        """

    @abstractmethod
    def finish(self) -> None:
        """Make the new shared arrays from what was added (at least one reply)."""

    def outgoing(self, client: Client) -> np.ndarray:
        """Return the shared vector that ``client`` gets next; the same for all unless overridden."""
        return self.shared

    def attachments(self, client: Client, kind: str) -> Payload:
        """Return settings and arrays to send to ``client`` beside its shared vector.

        Called after :meth:`begin`, when the message is made. That may be before or after the replies of others: it must
        not depend on what :meth:`add` has taken in this round from anyone but ``client``. The arrays are those that the
        method's ``extras`` declare, in their shapes. Clients that get the same array object share one copy on the way;
        equal arrays are packed and sent once for each client.

        Parameters
        ----------
        client : Client
            Who gets the message.
        kind : str
            ``train`` or ``evaluate``.
        """
        return Payload()

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that the next round depends on, by name."""
        rounds = np.array(list(self.personal_round.values()), np.int64)
        measured = {} if self._diagnostics is None else self._diagnostics.state()
        spent = {} if self.privacy is None else self.privacy.state()
        return {"shared": self.shared, "personal_round": rounds, **measured, **spent}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Take back what :meth:`state` returned.

        Raises
        ------
        LayoutError
            It is of another model.
        """
        self.layout.unflatten(state["shared"])
        self.shared = state["shared"]
        self.personal_round = dict(zip(self.clients, state["personal_round"].tolist(), strict=True))
        if self._diagnostics is not None:
            self._diagnostics.load_state(state)
        if self.privacy is not None:
            self.privacy.load_state(state)

    @property
    def participants(self) -> list[Client]:
        """All clients but those that are held out as new ones."""
        return [client for client in self.clients.values() if client.id not in self._new]

    # -- Flower's interface ------------------------------------------------------------------------------------------

    def configure_train(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Transport
    ) -> list[Request]:
        """List the requests to the clients of this round, longest work first."""
        chosen = self.choose(server_round)
        if self.privacy is not None and self.layout.size:
            self.privacy.asked(client.id for client in chosen)
            self._round.privacy = self.privacy.spent()
        longest_first = sorted(chosen, key=lambda client: -client.train_samples)
        return self._requests(longest_first, server_round, MessageType.TRAIN)

    def aggregate_train(  # type: ignore[override]
        self, server_round: int, replies: Iterable[tuple[Client, Payload]]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies of this round, which come with their clients and in client order."""
        self.begin(server_round)
        mean_model = self.mean_model if self.settings.evaluates_in(server_round) else None
        if mean_model is not None:
            mean_model.begin()
        if self._diagnostics is not None:
            self._diagnostics.begin(self)
        layout = self.layout.to_text()
        for client, reply in self._checked(replies, MessageType.TRAIN):
            # Checked before it is added, so that a bad reply leaves nothing behind in the sums.
            try:
                if reply.config.get("layout") != layout:
                    self.layout.require(Layout.from_text(str(reply.config.get("layout", ""))))
                shared = self.layout.unpack(reply.arrays)
                reply = replace(reply, arrays=self.extras.read(reply.arrays, SERVER))
                self.check(client, shared, reply)
                personal = None if mean_model is None else mean_model.read(reply)
            except LayoutError as error:
                self._fail(client, str(error))
                continue
            if not np.isfinite(shared).all():
                self._fail(client, "its arrays hold values that are not finite (the training diverged)")
                continue
            if self.privacy is not None and self.privacy.at_server:
                shared = self.privacy.bounded(self.outgoing(client), shared)
            self.add(client, shared, reply)
            if mean_model is not None and personal is not None:
                mean_model.add(client.train_samples, personal)
            if self._diagnostics is not None:
                self._diagnostics.add(client.id, shared)
            self._round.trained[client.id] = dict(reply.metrics)
        # Not before the last: a transport makes messages while replies come in, and all are of one moment.
        self.personal_round.update(dict.fromkeys(self._round.trained, server_round))
        trained, wanted = len(self._round.trained), self.settings.min_replies
        if trained < wanted:
            found = f"{trained} of at least {wanted} clients" if trained else "no client"
            raise RoundFailed(f"round {server_round}: {found} trained; {self._reasons()}")
        self.finish()
        if mean_model is not None:
            mean_model.finish()
        if self._diagnostics is not None:
            self._round.details.update(self._diagnostics.finish(self))
        return None, MetricRecord({"train-loss": _mean(m["train-loss"] for m in self._round.trained.values())})

    def configure_evaluate(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Transport
    ) -> list[Request]:
        """List the requests to all participants, in the rounds in which they are tested."""
        due = self.settings.evaluates_in(server_round)
        clients = sorted(self.participants, key=lambda client: -client.test_samples) if due else []
        return self._requests(clients, server_round, MessageType.EVALUATE)

    def aggregate_evaluate(  # type: ignore[override]
        self, server_round: int, replies: Iterable[tuple[Client, Payload]]
    ) -> MetricRecord | None:
        """Collect the clients' scores."""
        for client, reply in self._checked(replies, MessageType.EVALUATE):
            self._round.evaluated[client.id] = dict(reply.metrics)
        return None

    def summary(self) -> None:
        """Log what will run."""
        logger.log(INFO, "\t├──> %s over %d clients", type(self).__name__, len(self.clients))
        logger.log(INFO, "\t└──> %d shared values in %d arrays", self.layout.size, len(self.layout.entries))

    def start(  # type: ignore[override]
        self,
        grid: Transport,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        first_round: int = 1,
    ) -> Result:
        """Run the rounds from ``first_round`` to the last and record each.

        Where Flower's signature has a Grid there is a transport, which may be one over a Grid; the arrays and settings
        that it has here were given to the constructor.

        Raises
        ------
        RoundFailed
            A round in which fewer than ``min-replies`` clients trained.
        """
        asked = len(self.choose(first_round))
        if self.settings.min_replies > asked:
            raise ConfigError("min-replies", self.settings.min_replies, f"{asked} clients are asked in a round")
        self.summary()
        timeout = timeout or self.settings.round_timeout
        nothing = ConfigRecord()
        for number in range(first_round, (num_rounds or self.settings.num_server_rounds) + 1):
            self._round = Round(number)
            begun = time.perf_counter()
            grid.begin_round()
            requests = self.configure_train(number, ArrayRecord(), nothing, grid)
            limit = timeout * (1 - LEAST_FOR_TESTS) if self.settings.evaluates_in(number) else timeout
            self.aggregate_train(number, grid.replies(requests, limit, self._fail))
            trained = time.perf_counter()
            requests = self.configure_evaluate(number, ArrayRecord(), nothing, grid)
            # What sending took is not the tests' loss.
            left = max(timeout - (trained - begun), timeout * LEAST_FOR_TESTS)
            self.aggregate_evaluate(number, grid.replies(requests, left, self._fail))
            self._round.seconds_train = trained - begun
            self._round.seconds_evaluate = time.perf_counter() - trained
            for client, reason in self._round.failed.items():
                logger.log(WARNING, "round %d: client %d: %s", number, client, reason)
            if self.recorder is not None and self.recorder.record(self._round, self):
                break
        return Result()

    # -- shared parts ------------------------------------------------------------------------------------------------

    def choose(self, server_round: int) -> list[Client]:
        """Draw the clients that train in a round: ``fraction-train`` of the participants, at least one."""
        clients = self.participants
        count = max(1, round(self.settings.fraction_train * len(clients)))
        rng = generator(self.settings.seed, "clients", server_round)
        return [clients[i] for i in sorted(rng.choice(len(clients), count, replace=False))]

    def _requests(self, clients: Iterable[Client], server_round: int, kind: str) -> list[Request]:
        packed: OrderedDict[tuple[int, ...], tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = OrderedDict()
        layout = self.layout.to_text()
        return [
            Request(client, kind, partial(self._payload, client, server_round, kind, layout, packed))
            for client in clients
        ]

    def _payload(
        self,
        client: Client,
        server_round: int,
        kind: str,
        layout: str,
        packed: OrderedDict[tuple[int, ...], tuple[dict[str, np.ndarray], dict[str, np.ndarray]]],
    ) -> Payload:
        extra = self.attachments(client, kind)
        arrays = {**extra.arrays, "shared": self.outgoing(client)}
        if self.mean_model is not None and kind == MessageType.EVALUATE:
            arrays.update(self.mean_model.sent)
        # Clients that get the same arrays get the same packed ones: made once, and sent once where they share a way.
        same = tuple(id(array) for array in arrays.values())
        if same not in packed:
            beside = {name: array for name, array in arrays.items() if name != "shared"}
            shared = self.layout.pack(arrays["shared"], self.settings.wire_dtype)
            packed[same] = arrays, {**self.extras.pack(beside, CLIENT), **shared}
            if len(packed) > KEPT_PACKED:
                packed.popitem(last=False)
        config: dict[str, Value] = {
            **extra.config,
            "round": server_round,
            "personal-round": self.personal_round[client.id],
            "state-key": self.state_key,
            "layout": layout,
        }
        payload = Payload(config, {}, packed[same][1])
        self._round.bytes_down += self._count(payload)
        return payload

    def _checked(self, replies: Iterable[tuple[Client, Payload]], kind: str) -> Iterator[tuple[Client, Payload]]:
        """Yield the replies whose numbers can be computed with; note the others as failed."""
        for client, reply in replies:
            self._round.bytes_up += self._count(reply)
            required = REQUIRED[kind]
            bad = _improper(reply.metrics, required)
            lacking = next((key for key in bad if key in required), None)
            if lacking is not None:
                self._fail(client, f"its reply lacks a proper {lacking}")
                continue
            if bad:  # a global model may be of no use on one client's data: the client's other numbers count
                number = self._round.number
                logger.log(WARNING, "round %d: client %d: no proper %s; left out", number, client.id, ", ".join(bad))
                _leave_out(reply.metrics, bad)
            yield client, reply

    def _count(self, payload: Payload) -> int:
        apart = 0
        if EVALUATION_ONLY in payload.arrays:
            apart = len(EVALUATION_ONLY) + array_bytes(payload.arrays[EVALUATION_ONLY])
        self._round.bytes_evaluation_only += apart
        return count_bytes(payload) - apart

    def _fail(self, client: Client, reason: str) -> None:
        self._round.failed[client.id] = reason

    def _reasons(self) -> str:
        """Tell why clients failed, those with the same reason together."""
        clients: dict[str, list[int]] = {}
        for client, reason in self._round.failed.items():
            clients.setdefault(reason, []).append(client)
        told = [f"{_numbered(same)}: {reason}" for reason, same in list(clients.items())[:TOLD_REASONS]]
        more = len(clients) - len(told)
        return "; ".join([*told, *([f"and {more} other reasons"] if more else [])])


def _numbered(clients: Sequence[int]) -> str:
    first = ", ".join(map(str, sorted(clients)[:5]))
    return f"client{'s' * (len(clients) > 1)} {first}{f' and {len(clients) - 5} more' * (len(clients) > 5)}"


def _improper(metrics: Mapping[str, Any], required: Sequence[str]) -> list[str]:
    """Return the names of the numbers that a reply lacks, or that cannot be what they have to be."""
    needed = set(required)
    for name in TESTED:
        needed |= _score(name) if _score(name) & metrics.keys() else set()
    bad = [key for key in sorted(needed | metrics.keys()) if not _is_proper(key, metrics.get(key), key in needed)]
    whole = [name for name in TESTED if name + "-correct" in metrics and not _score(name) & set(bad)]
    return bad + [f"{name}-correct" for name in whole if metrics[f"{name}-correct"] > metrics[f"{name}-samples"]]


def _is_proper(key: str, value: Any, counts: bool) -> bool:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    whole = isinstance(value, int) or not key.endswith(("-correct", "-samples"))
    return not counts or (value >= 0 and whole)


def _leave_out(metrics: dict[str, Any], bad: Iterable[str]) -> None:
    """Remove numbers from a reply, and with one of a model's score the rest of that."""
    for key in bad:
        for also in next((_score(name) for name in TESTED if key in _score(name)), {key}):
            metrics.pop(also, None)


def _score(name: str) -> set[str]:
    return {f"{name}-{part}" for part in ("correct", "samples", "loss-sum")}


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
