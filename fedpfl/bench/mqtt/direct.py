"""Both sides of the bridge in one process, without a broker: for devices that reach the server over HTTP.

A SuperNode looks for messages every 3 s, and a small round waits for that twice. This process stands between SuperNodes
and SuperLink, passes on what SuperNodes say and nothing else, and holds a ``pull-messages`` until there is a message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from . import frames
from .device_side import DeviceBridge
from .publisher import Message
from .server_side import ServerBridge
from .upstream import Upstream

NAME = "direct"
# A SuperNode has up to four connections: one with a held request, the others with up to four requests at a time.
MAX_CONNECTIONS = 256
MAX_RUNNING = 256
# Bytes of bodies that the HTTP server takes without the one that may exceed it; all of them fit between the two sides.
MAX_BODIES_BYTES = 128 * 2**20
MAX_BYTES = 192 * 2**20


class DirectLink:
    """A link within the process: what is published arrives at once, in the sender's thread."""

    online = True
    max_payload = frames.MAX_CHUNK

    def __init__(self, deliver: Callable[[Message], None]) -> None:
        self._deliver = deliver

    def publish(self, message: Message, retain: bool = False, qos: int = 1) -> None:
        """Deliver a message."""
        self._deliver(message)

    def send(self, messages: Iterable[Message], deadline: float) -> None:
        """Deliver frames, each as soon as it is there."""
        for message in messages:
            self._deliver(message)


def direct(upstream: Upstream) -> tuple[DeviceBridge, ServerBridge]:
    """Return both sides, connected."""
    server = ServerBridge(
        DirectLink(lambda message: device.arrived(message)), upstream,
        max_running=MAX_RUNNING, max_bytes=MAX_BYTES, max_responses_bytes=MAX_BYTES, by_node=True,
    )  # fmt: skip
    device = DeviceBridge(NAME, DirectLink(server.arrived), max_bytes=MAX_BYTES)
    return device, server
