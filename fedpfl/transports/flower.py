"""Over Flower: clients are the nodes of a Grid, in a simulation of Flower's or as SuperNodes on devices."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from logging import INFO, WARNING, getLogger

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from ..core.errors import ConfigError, FedpflError, LayoutError
from ..core.federation import Client
from ..core.payload import UNNUMBERED, Payload
from ..messages import fits_frame, from_content, pack_arrays, to_content, to_framed_content
from ..setup.config import Config, RunSettings
from .base import Fail, Request, Transport
from .exchange import Exchange, Node, Pace

logger = getLogger("flwr")

# The number of nodes has to stand still for this long before the first are asked.
SETTLED_SECONDS = 0.3
# How long a round waits for nodes that appeared during the run to say which clients they are.
ASK_SECONDS = 60.0
# Classes, clients, tokens and samples are fewer than this; larger numbers are no descriptions.
MOST = 10_000_000
# Of a client's remarks on its data.
MOST_CHARACTERS = 2_000
# Records of arrays that go into several messages: of this many different ones, the latest.
KEPT_RECORDS = 16


class FlowerTransport(Transport):
    """Clients behind Flower's Grid.

    Parameters
    ----------
    grid : Grid
        As Flower hands it to the ServerApp.
    settings : RunSettings
        The time limits.
    state_key : str
        Under which clients keep their arrays, and nodes their numbers.
    """

    def __init__(self, grid: Grid, settings: RunSettings, state_key: str) -> None:
        self._grid, self._settings, self._key = grid, settings, state_key
        self._nodes: dict[int, Node] = {}

    def find_clients(self, config: Config) -> dict[int, Payload]:
        """Wait for the nodes and ask each which client it is."""
        deadline = time.monotonic() + self._settings.node_timeout
        descriptions: dict[int, Payload] = {}
        while True:
            nodes = self._settled_nodes(deadline)
            descriptions = {node: d for node, d in descriptions.items() if node in nodes}
            descriptions.update(self._query([n for n in nodes if n not in descriptions], deadline))
            if descriptions:
                counts = {int(d.config["num-clients"]) for d in descriptions.values()}
                if len(counts) > 1:
                    raise ConfigError("num-partitions", sorted(counts), "must be the same on all nodes")
                expected = counts.pop()
                if len(descriptions) == expected:
                    if numbers := _numbers(descriptions, expected):
                        descriptions.update(self._query(sorted(numbers), deadline, numbers))
                    if not any(UNNUMBERED in d.config for d in descriptions.values()):
                        break
                if len(descriptions) > expected:
                    allowed = f"this federation has {len(descriptions)} nodes"
                    raise ConfigError("num-clients", expected, allowed)
            if time.monotonic() > deadline:
                seen = sorted(int(d.config["client"]) for d in descriptions.values() if "client" in d.config)
                raise FedpflError(
                    f"{len(descriptions)} of {expected if descriptions else config.data.num_clients or 'the'} clients "
                    f"connected within node-timeout = {self._settings.node_timeout:g} s: {seen}"
                )
        by_client: dict[int, Payload] = {}
        for node, description in descriptions.items():
            number, metrics = int(description.config["client"]), description.metrics
            if number in by_client:
                raise ConfigError("partition-id", number, "two nodes have it; each node needs its own")
            by_client[number] = description
            client = Client(number, int(metrics["train-samples"]), int(metrics["test-samples"]))
            self._nodes[number] = Node(client, node, description.config.get("in-turn") is True)
        return by_client

    def begin_round(self) -> None:
        """Look for clients whose node is gone among the nodes that are new.

        A SuperNode without a registered key gets another node id each time it starts.
        """
        nodes = set(self._grid.get_node_ids())
        gone = {client for client, node in self._nodes.items() if node.id not in nodes}
        new = nodes - {node.id for node in self._nodes.values()}
        if not gone or not new:
            return
        for client, node in self._ask(sorted(new)).items():
            if client in gone:
                logger.log(INFO, "client %d is back as node %d", client, node)
                self._nodes[client] = replace(self._nodes[client], id=node)

    def replies(self, requests: Sequence[Request], timeout: float, fail: Fail) -> Iterator[tuple[Client, Payload]]:
        """Send Flower's messages; what devices lose is sent again."""
        by_client = {request.client.id: request for request in requests}
        records: OrderedDict[tuple[int, ...], tuple[Payload, ArrayRecord]] = OrderedDict()

        def make(client: int) -> Message:
            request = by_client[client]
            payload = request.make()
            node = self._nodes[client]
            number = str(payload.config.get("round", ""))
            if node.in_turn and fits_frame(payload):
                return Message(to_framed_content(payload), node.id, request.kind, group_id=number)
            # The same arrays are one record: serialised once, held once.
            same = tuple(id(array) for array in payload.arrays.values())
            if same not in records:
                records[same] = payload, pack_arrays(payload.arrays)
                if len(records) > KEPT_RECORDS:
                    records.popitem(last=False)
            content = to_content(Payload(payload.config), records[same][1])
            return Message(content, node.id, request.kind, group_id=number)

        exchange = Exchange(self._grid, self._nodes, make, self.begin_round, fail, self._settings.check_after)
        for client, reply in exchange.replies(by_client, timeout):
            if reply.has_error():
                fail(client, reply.error.reason or f"error code {reply.error.code}")
                continue
            try:
                payload = from_content(reply.content)
            except LayoutError as error:
                fail(client, str(error))
            else:
                yield client, payload

    def _settled_nodes(self, deadline: float) -> list[int]:
        nodes: list[int] = []
        since, pace = time.monotonic(), Pace()
        while time.monotonic() < deadline:
            found = sorted(self._grid.get_node_ids())
            new = found != nodes
            if new:
                nodes, since = found, time.monotonic()
            elif nodes and time.monotonic() - since > SETTLED_SECONDS:
                break
            pace.pause(new)
        return nodes

    def _query(self, nodes: list[int], deadline: float, numbers: Mapping[int, int] | None = None) -> dict[int, Payload]:
        """Ask nodes what they are; those without a number get to know it from ``numbers``, by their ids."""
        if not nodes:
            return {}
        given = {node: {"client": number} for node, number in (numbers or {}).items()}
        contents = {node: to_content(Payload({"state-key": self._key, **given.get(node, {})})) for node in nodes}
        questions = [Message(content, node, "query") for node, content in contents.items()]
        pending = {i for i in self._grid.push_messages(questions) if i}
        out: dict[int, Payload] = {}
        pace = Pace()
        deadline = min(deadline, time.monotonic() + self._settings.round_timeout)
        while pending and time.monotonic() < deadline:
            replies = list(self._grid.pull_messages(pending))
            for reply in replies:
                pending.discard(reply.metadata.reply_to_message_id)
                if reply.metadata.src_node_id not in nodes:
                    continue  # made by the SuperLink for a node that is gone; if it comes back it is asked again
                if reply.has_error():
                    raise FedpflError(f"a client cannot take part: {reply.error.reason}")
                out[reply.metadata.src_node_id] = _description(from_content(reply.content))
            pace.pause(bool(replies))
        return out

    def _ask(self, nodes: list[int]) -> dict[int, int]:
        """Ask nodes that appeared during the run which clients they are; return the clients' nodes."""
        try:
            found = self._query(nodes, time.monotonic() + ASK_SECONDS)
        except FedpflError as error:
            logger.log(WARNING, "fedpfl: %s", error)
            return {}
        return {int(d.config["client"]): node for node, d in found.items() if UNNUMBERED not in d.config}


