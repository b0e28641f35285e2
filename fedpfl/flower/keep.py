"""The client's half of a split by names: a Flower mod that keeps a node's own arrays.

A strategy sends what it shares. The mod adds what this node keeps, before the user's function loads the whole state
dict, and takes it out of the reply. It needs neither torch nor a partition-id: an app of Keras or NumPy is as good.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatchcase
from logging import INFO, WARNING, getLogger
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict

from ..client import protocol
from ..client.policy import guard
from ..client.state import ClientState, run_state
from ..core.checksummed_files import MAX_JSON, from_json_line, json_line
from ..core.errors import ConfigError, FedpflError, LayoutError, StateError, printable
from ..core.files import private_folder, read_regular, write_atomically
from ..flower_private import CLIENT_APP_RAISED_EXCEPTION
from .messages import EXTRAS, SETTINGS, kind_of, method_of, numpy_of

logger = getLogger("flwr")

# A client's arrays in Context.state, which Flower copies with every message of a simulation.
MAX_STATE_BYTES = 64 * 2**20
# Strategies of one app whose arrays a Context holds.
MAX_KEYS = 8
# Before the names of all records in it that are fedpfl's.
STATE = "fedpfl/"
# The record of a reply that tells who made it.
MARK = "fedpfl"
# The code of an error: the node has lost the arrays that the server names, and has to begin anew.
LOST_ARRAYS = 71_001
# What the message's config says of the record of the model's arrays, if that is not "arrays".
ARRAYS = "arrays-in"
# What the message's config says of this mod's work.
KEEP, PLACES, INITIAL, LIFE, HERE, GONE = "keep", "places", "initial", "life", "here", "gone"
RESERVED = (KEEP, PLACES, INITIAL, LIFE, HERE, GONE, ARRAYS, "phases")
NEWEST = -1  # as the round of a node's arrays: the last ones that it has

CallNext = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, CallNext], Message]

# That of the mod around the function that is called, if there is one.
_state_dir: ContextVar[str | Path | None] = ContextVar("state_dir")
_NO_MOD = Path()


class LostArraysError(StateError):
    """The arrays that a client kept after a round are not where they were."""


def keep(state_dir: str | Path | None = None) -> Mod:
    """Return a mod with which a ClientApp takes part in a personalised method, its functions as they are.

    Around a training function it puts this node's own arrays into the message, so that the function loads the whole
    state dict as it does with Flower's FedAvg; and it takes them out of the reply, which has the whole state dict, too.
    Which arrays these are is named once, in the strategy. A node begins with the strategy's initial arrays. What it has
    kept for a strategy never leaves it under this strategy's ``state_key``.

    Parameters
    ----------
    state_dir : str or Path, optional
        Folder in which the arrays outlive the SuperNode; its node-config tells a node there from others. Without it
        they are in ``Context.state`` and are lost when the SuperNode restarts.

    Returns
    -------
    callable
        For ``ClientApp(mods=[…])`` or ``app.train(mods=[…])`` and ``app.evaluate(mods=[…])``. Mods in front of it see
        what is shared alone, mods behind it whole state dicts.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from fedpfl.strategies import keep
    >>> app = ClientApp(mods=[keep(state_dir="~/.fedpfl/state")])
    """
    return _Mod(required_folder(state_dir))


def required_folder(state_dir: str | Path | None) -> str | Path | None:
    """Return the folder of a node's arrays; refuse what is no path, also an empty one, which is wherever it starts."""
    is_path = isinstance(state_dir, (str, Path)) and str(state_dir).strip() and "\0" not in str(state_dir)
    if not (state_dir is None or is_path):
        raise ConfigError("state_dir", state_dir, "must be the path of a folder")
    return state_dir


