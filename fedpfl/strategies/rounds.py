"""The round loop: a Flower Strategy around a rule.

Flower's own loop waits up to 3 s between looks for replies, has no checkpoint, and "completes" when every client
fails. This one leaves it to a transport how clients are reached. It hands replies to the rule in client order, each as
soon as its turn comes: sums in a fixed order are the same to the bit, however the replies arrive. It records every
round, so that a run can be resumed, and fails with the clients' own words.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from logging import INFO, WARNING, getLogger

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from ..core.claims import require_metrics
from ..core.errors import ConfigError, FedpflError, LayoutError, printable, reasons
from ..core.extras import CLIENT, SERVER, Extras
from ..core.federation import Client
from ..core.layout import Layout
from ..core.payload import EVALUATION_ONLY, Payload
from ..core.rng import generator
from ..core.settings import Value
from ..results.record import Round
from ..rules import Rule
from ..setup.config import RunSettings
from ..transports import Request, Transport
from ..transports.base import array_bytes, count_bytes
from .companion import Companion
from .replies import REQUIRED, leave_out, problems

logger = getLogger("flwr")

# Of round-timeout, in rounds with tests: training waits no longer than leaves them this share.
LEAST_FOR_TESTS = 0.25
# Vectors that go to several clients are packed once: of this many different ones, the latest.
KEPT_PACKED = 16


class RoundFailed(FedpflError):
    """Too few clients answered in a round."""


class PersonalisedStrategy(Strategy):
    """Runs the rounds: draws clients, sends requests, checks replies and hands them to the rule.

    Parameters
    ----------
    rule : Rule
        Combines the replies of a round; its :attr:`~fedpfl.rules.rule.Rule.shared` is what clients start from.
    settings : RunSettings
        Rounds, share of clients, seed, time limits.
    state_key : str
        Key under which clients keep their personal state.
    extras : Extras, optional
        The arrays that travel beside the shared vector.
    companions : sequence of Companion
        What goes along with the rounds.
    counted : bool
        Whether tests count what is right; otherwise they give a score.
    several : bool
        Whether a sample has several values that tests count.
    """

    def __init__(
        self,
        rule: Rule,
        settings: RunSettings,
        state_key: str,
        extras: Extras | None = None,
        companions: Sequence[Companion] = (),
        counted: bool = True,
        several: bool = False,
    ) -> None:
        self.rule = rule
        self.settings = settings
        self.state_key = state_key
        self.extras = extras or Extras()
        self.companions = list(companions)
        self.counted, self.several = counted, several
        self.round = Round(0)

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that the next round depends on, by name."""
        found = self.rule.state()
        for companion in self.companions:
            found.update(companion.state())
        return found

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Take back what :meth:`state` returned.

        Raises
        ------
        LayoutError
            It is of another model.
        """
        self.rule.load_state(state)
        for companion in self.companions:
            companion.load_state(state)

    # -- Flower's interface ------------------------------------------------------------------------------------------

    def configure_train(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Transport
    ) -> list[Request]:
        """List the requests to the clients of this round, longest work first."""
        chosen = self.choose(server_round)
        self.rule.begin_round(server_round, chosen)
        for companion in self.companions:
            companion.begin(self.rule, self.round, chosen)
        longest_first = sorted(chosen, key=lambda client: -client.train_samples)
        return self._requests(longest_first, server_round, MessageType.TRAIN)

    def aggregate_train(  # type: ignore[override]
        self, server_round: int, replies: Iterable[tuple[Client, Payload]]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the replies of this round, which come with their clients and in client order."""
        rule = self.rule
        layout = rule.layout.to_text()
        for client, reply in self._checked(replies, MessageType.TRAIN):
            # Checked before it is added, so that a bad reply leaves nothing behind in the sums.
            try:
                if reply.config.get("layout") != layout:
                    rule.layout.require(Layout.from_text(str(reply.config.get("layout", ""))))
                shared = rule.layout.unpack(reply.arrays)
                reply = replace(reply, arrays=self.extras.read(reply.arrays, SERVER))
                if not np.isfinite(shared).all():
                    raise LayoutError("its arrays hold values that are not finite (the training diverged)")
                rule.check(client, shared, reply)
                for companion in self.companions:
                    shared = companion.receive(rule, client, shared, reply)
            except LayoutError as error:
                # Names of arrays in it are the client's, too.
                self._fail(client, printable(str(error)))
                continue
            rule.add(client, shared, reply)
            for companion in self.companions:
                companion.added(rule, client, shared, reply)
            self.round.trained[client.id] = dict(reply.metrics)
        # Not before the last: a transport makes messages while replies come in, and all are of one moment.
        rule.personal_round.update(dict.fromkeys(self.round.trained, server_round))
        trained, wanted = len(self.round.trained), self.settings.min_replies
        if trained < wanted:
            found = f"{trained} of at least {wanted} clients" if trained else "no client"
            raise RoundFailed(f"round {server_round}: {found} trained; {reasons(self.round.failed, 'client')}")
        rule.finish_round()
        self.round.details.update(rule.numbers)
        self.round.arrays.update(rule.arrays)
        for companion in self.companions:
            companion.combined(rule, self.round)
        return None, MetricRecord({"train-loss": _mean(m["train-loss"] for m in self.round.trained.values())})

    def configure_evaluate(  # type: ignore[override]
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Transport
    ) -> list[Request]:
        """List the requests to all participants, in the rounds in which they are tested."""
        due = self.settings.evaluates_in(server_round)
        clients = sorted(self.rule.participants, key=lambda client: -client.test_samples) if due else []
        return self._requests(clients, server_round, MessageType.EVALUATE)

    def aggregate_evaluate(  # type: ignore[override]
        self, server_round: int, replies: Iterable[tuple[Client, Payload]]
    ) -> MetricRecord | None:
        """Collect the clients' scores."""
        for client, reply in self._checked(replies, MessageType.EVALUATE):
            self.round.evaluated[client.id] = dict(reply.metrics)
        return None

    def summary(self) -> None:
        """Log what will run."""
        layout = self.rule.layout
        logger.log(INFO, "\t├──> %s over %d clients", type(self.rule).__name__, len(self.rule.clients))
        logger.log(INFO, "\t└──> %d shared values in %d arrays", layout.size, len(layout.entries))

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
            self.round = Round(number)
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
            self.round.seconds_train = trained - begun
            self.round.seconds_evaluate = time.perf_counter() - trained
            for client, reason in self.round.failed.items():
                logger.log(WARNING, "round %d: client %d: %s", number, client, reason)
            state = self.state() if self.companions else {}
            # All of them look at the round, whichever of them ends the run.
            ends = [companion.ended(self.rule, self.round, state) for companion in self.companions]
            if any(ends):
                break
        return Result()

    # -- shared parts ------------------------------------------------------------------------------------------------

    def choose(self, server_round: int) -> list[Client]:
        """Draw the clients that train in a round: ``fraction-train`` of the participants, at least one."""
        clients = self.rule.participants
        rng = generator(self.settings.seed, "clients", server_round)
        chosen = rng.choice(len(clients), self.settings.asked(len(clients)), replace=False)
        return [clients[i] for i in sorted(chosen)]

    def _requests(self, clients: Iterable[Client], server_round: int, kind: str) -> list[Request]:
        packed: OrderedDict[tuple[int, ...], tuple[dict[str, np.ndarray], dict[str, np.ndarray]]] = OrderedDict()
        layout = self.rule.layout.to_text()
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
        extra = self.rule.attachments(client, kind)
        arrays = {**extra.arrays, "shared": self.rule.outgoing(client)}
        for companion in self.companions:
            arrays.update(companion.attach(self.rule, client, kind))
        # Clients that get the same arrays get the same packed ones: made once, and sent once where they share a way.
        same = tuple(id(array) for array in arrays.values())
        if same not in packed:
            beside = {name: array for name, array in arrays.items() if name != "shared"}
            shared = self.rule.layout.pack(arrays["shared"], self.settings.wire_dtype)
            packed[same] = arrays, {**self.extras.pack(beside, CLIENT), **shared}
            if len(packed) > KEPT_PACKED:
                packed.popitem(last=False)
        config: dict[str, Value] = {
            **extra.config,
            "round": server_round,
            "personal-round": self.rule.personal_round[client.id],
            "state-key": self.state_key,
            "layout": layout,
        }
        payload = Payload(config, {}, packed[same][1])
        self.round.bytes_down += self._count(payload)
        return payload

    def _checked(self, replies: Iterable[tuple[Client, Payload]], kind: str) -> Iterator[tuple[Client, Payload]]:
        """Yield the replies whose numbers can be computed with; note the others as failed."""
        for client, reply in replies:
            self.round.bytes_up += self._count(reply)
            try:
                require_metrics(reply.metrics)
            except LayoutError as error:
                self._fail(client, str(error))
                continue
            required = REQUIRED[kind]
            wrong = problems(reply.metrics, required, client, self.counted, self.several)
            fatal = next((text for key, text in wrong.items() if key in required), None)
            if fatal is not None:
                self._fail(client, f"its reply says {fatal}")
                continue
            if wrong:  # a global model may be of no use on one client's data: the client's other numbers count
                for text in wrong.values():
                    logger.log(WARNING, "round %d: client %d: %s; left out", self.round.number, client.id, text)
                leave_out(reply.metrics, wrong)
            yield client, reply

    def _count(self, payload: Payload) -> int:
        apart = 0
        if EVALUATION_ONLY in payload.arrays:
            apart = len(EVALUATION_ONLY) + array_bytes(payload.arrays[EVALUATION_ONLY])
        self.round.bytes_evaluation_only += apart
        return count_bytes(payload) - apart

    def _fail(self, client: Client, reason: str) -> None:
        self.round.failed[client.id] = reason


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