def _numbers(descriptions: Mapping[int, Payload], clients: int) -> dict[int, int]:
    """Give the nodes that do not know which client they are the numbers that are left, in the order of their ids."""
    taken = {int(d.config["client"]) for d in descriptions.values() if UNNUMBERED not in d.config}
    left = (number for number in range(clients) if number not in taken)
    return dict(zip(sorted(node for node, d in descriptions.items() if UNNUMBERED in d.config), left, strict=False))


def _description(payload: Payload) -> Payload:
    """Check what a client says of itself; it comes from the network."""
    config, metrics = payload.config, payload.metrics
    if config.get(UNNUMBERED) is True and type(config.get("num-clients")) is int:
        return payload
    numbers = [config.get("client"), config.get("num-clients"), config.get("num-classes")]
    numbers += [config.get("vocabulary", 0), metrics.get("train-samples"), metrics.get("test-samples")]
    division = config.get("division", 0)
    shape = str(config.get("input-shape", ""))
    proper = all(type(n) is int and 0 <= n < MOST for n in numbers) and re.fullmatch(r"\d{1,6}(x\d{1,6}){0,3}", shape)
    remarks = str(config.get("remarks", "")).replace("\n", "")
    readable = len(remarks) <= MOST_CHARACTERS and remarks.isprintable()
    if not proper or not readable or type(division) is not int or "layout" not in config:
        raise FedpflError("a client described itself in a way that this version does not understand")
    return payload