class _Mod:
    """The mod; Flower's simulation pickles the app of a script with all that its functions have beside them."""

    def __init__(self, state_dir: str | Path | None) -> None:
        self._state_dir = state_dir

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        if _state_dir.get(_NO_MOD) is not _NO_MOD:
            twice = "is around this function twice: in ClientApp(mods=…), or in mods= of its functions, is enough"
            return refused(message, ConfigError("mods", "keep", twice))
        call_next = _with_state(call_next)
        with _keeping_in(self._state_dir):
            told = told_by(message.content)
            if told is None or "server-round" not in told:  # a question, or fedpfl's own loop
                return call_next(message, context)
            try:
                if not told.get("phases"):
                    return _PersonalAnswer(message, context, told, self._state_dir).answer(call_next)
                reply = _required_reply(call_next, message, context)
                if reply.has_error() or MARK in reply.content.config_records:
                    return reply
                problem = "has phases or parts of its own (model=): the function has to return fit(message, context, …)"
                raise ConfigError("method", method_of(told), problem)
            except FedpflError as error:
                return refused(message, error)


def _required_reply(call_next: CallNext, message: Message, context: Context) -> Message:
    """Return the reply of the user's function; refuse what is none."""
    reply = call_next(message, context)
    if not isinstance(reply, Message):
        raise ConfigError(
            "reply", reply, f"must be a Message, which the app's {kind_of(message)} function has to return"
        )
    return reply


def _with_state(call_next: CallNext) -> CallNext:
    """Return the user's function; what is kept in ``Context.state`` stays there if the function sets a new state."""

    def call(message: Message, context: Context) -> Message:
        before = context.state
        reply = call_next(message, context)
        if context.state is not before:
            for name, record in before.items():
                if name.startswith(STATE) and name not in context.state:  # which fit may have written since
                    context.state[name] = record
        return reply

    return call


@contextmanager
def _keeping_in(state_dir: str | Path | None) -> Iterator[None]:
    token = _state_dir.set(state_dir)
    try:
        yield
    finally:
        _state_dir.reset(token)


def state_dir_of(state_dir: str | Path | None) -> str | Path | None:
    """Return the folder of a node's arrays: the one that is given, else that of the mod around the function."""
    return _state_dir.get(None) if state_dir is None else required_folder(state_dir)


def refused(message: Message, error: FedpflError) -> Message:
    """Return the reply that is an error, in one line."""
    code = LOST_ARRAYS if isinstance(error, LostArraysError) else CLIENT_APP_RAISED_EXCEPTION
    logger.log(WARNING, "fedpfl: %s", error)
    return Message(Error(code, printable(str(error), 500)), reply_to=message)


def told_by(content: RecordDict) -> dict[str, Any] | None:
    """Return the entries of fedpfl's strategy in a message's config; None of another strategy's message."""
    return next((dict(record) for record in content.config_records.values() if SETTINGS in record), None)


