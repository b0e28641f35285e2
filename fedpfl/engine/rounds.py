"""The loop over rounds: draw clients, send requests, check replies, hand them to the rule.

A transport reaches the clients. Replies go to the rule in client order, each as soon as its turn comes: a sum in a
fixed order has the same bits, however the replies arrive. Each round ends with a state from which a run can be resumed.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from logging import INFO, WARNING, getLogger
from typing import NamedTuple, cast

import numpy as np

from ..core.errors import ConfigError, FedpflError, LayoutError, TooLong, printable, reasons
from ..core.extra_arrays import CLIENT, SERVER, Extras
from ..core.layout import Layout, rounded
from ..core.metrics import names as names_of_metrics
from ..core.payload import EVALUATION_ONLY, UNWRITTEN, Payload
from ..core.server_view import Client, new_clients
from ..core.settings import Value
from ..core.vectors import is_finite, largest_of
from ..results.board_names import shown_on_boards
from ..results.round_record import Round
from ..rules import Rule
from ..setup.config import RunSettings
from .client_sampling import ClientSampling
from .listener import CheckedReply, Listener
from .reply_numbers import ExpectedReply, leave_out
from .transport import EVALUATE, TRAIN, Members, Reply, Request, Transport, array_bytes, count_bytes
from .user_rule import UserRule

logger = getLogger("flwr")

# In rounds with tests, training waits no longer than leaves the tests this share of round-timeout.
MIN_FOR_TESTS = 0.25
# How many packed vectors are cached, because several clients get them.
KEPT_PACKED = 16
# Of a reason that a client gives.
MAX_WHY = 200
# So many times the largest value before is no step of training.
FAR = 1000


class Packing(NamedTuple):
    """What requests carry that are made of the same arrays."""

    made_of: dict[str, np.ndarray]  # kept, so that no other array can get their identities
    arrays: dict[str, np.ndarray]
    # By the round of the personal arrays that they name: each message, and its bytes as `_bytes_of` counts them.
    messages: dict[int, tuple[Payload, tuple[int, int]]]


# By the identities of the arrays that requests are made of.
Packed = OrderedDict[tuple[int, ...], Packing]


class RoundFailed(FedpflError):
    """Too few clients answered in a round."""


class RoundLoop:
    """Runs the rounds.

    Clients start from ``rule.shared`` and store their personal state under ``state_key``. ``listeners`` are called in
    this order. ``counted``: tests count correct predictions, otherwise they give a score. ``several``: a sample has
    several values that tests count. ``sampling`` decides who is asked. ``own_loss``: clients train with a loss of the
    user's.
    """

    def __init__(
        self,
        rule: Rule,
        settings: RunSettings,
        state_key: str,
        extras: Extras | None = None,
        listeners: Sequence[Listener] = (),
        counted: bool = True,
        several: bool = False,
        sampling: ClientSampling | None = None,
        own_loss: bool = False,
    ) -> None:
        self.rule = rule
        self._user_rule = None if type(rule).__module__.startswith("fedpfl.") else UserRule(rule)
        self.settings = settings
        self.state_key = state_key
        self.extras = extras or Extras()
        self.listeners = list(listeners)
        self.expected = ExpectedReply(counted, several, tuple(names_of_metrics(settings.metrics)), own_loss)
        self.sampling = sampling or ClientSampling(settings)
        self.round = Round(0)
        self._cause: BaseException | None = None
        self._grown = ""  # where the arrays that clients train from are far from those before
        self._too_long: set[int] = set()  # clients whose update is longer than is accepted
        self._rule_state: dict[str, np.ndarray] = {}  # as it was looked at since it was last stored

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that the next round depends on, by name."""
        rule_state, self._rule_state = self._rule_state or self.rule.state(), {}
        state = {**rule_state, **self.sampling.state()}
        for listener in self.listeners:
            state.update(listener.state())
        return state

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what :meth:`state` returned; raise ``LayoutError`` if it is another model's."""
        self.rule.load_state(state)
        self.sampling.load_state(state)
        for listener in self.listeners:
            listener.load_state(state)

    def run(self, transport: Transport, first_round: int = 1) -> None:
        """Run the rounds from ``first_round`` to the last, or until a listener ends the run."""
        asked = self.settings.asked(len(self.rule.participants))
        if self.settings.min_replies > asked:
            raise ConfigError(
                "min-replies",
                self.settings.min_replies,
                f"must be at most {asked}: so many clients are asked in a round",
            )
        layout = self.rule.layout
        logger.log(INFO, "\t├──> %s over %d clients", type(self.rule).__name__, len(self.rule.clients))
        logger.log(INFO, "\t└──> %d shared values in %d arrays", layout.size, len(layout.entries))
        for number in range(first_round, self.settings.num_server_rounds + 1):
            if self.run_round(transport, number):
                break

    def run_round(self, transport: Transport, number: int) -> bool:
        """Train and test in one round; return whether a listener ends the run."""
        timeout = self.settings.round_timeout
        begun = time.perf_counter()
        self.open(transport, number)
        self.train(transport, number)
        self.round.seconds_train = time.perf_counter() - begun - self.round.seconds_evaluate
        if self.settings.test_at != "start":
            # The time that sending took is not taken from the tests.
            self._test(transport, number, max(timeout - self.round.seconds_train, timeout * MIN_FOR_TESTS))
        return self.close()

    def open(self, transport: Members, number: int) -> None:
        """Begin a round: find out who is there."""
        self.round, self._cause, self._too_long = Round(number), None, set()
        transport.begin_round()
        self.sampling.begin(transport, self.rule, self.round)

    def close(self) -> bool:
        """End a round; return whether a listener ends the run."""
        for client, reason in self.round.failed.items():
            logger.log(WARNING, "round %d: client %d: %s", self.round.number, client, reason)
        if self._user_rule is not None:
            self._user_rule.round_ended(self.round.number)
        self.sampling.end(self.round)
        state = self.state() if self.listeners else {}
        # Every listener sees the round, even if an earlier one ends the run.
        ends = [listener.round_ended(self.rule, self.round, state) for listener in self.listeners]
        return any(ends)

    def _test(self, transport: Transport, number: int, timeout: float) -> None:
        begun = time.perf_counter()
        self.collect_scores(transport.replies(self.test_requests(number), timeout, self.fail))
        self.round.seconds_evaluate = time.perf_counter() - begun

    def train(self, transport: Transport, number: int) -> None:
        """Let clients train and combine their replies."""
        requests, timeout = self.begin(number), self.settings.round_timeout
        # The rule may make no message before it has begun the round.
        if self.settings.test_at == "start":
            self._test(transport, number, timeout * MIN_FOR_TESTS)
        if self.settings.evaluates_in(number):
            timeout *= 1 - MIN_FOR_TESTS
        self.combine(number, transport.replies(requests, timeout, self.fail))

    def begin(self, number: int) -> list[Request]:
        """Choose clients; return the messages with which they train, the longest work first."""
        chosen = self.sampling.choose(self.rule, self.round)
        self.rule.begin_round(number, chosen)
        if self._user_rule is not None:
            self._user_rule.round_begun(number)
        for listener in self.listeners:
            listener.round_started(self.rule, self.round, chosen)
        return self.requests(sorted(chosen, key=lambda client: -client.train_samples), number, TRAIN)

    def combine(self, number: int, replies: Iterable[Sequence[Reply]]) -> None:
        """Combine a round's replies, which come in groups and in client order."""
        rule = self.rule
        # Where nothing tells yet how large an array usually is, the others of the round do, before any counts.
        waits = [listener for listener in self.listeners if listener.compares(rule)]
        held: list[CheckedReply] = []
        for group in replies:
            held += self._read(group)
            if not waits:
                self._add(held)
                held = []
            del group  # its vectors, while the next group is computed
        for listener in waits:
            for client, reason in listener.compare(held).items():
                self.fail(client, reason)
            held = [read for read in held if read.client.id not in self.round.failed]
        self._add(held)
        # Not earlier: a transport makes messages while replies come in, and all of them see the same numbers.
        rule.personal_round.update(dict.fromkeys(self.round.trained, self.round.number))
        trained, wanted = len(self.round.trained), self.settings.min_replies
        if trained < wanted:
            who = f"{trained} of at least {wanted} clients" if trained else "no client"
            # Of one client that goes further than others it is not the cause.
            only_length = self._too_long and self.round.failed.keys() == self._too_long
            hint = "; a smaller learning-rate may help" if only_length else ""
            hint += "" if trained else self._grown
            why = reasons(self.round.failed, "client", shown=shown_on_boards) or "no other was asked (min-replies)"
            told = f"round {number}: {who} trained; {why}{hint}"
            raise RoundFailed(told) from self._cause
        self._finish()
        self.round.details.update(rule.numbers)
        self.round.arrays.update(rule.arrays)
        for listener in self.listeners:
            listener.combined(rule, self.round)

    def _finish(self) -> None:
        """Have the rule end the round; note where it, or the server's step, leaves clients far from where they were."""
        rule, step, before = self.rule, self.rule.server_step, 0.0
        watched = self._user_rule is not None or step is not None
        if watched:
            before = largest_of(rule.shared)
        rule.finish_round()
        if self._user_rule is None:  # which looks at its own rule, and may have it remember infinity
            self._require_finite_state()
        if not watched:
            return
        after = largest_of(rule.shared)
        self._grown, what = "", f"the rule {type(rule).__name__}" if step is None else "the server's step"
        if after > FAR * max(before, 1):
            self._grown = f"; {what} made the largest shared value {after:.3g}, of {before:.3g} before"

    def _require_finite_state(self) -> None:
        """End the run where the server has diverged: from what it sends next, each client's training would, too."""
        self._rule_state = self.rule.state()
        for name, array in self._rule_state.items():
            if array.dtype.kind == "f" and not is_finite(array):
                what = f"the rule {type(self.rule).__name__} has made values of {name!r} that are not finite"
                told = f"{what} from finite replies; a setting of the method's may be too large"
                raise FedpflError(f"round {self.round.number}: {told}")

    def _read(self, group: Sequence[Reply]) -> list[CheckedReply]:
        """Return the content of a group's replies; those that cannot count leave nothing behind in the sums."""
        sound = [reply for reply in group if self._is_sound(reply.client, reply.payload, TRAIN)]
        if sound and sound[0].row is not None:
            return self._checked_rows(sound)
        return [read for client, reply, _ in sound if (read := self._checked(client, reply)) is not None]

    def _checked_rows(self, group: Sequence[Reply]) -> list[CheckedReply]:
        """Return the content of replies whose vectors have stayed where they were computed, and are checked there."""
        rule, reads = self.rule, list[CheckedReply]()
        clients, rows = [reply.client for reply in group], [reply.row for reply in group if reply.row is not None]
        checks = [listener.receive_rows(rule, clients, rows) for listener in self.listeners]
        for place, (client, reply, _) in enumerate(group):
            try:
                require_layout(rule.layout_of(client), reply)
                for errors in checks:
                    if (refused := errors[place]) is not None:
                        raise refused
            except LayoutError as error:
                self._refuse(client, error)
            else:
                reads.append(CheckedReply(client, rows[place], reply))
        return reads

    def _checked(self, client: Client, reply: Payload) -> CheckedReply | None:
        """Return the content of a reply, or None if it cannot count."""
        rule = self.rule
        try:
            require_layout(rule.layout_of(client), reply)
            shared = self._shared(client, reply)
            reply = Payload(reply.config, reply.metrics, self.extras.read(reply.arrays, SERVER))
            if not rule.federation.noisy:  # noise may make numbers negative
                self.extras.check(reply.arrays, client.train_samples)
            if not is_finite(shared):
                raise LayoutError("its arrays hold values that are not finite (the training diverged)")
            rule.check(client, shared, reply)
            for listener in self.listeners:
                shared = listener.receive(rule, client, shared, reply)
        except LayoutError as error:
            self._refuse(client, error)
            return None
        return CheckedReply(client, shared, reply)

    def _add(self, reads: Sequence[CheckedReply]) -> None:
        """Hand replies to the rule."""
        if not reads:
            return
        clients, vectors, replies = zip(*reads, strict=True)
        said = [dict(reply.metrics) for reply in replies]  # whatever a rule makes of them
        self.rule.add_rows(clients, vectors, replies)
        for (client, shared, reply), metrics in zip(reads, said, strict=True):
            for listener in self.listeners:
                listener.added(self.rule, client, cast(np.ndarray, shared), reply)  # see `_may_stay`
            self.round.trained[client.id] = metrics

    def _may_stay(self) -> bool:
        """Return whether nobody needs a client's vector here, so that vectors may stay where they were computed."""
        each = any(listener.sees_each_reply() for listener in self.listeners) or self.extras.names(SERVER)
        return self.rule.only_adds and self.rule.takes_shared and not each

    def _shared(self, client: Client, reply: Payload) -> np.ndarray:
        """Return the shared vector of a reply; what the client was sent where the rule takes none."""
        if self.rule.takes_shared:
            return self.rule.layout_of(client).unpack(reply.arrays)
        return rounded(self.rule.outgoing(client), self.settings.wire_dtype)

    def test_requests(self, number: int) -> list[Request]:
        """Return the requests to the participants that are there in a round with tests, else none."""
        due = self.settings.evaluates_in(number)
        clients = self.sampling.tested(self.rule, self.round) if due else []
        self.round.asked_to_test = [client.id for client in clients if client.test_samples]
        if due and (absent := [client.id for client in self.rule.clients.values() if client.absent]):
            # The means lack them just as those that give no answer.
            new = new_clients(self.settings.seed, self.settings.new_clients, len(self.rule.clients))
            self.round.asked_to_test += [client for client in absent if client not in new]
        return self.requests(sorted(clients, key=lambda client: -client.test_samples), number, EVALUATE)

    def collect_scores(self, replies: Iterable[Sequence[Reply]]) -> None:
        """Note the scores of the clients that were tested."""
        for client, reply, _ in chain.from_iterable(replies):
            if self._is_sound(client, reply, EVALUATE):
                self.round.evaluated[client.id] = dict(reply.metrics)
            if why := reply.config.get(UNWRITTEN):
                self.round.unwritten[client.id] = printable(str(why), MAX_WHY)
                text = "fedpfl: client %d could not write its model: %s"
                logger.log(WARNING, text, client.id, self.round.unwritten[client.id])

    def requests(self, clients: Iterable[Client], number: int, kind: str) -> list[Request]:
        """Return the messages of a kind (``train`` or ``evaluate``) to clients, each made when it is sent."""
        packed: Packed = OrderedDict()
        may_stay = kind == TRAIN and self._may_stay()
        return [
            Request(client, kind, partial(self._payload, client, number, kind, packed), may_stay) for client in clients
        ]

    def _payload(self, client: Client, number: int, kind: str, packed: Packed) -> Payload:
        layout = self.rule.layout_of(client)
        extra = self.rule.attachments(client, kind)
        arrays = {**extra.arrays, "shared": self.rule.outgoing(client)}
        for listener in self.listeners:
            arrays.update(listener.attach(self.rule, client, kind))
        # Clients that get the same arrays get the same packed ones: made once, and sent once where they share a way.
        same = tuple(id(array) for array in arrays.values())
        if same not in packed:
            others = {name: array for name, array in arrays.items() if name != "shared"}
            shared = layout.pack(arrays["shared"], self.settings.wire_dtype)
            packed[same] = Packing(arrays, {**self.extras.pack(others, CLIENT), **shared}, {})
            if len(packed) > KEPT_PACKED:
                packed.popitem(last=False)
        last = self.rule.personal_round[client.id]
        messages = packed[same].messages
        if extra.config or last not in messages:
            config: dict[str, Value] = {
                **extra.config,
                "round": number,
                "personal-round": last,
                "state-key": self.state_key,
                "layout": layout.to_text(),
            }
            payload = Payload(config, {}, packed[same].arrays)
            messages[last] = payload, _bytes_of(payload)
        payload, counted = messages[last]
        self.round.bytes_down += counted[0]
        self.round.bytes_evaluation_only += counted[1]
        return payload

    def _is_sound(self, client: Client, reply: Payload, kind: str) -> bool:
        """Count a reply's bytes; return whether its numbers can be computed with, else note it as failed."""
        counted, apart = _bytes_of(reply)
        self.round.bytes_up += counted
        self.round.bytes_evaluation_only += apart
        fatal, wrong = self.expected.examine(kind, client, reply.metrics)
        if fatal:
            self.fail(client, fatal)
            return False
        if wrong:  # the global model may fail on one client's data: the client's other numbers count
            for text in wrong.values():
                logger.log(WARNING, "round %d: client %d: %s; left out", self.round.number, client.id, text)
            leave_out(reply.metrics, wrong)
        return True

    def _refuse(self, client: Client, error: LayoutError) -> None:
        if isinstance(error, TooLong):
            self._too_long.add(client.id)
        self.fail(client, printable(str(error)))  # names of arrays in it come from the client, too

    def fail(self, client: Client, reason: str, error: BaseException | None = None) -> None:
        """Note why a client's reply does not count in this round."""
        self.round.failed[client.id] = reason
        self._cause = self._cause or error


def require_layout(layout: Layout, reply: Payload) -> None:
    """Raise ``LayoutError`` if a reply says that it is of another layout."""
    if reply.config.get("layout") != layout.to_text():
        layout.require(Layout.from_text(str(reply.config.get("layout", ""))))


def _bytes_of(payload: Payload) -> tuple[int, int]:
    """Return the bytes of a message without what travels for ``evaluate-global`` alone, and of that."""
    apart = 0
    if EVALUATION_ONLY in payload.arrays:
        apart = len(EVALUATION_ONLY) + array_bytes(payload.arrays[EVALUATION_ONLY])
    return count_bytes(payload) - apart, apart
