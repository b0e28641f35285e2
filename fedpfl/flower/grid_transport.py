"""The transport over Flower: clients are the nodes of a Grid, in Flower's simulation or as SuperNodes on devices."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from logging import INFO, getLogger

from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid

from ..core.errors import LayoutError, printable
from ..core.payload import Payload
from ..core.server_view import Client
from ..core.settings import Value
from ..engine.transport import Fail, Members, Reply, Request, Transport
from ..flower_private import shorten_pauses
from ..setup.config import Config
from ..setup.options.availability import AvailabilitySettings
from .half_round import HalfRound
from .messages import SETTINGS, fits_frame, from_content, pack_arrays, to_content, to_framed_content
from .nodes import Node, Nodes

logger = getLogger("flwr")

# How many records of arrays are cached, because they go into several messages.
KEPT_RECORDS = 16


class GridMembers(Members):
    """Clients behind Flower's Grid; ``settings``, a strategy's as text, goes with each message to them."""

    def __init__(self, grid: Grid, settings: str = "") -> None:
        self._grid = grid
        self._settings: dict[str, Value] = {SETTINGS: settings} if settings else {}
        self._clients: dict[int, Node] = {}
        # Clients that were absent at the start, if they may join; and the answers of those that have since connected.
        self._absent: set[int] = set()
        self._new: dict[int, Payload] = {}

    def find_clients(
        self,
        config: Config,
        state_key: str = "",
        identities: Mapping[str, str] | None = None,
    ) -> dict[int, Payload]:
        """Wait for the nodes and ask each which client it is."""
        self._check_after = config.run.check_after
        self._nodes = Nodes(self._grid, config.run, state_key, identities or {}, self._settings)
        by_client: dict[int, Payload] = {}
        answers = self._nodes.find(config.data.num_clients)
        for node, answer in sorted(answers.items(), key=lambda item: int(item[1].config["client"])):
            by_client[int(answer.config["client"])] = answer
            self._place(node, answer)
        if config.of(AvailabilitySettings).new_nodes == "join":
            total = int(next(iter(by_client.values())).config["num-clients"])
            self._absent = set(range(total)) - by_client.keys()
        return by_client

    @property
    def nodes(self) -> dict[int, int]:
        """Flower's id of the node of each client."""
        return {client: node.id for client, node in self._clients.items()}

    def identities(self) -> dict[str, str]:
        """Return a hash of the secret that each client's node made for this run, by client; none in a simulation."""
        return dict(self._nodes.identities)

    def begin_round(self) -> None:
        """Look for clients whose node is gone among the nodes that are new."""
        nodes = set(self._grid.get_node_ids())
        wanted = {client for client, node in self._clients.items() if node.id not in nodes} | self._absent
        if not wanted:
            return
        assigned = {node.id for node in self._clients.values()}
        for client, (node, answer) in self._nodes.find_again(wanted, assigned).items():
            if client in self._absent:
                self._absent.remove(client)
                self._new[client] = answer
                self._place(node, answer)
            else:
                logger.log(INFO, "client %d is back as node %d", client, node)
                self._clients[client] = replace(self._clients[client], id=node)

    def newcomers(self) -> dict[int, Payload]:
        """Return the answers of clients that connected since the last call, and were absent before."""
        new, self._new = self._new, {}
        return new

    def _place(self, node: int, answer: Payload) -> None:
        number, metrics = int(answer.config["client"]), answer.metrics
        client = Client(number, int(metrics["train-samples"]), int(metrics["test-samples"]))
        in_turn, mods = (answer.config.get(key) is True for key in ("in-turn", "mods"))
        self._clients[number] = Node(client, node, in_turn, mods)


class FlowerTransport(GridMembers, Transport):
    """Sends messages over Flower's Grid."""

    def __init__(self, grid: Grid, settings: str = "") -> None:
        super().__init__(grid, settings)
        shorten_pauses()  # a `HalfRound` looks so often that it finds replies which are still on their way

    def replies(self, requests: Sequence[Request], timeout: float, fail: Fail) -> Iterator[Sequence[Reply]]:
        """Send Flower's messages; what devices lose is sent again."""
        by_client = {request.client.id: request for request in requests}
        records: OrderedDict[tuple[int, ...], tuple[Payload, ArrayRecord]] = OrderedDict()

        def make(client: int) -> Message:
            request = by_client[client]
            payload = request.make()
            if self._settings:
                payload = replace(payload, config={**payload.config, **self._settings})
            node = self._clients[client]
            number = str(payload.config.get("round", ""))
            if node.in_turn and not node.mods and fits_frame(payload):
                return Message(to_framed_content(payload), node.id, request.kind, group_id=number)
            # The same arrays are one record: serialised once, held once.
            same = tuple(id(array) for array in payload.arrays.values())
            if same not in records:
                records[same] = payload, pack_arrays(payload.arrays)
                if len(records) > KEPT_RECORDS:
                    records.popitem(last=False)
            content = to_content(Payload(payload.config), records[same][1])
            return Message(content, node.id, request.kind, group_id=number)

        half = HalfRound(self._grid, self._clients, make, self.begin_round, fail, self._check_after)
        for client, reply in half.replies(list(by_client), timeout):
            if reply.has_error():
                fail(client, printable(reply.error.reason or f"error code {reply.error.code}"))
                continue
            try:
                payload = from_content(reply.content)
            except LayoutError as error:
                fail(client, printable(str(error)))
            else:
                yield [Reply(client, payload)]