class _PersonalAnswer:
    """One message of a strategy that splits arrays by their names, at a node that keeps some of them."""

    def __init__(
        self, message: Message, context: Context, told: Mapping[str, Any], state_dir: str | Path | None
    ) -> None:
        self._message, self._context, self._told = message, context, told
        self._patterns = [str(name) for name in cast(list[Any], told.get(KEEP, []))]
        self._node = NodeStore(context, state_dir, str(told["state-key"]))
        if (owner := guard()) is not None:
            owner.check({"method": method_of(told), "num-clients": 0}, "", ("method",))
            if owner.counts_answers and kind_of(message) == MessageType.TRAIN:
                owner.count_release(0.0)
        self._node.enter(told)

    def answer(self, call_next: CallNext) -> Message:
        """Have the user's function answer, with this node's own arrays in the message."""
        name, shared = arrays_of(self._message.content, str(self._told.get(ARRAYS, "arrays")))
        personal = self._personal_arrays() if self._patterns or self._node.about.get("names") else {}
        self._require_still_kept(personal)
        whole = self._whole(shared, personal)
        self._message.content[name] = whole
        # As the strategy's message says no more than Flower's own would, to whoever reads its config.
        for record in self._message.content.config_records.values():
            record.pop(INITIAL, None)
        reply = _required_reply(call_next, self._message, self._context)
        if reply.has_error():
            return reply
        if kind_of(self._message) == MessageType.TRAIN:
            self._take(arrays_of(reply.content, name)[1], whole, personal)
        self._leave_out(reply.content)
        reply.content[MARK] = ConfigRecord({"by": KEEP, "node": self._node.identity})
        return reply

    def _personal_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that this node keeps, or those that it begins with."""
        wanted, rounds = int(self._told["personal-round"]), self._node.state.rounds()
        if wanted == NEWEST and rounds:
            return self._node.state.load(rounds[-1])
        if wanted > 0 or 0 in rounds:
            return self._node.state.load(max(wanted, 0))
        sent = self._message.content.array_records.get(INITIAL)
        if sent is not None:
            del self._message.content[INITIAL]
            return {key: numpy_of(key, array) for key, array in sent.items()}
        packed = self._told.get(INITIAL)
        if not isinstance(packed, bytes):
            message = "must have the arrays that stay on the nodes, as this one has none of its own yet"
            raise ConfigError("initial_arrays", self._patterns, message)
        try:
            return protocol.unpack(packed)[1].arrays
        except protocol.ProtocolError as error:
            raise LayoutError(f"its initial personal arrays cannot be read ({error})") from error

    def _is_kept(self, name: str) -> bool:
        return any(fits(pattern, name) for pattern in self._patterns)

    def _require_still_kept(self, personal: Mapping[str, np.ndarray]) -> None:
        """Refuse a message that would have this node send what it has kept so far."""
        names = [*cast(list[str], self._node.about.get("names", [])), *personal]
        if freed := [name for name in names if not self._is_kept(name)]:
            message = f"does not cover {freed[0]}, which this node has kept so far and does not send"
            raise ConfigError(KEEP, self._patterns, message)

    def _whole(self, shared: ArrayRecord, personal: Mapping[str, np.ndarray]) -> ArrayRecord:
        """Return the state dict as the user's model has it, in its order if the strategy knows that."""
        rows = list(shared.items())
        mine = {name: Array(np.asarray(array, order="C")) for name, array in personal.items()}
        places = cast(list[int], self._told.get(PLACES, []))
        for place, name in sorted(zip(places, self._patterns, strict=False)):
            if name in mine:
                rows.insert(place, (name, mine.pop(name)))
        return ArrayRecord({**dict(rows), **mine})

    def _take(self, sent: ArrayRecord, whole: ArrayRecord, personal: Mapping[str, np.ndarray]) -> None:
        """Keep this node's own arrays as a reply has them."""
        personal_sent = {key: numpy_of(key, array) for key, array in sent.items() if self._is_kept(key)}
        if missing := [key for key in personal if key not in personal_sent]:
            raise LayoutError(f"the reply lacks {missing[0]!r}, which stays on this node: it must have the whole model")
        if not all(np.isfinite(array).all() for array in personal_sent.values() if array.dtype.kind == "f"):
            number = self._told["server-round"]
            raise StateError(f"the training diverged in round {number}: arrays that stay on this node are not finite")
        if all(whole[key].data == array.data for key, array in sent.items() if key in whole):
            warning = "fedpfl: none of the arrays changed in round %s: was the reply made before the training?"
            logger.log(WARNING, warning, self._told["server-round"])
        _require_not_tied(whole, sent, personal_sent)
        self._node.keep(personal_sent, int(self._told["round"]), int(self._told["personal-round"]))

    def _leave_out(self, content: RecordDict) -> None:
        """Take this node's own arrays out of all records of a reply: a function may hand back what it has got."""
        for name, record in list(content.array_records.items()):
            content[name] = ArrayRecord({key: array for key, array in record.items() if not self._is_kept(key)})


def _require_not_tied(before: ArrayRecord, after: ArrayRecord, kept: Collection[str]) -> None:
    """Refuse one array under two names of which one stays here: loading one of the two overwrites the other.

    Two matrices are one if they are equal after the training, which has changed both, and not by one value everywhere.
    """
    trained = [
        name for name, array in after.items()
        if len(array.shape) > 1 and name in before and before[name].data != array.data
    ]  # fmt: skip
    for mine in (name for name in trained if name in kept):
        for other in (name for name in trained if name not in kept and after[name].shape == after[mine].shape):
            if after[mine].data == after[other].data and np.ptp(after[mine].numpy()) > 0:
                message = f"keeps {mine} and shares {other}, which are one array (tied weights): keep or share both"
                raise ConfigError(KEEP, mine, message)


