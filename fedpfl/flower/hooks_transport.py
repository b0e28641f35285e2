"""Flower's own loop as the transport of a round: a strategy's hooks hand out its messages and take the replies."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING, getLogger
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from ..client import protocol
from ..core.errors import ConfigError, LayoutError, printable
from ..core.metric_bounds import LARGEST
from ..core.payload import Payload
from ..core.rng import generator
from ..core.server_view import Client
from ..core.settings import Value
from ..engine.client_sampling import ClientSampling
from ..engine.transport import Fail, Members, Reply, Request
from ..results.round_record import Round
from ..rules import Rule
from ..setup.config import RunSettings
from .grid_transport import GridMembers
from .keep import GONE, HERE, INITIAL, KEEP, LIFE, LOST_ARRAYS, MARK, NEWEST, PLACES, RESERVED, identity_hash
from .messages import EXTRAS, MAX_FRAMED_BYTES, SETTINGS, Names, from_named, others_of, pack_arrays, to_named
from .nodes import Node
from .reported_numbers import SAMPLES, most_by_median
from .split import Split

logger = getLogger("flwr")

# Seconds between two lines that tell that nodes are waited for.
TOLD_EVERY = 10.0
# Why a client's reply does not count that was not handed over.
LATE = "no reply in time"


@dataclass
class MessageForm:
    """What messages and replies are like in Flower's loop."""

    arrays_key: str = "arrays"
    config_key: str = "config"
    weight: str = SAMPLES
    always: Mapping[str, Value] = field(default_factory=dict)  # in each message's config


