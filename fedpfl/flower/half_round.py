"""One half of a round: messages go out, and replies come back in client order.

Devices are not a simulation: a SuperNode that starts again has lost the message it worked on, or comes back as another
node. Such a message is sent again, which is safe because a reply follows from the message and the stored state.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from logging import WARNING, getLogger

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from ..core.errors import printable
from ..core.payload import probe
from ..core.server_view import Client
from ..engine.transport import Fail
from .messages import to_content
from .nodes import Node, Pace

logger = getLogger("flwr")

# Flower's codes for messages and replies that were lost with a node or a process; its enumeration is not public.
MESSAGE_UNAVAILABLE, REPLY_UNAVAILABLE, NODE_UNAVAILABLE, CLIENT_APP_CRASHED = 3, 4, 5, 8
LOST = frozenset({MESSAGE_UNAVAILABLE, REPLY_UNAVAILABLE, NODE_UNAVAILABLE, CLIENT_APP_CRASHED})
MAX_RESENDS = 2
# A pull takes milliseconds. If it takes this long, the SuperLink was away: Flower waits until it is back, perhaps
# without the messages on their way.
AWAY_SECONDS = 5.0


class HalfRound:
    """Sends messages, one a client, and collects the replies.

    ``nodes`` tells where each client is now, and ``find_moved`` changes it for clients that came back as other nodes.
    ``make`` makes the message to a client, once more for one that lost it. ``fail`` notes why there is no reply. After
    ``check_after`` seconds without one, a client is asked whether it still works on the message; at once when the
    SuperLink was away.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Mapping[int, Node],
        make: Callable[[int], Message],
        find_moved: Callable[[], None],
        fail: Fail,
        check_after: float,
    ) -> None:
        self._grid, self._nodes, self._make = grid, nodes, make
        self._find_moved, self._fail, self._check_after = find_moved, fail, check_after
        self._sent_at: dict[int, float] = {}
        self._resends: dict[int, int] = {}
        self._client_of: dict[str, int] = {}
        self._probes: dict[str, int] = {}
        self._probed_at: dict[int, float] = {}
        self._suspects: set[int] = set()
        # When the SuperLink was last back from being away.
        self._back_at = -math.inf
        # Errors of nodes that went away during this half of the round, and until when they may come back.
        self._away: dict[int, tuple[Message, float]] = {}
        self._present: set[int] = set()

    def replies(self, clients: Iterable[int], timeout: float) -> Iterator[tuple[Client, Message]]:
        """Send clients their messages; yield (client, reply) in client order, each as soon as its turn has come."""
        self._present = set(self._grid.get_node_ids())
        order, arrived = sorted(clients), dict[int, Message]()
        self._send([self._make(client) for client in clients])
        begun, pace = time.monotonic(), Pace()
        while self._sent_at and time.monotonic() - begun < timeout:
            looked_at = time.monotonic()
            new = self._pull()
            if time.monotonic() - looked_at > AWAY_SECONDS:
                self._back_at = time.monotonic()
            arrived.update(new)
            while order and order[0] not in self._sent_at:
                client = order.pop(0)
                if client in arrived:
                    yield self._nodes[client].client, arrived.pop(client)
            if self._sent_at:
                self._probe_the_silent()
                pace.pause(bool(new))
        # The missing ones will not come: continue with those that are here, still in order.
        for client in order:
            if client in arrived:
                yield self._nodes[client].client, arrived.pop(client)
            elif client in self._sent_at:
                self._fail(self._nodes[client].client, f"no reply within {round(timeout, 1):g} s")
                self._close(client)

    def _send(self, messages: list[Message]) -> None:
        by_node = {node.id: node.client for node in self._nodes.values()}
        for message, message_id in zip(messages, self._grid.push_messages(messages), strict=True):
            # A reply that the SuperLink makes for a dead node carries the SuperLink's own node id: go by the message.
            client = by_node[message.metadata.dst_node_id]
            if message_id:
                self._client_of[message_id] = client.id
                self._sent_at[client.id] = time.monotonic()
            else:
                self._fail(client, "its message could not be sent")
                self._close(client.id)

    def _pull(self) -> dict[int, Message]:
        """Return the replies that are new, by client."""
        suspects, self._suspects = self._suspects, set()
        replies: dict[int, Message] = {}
        for reply in self._grid.pull_messages({*self._client_of, *self._probes}):
            answered = reply.metadata.reply_to_message_id
            if answered in self._probes:
                client = self._probes.pop(answered)
                if not reply.has_error() and client in self._sent_at:
                    self._suspects.add(client)
                continue
            client = self._client_of.pop(answered, -1)
            if client not in self._sent_at:
                continue  # the reply to a message that was sent again
            if reply.has_error() and reply.error.code in LOST:
                if self._send_again(client, printable(str(reply.error.reason))):
                    continue
                if self._may_come_back(client):
                    self._away[client] = reply, time.monotonic() + self._check_after
                    continue
            replies[client] = reply
            self._close(client)
        for client, (reply, until) in list(self._away.items()):
            if client not in self._sent_at or self._send_again(client, "its node was away"):
                del self._away[client]
            elif time.monotonic() > until:
                replies[client] = reply
                self._close(client)
        # It went on to the next message, and the reply was not there even after that.
        for client in suspects & self._sent_at.keys():
            self._send_again(client, "it works on nothing")
        return replies

    def _send_again(self, client: int, reason: str) -> bool:
        self._find_moved()
        online = self._nodes[client].id in set(self._grid.get_node_ids())
        if not online or self._resends.get(client, 0) == MAX_RESENDS:
            return False
        self._resends[client] = self._resends.get(client, 0) + 1
        logger.log(WARNING, "client %d lost its message (%s); it is sent again", client, reason)
        self._send([self._make(client)])
        return client in self._sent_at

    def _may_come_back(self, client: int) -> bool:
        """Return whether its node went away in this half of the round; one that was away before is not waited for."""
        node = self._nodes[client].id
        return node in self._present and node not in set(self._grid.get_node_ids())

    def _probe_the_silent(self) -> None:
        """Ask those that have been silent for long for an answer to something else.

        A SuperNode works on one message after the other: once it answers the later one, the earlier one is lost. Each
        question starts a process on the device, and so there is none whose answer would change nothing.
        """
        asked = set(self._probes.values())
        now = time.monotonic()
        before = max(now - self._check_after, self._back_at)
        silent = [
            self._nodes[client]
            for client, sent_at in self._sent_at.items()
            if max(sent_at, self._probed_at.get(client, sent_at)) < before
            and self._nodes[client].in_turn
            and client not in asked
            and self._resends.get(client, 0) < MAX_RESENDS
        ]
        messages = [Message(to_content(probe()), node.id, MessageType.QUERY) for node in silent]
        for node, message_id in zip(silent, self._grid.push_messages(messages) if messages else (), strict=True):
            self._probed_at[node.client.id] = now
            if message_id:
                self._probes[message_id] = node.client.id

    def _close(self, client: int) -> None:
        self._sent_at.pop(client, None)
        self._away.pop(client, None)
        self._client_of = {message: owner for message, owner in self._client_of.items() if owner != client}
        self._probes = {message: owner for message, owner in self._probes.items() if owner != client}