def arrays_of(content: RecordDict, name: str = "arrays") -> tuple[str, ArrayRecord]:
    """Return the arrays of the model in a message, with their record's name: ``name``, if there are others as well."""
    records = {key: record for key, record in content.array_records.items() if key not in (EXTRAS, INITIAL)}
    if name in records:
        return name, records[name]
    if len(records) != 1:
        raise LayoutError(f"has {len(records)} ArrayRecords, none of them called {name!r}: one must be the model's")
    return next(iter(records.items()))


def fits(pattern: str, name: str) -> bool:
    """Return whether a name is the one that a pattern says, lies below it, or fits its ``*`` and ``?``.

    Examples
    --------
    >>> from fedpfl.flower.keep import fits
    >>> [fits(pattern, "fc2.weight") for pattern in ("fc2.weight", "fc2", "fc2.", "*.weight", "fc")]
    [True, True, True, True, False]
    """
    return name == pattern or name.startswith(f"{pattern.rstrip('.')}.") or fnmatchcase(name, pattern)


# -- where a node keeps them -------------------------------------------------------------------------------------------


class NodeStore:
    """The arrays that a node keeps for one strategy, and its identity there, which is not its node id: that changes."""

    def __init__(self, context: Context, state_dir: str | Path | None, key: str) -> None:
        self._context = context
        self.state: ContextState | NodeFiles
        if state_dir is None:
            self.state = ContextState(context, key, 0)
        else:
            self.state = NodeFiles(state_dir, key, context.node_config)
        self.about: dict[str, Any] = self.state.read_about()

    @property
    def identity(self) -> str:
        """The proof for a strategy that this is the same node as before."""
        return str(self.about["identity"])

    def enter(self, told: Mapping[str, Any]) -> None:
        """Take the place that is this node's own: as it has it, left by a node that is gone, or new."""
        about, turn = self.about, [self._context.run_id, int(told["round"])]
        if about and about["node"] != self._context.node_id:
            here, gone = (cast(list[str], told.get(name, [])) for name in (HERE, GONE))
            shown = identity_hash(self.identity)
            if shown in here or (shown not in gone and about["turn"] == turn):
                message = f"is that of node {about['node']} as well, which keeps its arrays in the same state_dir"
                raise ConfigError("node-config", dict(self._context.node_config), f"{message}: give each node its own")
            notice = "fedpfl: this node goes on from the arrays that node %d has left in %s"
            logger.log(INFO, notice, about["node"], getattr(self.state, "folder", ""))
        life = str(told.get(LIFE, ""))
        if about and about["life"] != life:
            self.state.begin_anew()
        before = {"identity": token_hex(32), "names": [], **about}
        self._note({**before, "node": self._context.node_id, "turn": turn, "life": life})

    def keep(self, arrays: Mapping[str, np.ndarray], number: int, started_from: int) -> None:
        """Keep the arrays that this node holds after a round."""
        self.state.save(arrays, number, started_from)
        self._note({**self.about, "names": sorted(arrays)})

    def _note(self, about: dict[str, Any]) -> None:
        if about != self.about:
            self.about = about
            self.state.write_about(about)


def identity_hash(identity: str) -> str:
    """Return the hash of an identity that strategies store and send; who has it cannot pass for the node."""
    return hashlib.sha256(identity.encode()).hexdigest()[:32]


class NodeFiles(ClientState):
    """A node's files; what its node-config says tells it from the other nodes of the folder."""

    def __init__(self, root: str | Path, key: str, node_config: Mapping[str, Any]) -> None:
        super().__init__(root, key, 0)
        text = json.dumps(sorted(node_config.items()), default=str)
        name = f"client-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.folder = run_state(root, key) / name

    def load(self, server_round: int) -> dict[str, np.ndarray]:
        """Return the arrays that the node held after a round."""
        if not self.path(server_round).is_file():
            raise LostArraysError(f"the personal arrays of round {server_round} are not in {self.folder}")
        return super().load(server_round)

    def begin_anew(self) -> None:
        """Make the newest arrays those with which the rounds begin, from 1."""
        *earlier, newest = self.rounds() or [0]
        for number in earlier:
            self.path(number).unlink()
        if newest:
            self.path(newest).replace(self.path(0))

    def read_about(self) -> dict[str, Any]:
        """Return the node's notes of itself; none if it was never here."""
        file = self.folder / "node.json"
        return from_json_line(read_regular(file, MAX_JSON), file, "identity") if file.is_file() else {}

    def write_about(self, about: Mapping[str, Any]) -> None:
        """Note something of the node."""
        try:
            private_folder(self.folder)
            write_atomically(self.folder / "node.json", json_line(dict(about)).encode(), private=True)
        except OSError as error:
            raise StateError(f"{self.folder}: no file can be written there: {error.strerror}") from error