class HooksTransport(GridMembers):
    """Clients behind the hooks of a strategy.

    With a ``split`` nothing is known of the nodes but that they take these arrays, and nodes that come are taken; else
    they have been asked for their task.
    """

    def __init__(
        self, grid: Grid, settings: str, form: MessageForm, split: Split | None, life: str, available: int
    ) -> None:
        super().__init__(grid, settings)
        self.form, self.split, self._life, self._available = form, split, life, available
        self.missing = LATE  # or another reason
        self.settings = settings  # as text, which may change from round to round
        self.rule: Rule
        self.plain: Names
        self.contents: dict[int, RecordDict] = {}  # of the replies that could be read
        self.lost: set[int] = set()  # clients that no longer have what they kept
        self._sent: dict[int, tuple[Client, Message]] = {}
        self.online: set[int] = set()
        self._gone: set[int] = set()
        self._strangers: set[int] = set()
        self._told_more = False
        self._joined: list[Client] = []
        # Flower's ids of nodes, by the hashes of the identities that they have told.
        self._identities: dict[str, int] = {}

    # -- who is there --------------------------------------------------------------------------------------------------

    def place_all(self) -> list[Client]:
        """Return the nodes that are there as clients, numbered by their ids."""
        self._wait()
        for number, node in enumerate(sorted(self.online)):
            self._clients[number] = Node(Client(number, 0, 0), node)
        return [node.client for node in self._clients.values()]

    def begin_round(self) -> None:
        """Look who is there; tell who is gone, back or new."""
        self._wait()
        if self.split is None:
            super().begin_round()
        nodes = self.nodes
        for client, node in nodes.items():
            if node not in self.online and node not in self._gone:
                logger.log(WARNING, "fedpfl: %s is gone", self.shown(client))
            elif node in self.online and node in self._gone:
                logger.log(INFO, "fedpfl: %s is back", self.shown(client))
        self._gone = set(nodes.values()) - self.online
        keeps = self.rule.remembers or not self.rule.one_model
        for node in sorted(self.online - set(nodes.values()) - self._strangers):
            if self.split is None or keeps:
                self._strangers.add(node)
                why = (
                    "with model= nodes are asked before round 1"
                    if self.split is None
                    else "the method needs all clients before round 1"
                )
                logger.log(WARNING, "fedpfl: node %d came late and does not take part: %s", node, why)
                continue
            new = Client(len(self._clients), 0, 0)
            self._clients[new.id] = Node(new, node)
            self._joined.append(new)
            logger.log(INFO, "fedpfl: node %d is new, as client %d", node, new.id)

    def joined(self) -> list[Client]:
        """Return the clients that have come since the last call."""
        joined, self._joined = self._joined, []
        return joined

    def is_there(self, client: int) -> bool:
        """Return whether a client's node is there."""
        return client in self._clients and self._clients[client].id in self.online

    def shown(self, client: int) -> str:
        """Return the name of a client in logs."""
        return f"client {client} (node {self._clients[client].id})"

    def look(self) -> None:
        """Look which nodes are there, without waiting for others."""
        self.online = set(self._grid.get_node_ids())

    def _wait(self) -> None:
        """Wait until as many nodes are there as are wanted."""
        last_notice = -TOLD_EVERY
        while len(present := set(self._grid.get_node_ids())) < self._available:
            if time.monotonic() - last_notice > TOLD_EVERY:
                last_notice = time.monotonic()
                logger.log(INFO, "waiting for nodes: %d of at least %d are there", len(present), self._available)
            time.sleep(min(1.0, TOLD_EVERY))
        self.online = present

    # -- messages ------------------------------------------------------------------------------------------------------

    def messages(self, requests: Sequence[Request], config: ConfigRecord, server_round: int) -> list[Message]:
        """Return the messages of requests, those of the lowest client first."""
        records: dict[int, tuple[Payload, ArrayRecord, ArrayRecord]] = {}
        self._sent = {}
        config["server-round"] = server_round
        for request in sorted(requests, key=lambda one: one.client.id):
            payload, layout = request.make(), self.rule.layout_of(request.client)
            key = id(payload.arrays)
            if key not in records:  # equal arrays are one record: serialised once, held once
                arrays, extras = to_named(layout, payload.arrays, self.plain)
                if self.split is not None:
                    arrays = self.split.named({name: array.numpy() for name, array in arrays.items()})
                records[key] = payload, arrays, extras
            _, arrays, extras = records[key]
            entries: dict[str, Any] = {name: value for name, value in payload.config.items() if name != "layout"}
            entries |= {**self.form.always, SETTINGS: self.settings}
            if layout.frozen:
                entries["frozen"] = layout.frozen
            content = RecordDict({self.form.arrays_key: arrays})
            entries |= self._of_split(request.client.id, int(entries["personal-round"]), content)
            if taken := [key for key in (*entries, *RESERVED) if key in config]:
                raise ConfigError(self.form.config_key, taken[0], "is a name of fedpfl's own in the messages' config")
            content[self.form.config_key] = ConfigRecord({**dict(config), **entries})
            if extras:
                content[EXTRAS] = extras
            node = self._clients[request.client.id].id
            message = Message(content, node, request.kind, group_id=str(server_round))
            self._sent[request.client.id] = request.client, message
        return [message for _, message in self._sent.values()]

    def _of_split(self, client: int, counted: int, content: RecordDict) -> dict[str, Any]:
        """Return the entries for nodes that keep arrays of their own; large initial ones are put into the content."""
        if self.split is None or not self.split.kept:
            return {}
        entries: dict[str, Any] = {KEEP: self.split.kept, LIFE: self._life}
        if self.split.places:
            entries[PLACES] = self.split.places
        if counted == 0 and (initial := self.split.initial):
            if sum(array.nbytes for array in initial.values()) <= MAX_FRAMED_BYTES:
                entries[INITIAL] = protocol.pack({}, Payload(arrays=initial))
            else:
                content[INITIAL] = pack_arrays(initial)
        if self._clients[client].id not in self._identities.values():
            entries["personal-round"] = NEWEST if counted == 0 else counted
            places: dict[str, list[str]] = {HERE: [], GONE: []}
            for identity, node in self._identities.items():
                places[HERE if node in self.online else GONE].append(identity)
            entries |= {key: identities for key, identities in places.items() if identities}
        return entries

    # -- replies -------------------------------------------------------------------------------------------------------

    def read(self, replies: Iterable[Message], fail: Fail, trained: bool) -> Iterator[Sequence[Reply]]:
        """Yield replies in client order, their contents in ``contents``; ``fail`` is told why others do not count."""
        of_message = {message.metadata.message_id: client for client, message in self._sent.values()}
        of_node = {message.metadata.dst_node_id: client for client, message in self._sent.values()}
        by_client: dict[int, Message] = {}
        self.contents, self.lost = {}, set()
        for reply in replies:
            # The SuperLink answers for a node that is gone, with an id of its own: the message comes first.
            client = of_message.get(reply.metadata.reply_to_message_id) or of_node.get(reply.metadata.src_node_id)
            if client is not None:
                by_client.setdefault(client.id, reply)
        if trained and self.split is not None:  # nobody has told before how much its reply counts
            weights = [self._weight_of(reply.content) for reply in by_client.values() if not reply.has_error()]
            self.rule.bound_weights([weight for weight in weights if weight], most_by_median(weights))
        for number, (client, _) in sorted(self._sent.items()):
            if number not in by_client:
                fail(client, self.missing)
            elif by_client[number].has_error():
                error = by_client[number].error
                if error.code == LOST_ARRAYS:
                    self.lost.add(number)
                fail(client, printable(str(error.reason or f"error code {error.code}"), 500))
            else:
                try:
                    self._note_identity(client, by_client[number].content)
                    read = self._payload(client, by_client[number].content, trained)
                except LayoutError as error:
                    fail(client, printable(str(error), 500))
                else:
                    self.contents[number] = by_client[number].content
                    yield [read]

    def _weight_of(self, content: RecordDict) -> float:
        """Return the number that a reply says it counts by, 0 if it says none that can be."""
        said = [record.get(self.form.weight) for record in content.metric_records.values()]
        weight = said[0] if len(said) == 1 else None
        return weight if isinstance(weight, (int, float)) and 0 < weight <= LARGEST else 0

    def _note_identity(self, client: Client, content: RecordDict) -> None:
        """Note which node an identity belongs to; refuse one that another node has told, which is there."""
        mark = content.config_records.get(MARK, ConfigRecord())
        if self.split is None:
            if mark.get("by") != "fit":
                raise LayoutError("its reply was not made by fit or client_app, which a strategy with model= needs")
            return
        node = self._clients[client.id].id
        if not isinstance(identity := mark.get("node"), str):
            if self.split.kept and node in self._identities.values():
                raise LayoutError("its reply was made without the mod keep, which others of its replies had: "
                                  "ClientApp(mods=[keep()]) is around all functions")  # fmt: skip
            return
        shown = identity_hash(identity)
        before = self._identities.get(shown, node)
        if before != node and before in self.online:
            raise LayoutError(
                f"its identity is that of node {before}: give each node a state_dir or node-config of its own"
            )
        if before != node:
            logger.log(INFO, "fedpfl: %s goes on from the arrays of node %d", self.shown(client.id), before)
        self._identities[shown] = node

    def _payload(self, client: Client, content: RecordDict, trained: bool) -> Reply:
        """Return a reply as the rule takes it."""
        if len(content.metric_records) != 1:
            raise LayoutError(f"its reply has {len(content.metric_records)} MetricRecords, and must have one")
        said = next(iter(content.metric_records.values()))
        metrics = {name: value for name, value in said.items() if not isinstance(value, list)}
        if not trained:
            return Reply(client, Payload(metrics=metrics))
        rule, layout = self.rule, self.rule.layout_of(client)
        others = {name: record for name, record in content.array_records.items() if name != EXTRAS}
        if len(others) != 1:
            raise LayoutError(f"its reply has {len(others)} ArrayRecords with arrays of the model, and must have one")
        record = next(iter(others.values()))
        if not self._told_more and self.split is not None and (more := self.split.unknown(record)):
            self._told_more = True
            warning = "fedpfl: %s sends %s, which initial_arrays do not have: left out, as are others of this kind"
            logger.log(WARNING, warning, self.shown(client.id), printable(", ".join(more), 200))
        arrays: dict[str, Any] = {}
        if rule.takes_shared:
            shared = self.split.floats_of(record) if self.split else from_named(layout, record, self.plain)
            arrays = layout.pack(shared, rule.federation.wire_dtype)
        metrics["train-samples"] = metrics.get(self.form.weight, 0)
        if self.split is not None:
            client = replace(client, train_samples=cast(int, metrics["train-samples"]))
            rule.clients[client.id] = client
        config: dict[str, Value] = {"layout": layout.to_text()}
        return Reply(client, Payload(config, metrics, {**others_of(content.array_records.get(EXTRAS)), **arrays}))


class SamplingByShares(ClientSampling):
    """Draws clients whose nodes are there, to train and to be tested."""

    def __init__(self, settings: RunSettings, transport: HooksTransport, least: int, tested: tuple[float, int]) -> None:
        super().__init__(settings, least)
        self._transport, self._tested = transport, tested

    def begin(self, transport: Members, rule: Rule, done: Round) -> None:
        """Let clients take part that have come."""
        for client in self._transport.joined():
            rule.join(client)
            rule.personal_round[client.id] = 0

    def present(self, rule: Rule, done: Round) -> list[Client]:
        """Return the participants whose nodes are there."""
        return [client for client in rule.participants if self._transport.is_there(client.id)]

    def tested(self, rule: Rule, done: Round) -> list[Client]:
        """Draw the clients that are tested."""
        there, (share, least) = self.present(rule, done), self._tested
        count = min(len(there), max(round(len(there) * share), least, 1))
        chosen = generator(self.settings.seed, "evaluated clients", done.number).choice(
            len(there), count, replace=False
        )
        return [there[place] for place in sorted(chosen)] if share else []