class ContextState(ClientState):
    """A client's arrays in Flower's ``Context.state``: those of the last round, and those that it started from."""

    def __init__(self, context: Context, key: str, client: int) -> None:
        super().__init__("", key, client)
        self._context, self._prefix = context, f"{STATE}{key}"

    @property
    def _records(self) -> RecordDict:
        """The state that the context has now: the user's function may have set another one."""
        return self._context.state

    @property
    def folder(self) -> Path:  # type: ignore[override]
        """Refuse what needs files."""
        raise ConfigError("state_dir", None, "must be given: noise and models of a device are files")

    @property
    def of_a_device(self) -> bool:
        """Return whether a server has asked for the secret; none is stored here."""
        return False

    def secret(self) -> str:
        """Return nothing: what a restarted node no longer has cannot tell it from others."""
        return ""

    def sealed(self, text: str) -> str:
        """Return nothing: a key that a restarted node no longer has would make another hash."""
        return ""

    def rounds(self) -> list[int]:
        """Return the rounds after which arrays are here, in order."""
        start = f"{self._prefix}/round-"
        return sorted(int(name[len(start) :]) for name in self._records.array_records if name.startswith(start))

    def load(self, server_round: int) -> dict[str, np.ndarray]:
        """Return the arrays that the client held after a round."""
        record = self._records.array_records.get(f"{self._prefix}/round-{server_round}")
        if record is None:
            lost = "a SuperNode that is started again has lost them; give state_dir to keep them, each keep() the same"
            raise LostArraysError(f"the personal arrays of round {server_round} are not here: {lost}")
        return {name: numpy_of(name, array) for name, array in record.items()}

    def save(self, arrays: Mapping[str, np.ndarray], server_round: int, started_from: int) -> None:
        """Keep the arrays that the client holds after a round."""
        if not arrays:
            return
        size = sum(array.nbytes for array in arrays.values())
        if size > MAX_STATE_BYTES:
            what = f"{size} bytes of personal arrays are too many for Context.state, which takes {MAX_STATE_BYTES}"
            raise ConfigError("state_dir", None, f"must be given: {what}")
        started = self.rounds()[-1:] if started_from == NEWEST else [started_from]
        self._drop({*self.rounds()} - {server_round, *started})
        self._put(server_round, {name: Array(np.asarray(array, order="C")) for name, array in arrays.items()})
        keys = dict.fromkeys(name.rpartition("/")[0] for name in self._records if "/round-" in name)
        for key in [*keys][:-MAX_KEYS]:  # of strategies that trained longest ago
            for name in [name for name in self._records if name.startswith((f"{key}/round-", f"{key}/node"))]:
                del self._records[name]

    def begin_anew(self) -> None:
        """Make the newest arrays those with which the rounds begin, from 1."""
        *earlier, newest = self.rounds() or [0]
        self._drop(earlier)
        if newest:
            self._put(0, self._records.array_records[f"{self._prefix}/round-{newest}"])
            self._drop([newest])

    def _put(self, number: int, arrays: Mapping[str, Array]) -> None:
        self._records[f"{self._prefix}/round-{number}"] = ArrayRecord(dict(arrays))

    def _drop(self, numbers: Any) -> None:
        for number in numbers:
            del self._records[f"{self._prefix}/round-{number}"]

    def read_about(self) -> dict[str, Any]:
        """Return the node's notes of itself; none if it was never here."""
        record = self._records.config_records.get(f"{self._prefix}/node")
        return {} if record is None else json.loads(str(record["about"]))

    def write_about(self, about: Mapping[str, Any]) -> None:
        """Note something of the node."""
        self._records[f"{self._prefix}/node"] = ConfigRecord({"about": json.dumps(dict(about))})
