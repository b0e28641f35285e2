"""The HTTP server for SuperNodes, on a device and before a SuperLink.

It answers with what the SuperLink answered, with 503 or 504, or it closes the connection: Flower's SuperNode takes
anything else for the SuperLink's answer, and some of it for a reason to give up.

Nobody who connects is trusted. A request has a deadline as a whole, its body takes memory as it arrives, and places and
bytes are shared: an account, which is an address with a node's public key, gets at most as much as is still free. It is
*known* once the SuperLink has answered one of its requests with success. Unknown ones share half of the places and one
account's bytes, send short bodies, and are the first to lose their place.
"""

from __future__ import annotations

import io
import logging
import math
import mmap
import select
import socket
import ssl
import sys
import threading
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ...flower_private import PUBLIC_KEY_HEADER
from .device_side import DeviceBridge
from .frames import MAX_MESSAGE_BYTES
from .http_bytes import MAX_HEAD_BYTES, Response, is_held, max_body, may_pass
from .limits import Budget, Claim, Complaints

logger = logging.getLogger(__name__)

# A SuperNode has up to four connections.
MAX_CONNECTIONS = 128
# Bytes of bodies at a time. One body may exceed this, so that twice as much is the limit.
MAX_BODIES_BYTES = MAX_MESSAGE_BYTES
# A body's first bytes do not count: the number of connections bounds them.
STEP_BYTES = 65_536
# A piece of an array has 5 MiB: a SuperNode may be sending one when this process starts and knows nobody.
MAX_UNKNOWN_BODY_BYTES = 6 * 2**20
MAX_KNOWN = 4096
HANDSHAKE_SECONDS = 10.0
IDLE_CONNECTION_SECONDS = 120.0
# A request must have arrived, and its answer must have left, within so long.
REQUEST_SECONDS = 120.0
# The body that may exceed the limit must have arrived within so long.
OVERDRAFT_SECONDS = 10.0
_WRITE_BYTES = 16_384


@dataclass(eq=False)
class _Peer:
    """A connection and what is known of its other end."""

    connection: socket.socket
    address: str
    known: bool = False
    idle: bool = True


class _Stream(io.RawIOBase):
    """A connection that is read and written until a deadline.

    ``until`` is in seconds of ``time.monotonic``; ``head_bytes`` may still be read, without limit after a request's
    head.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.head_bytes = math.inf
        self.allow(HANDSHAKE_SECONDS)

    def allow(self, seconds: float) -> None:
        """Set the deadline."""
        self.until = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._wait()
        count = self._connection.recv_into(buffer)
        self.head_bytes -= count
        if self.head_bytes < 0:
            raise ConnectionAbortedError(f"the head of its request is longer than {MAX_HEAD_BYTES} bytes")
        return count

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            for begin in range(0, len(view), _WRITE_BYTES):  # a TLS connection starts its time limit again for each
                self._wait()
                self._connection.sendall(view[begin : begin + _WRITE_BYTES])
            return len(view)

    def _wait(self) -> None:
        seconds = self.until - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("it takes too long")
        self._connection.settimeout(seconds)


class _Body:
    """Reads a body from its connection, no further than it is needed and there is room for."""

    def __init__(self, source: Any, stream: _Stream, length: int, claim: Claim) -> None:
        self._source, self._stream, self._claim = source, stream, claim
        self._there, self._room = 0, STEP_BYTES
        if length <= STEP_BYTES:
            self.content = memoryview(bytearray(length))
        else:
            # The system gives a page of it when that is written to.
            pages = mmap.mmap(-1, length)
            with suppress(OSError):  # a kernel without huge pages
                pages.madvise(mmap.MADV_NOHUGEPAGE)
            self.content = memoryview(pages)

    def __call__(self, end: int) -> None:
        """Return when the body is there up to ``end``."""
        while self._there < end:
            if self._there == self._room:
                self._make_room()
            part = self.content[self._there : min(end, self._room)]
            if self._source.readinto(part) < len(part):
                raise ConnectionResetError("the SuperNode has gone")
            self._there += len(part)

    def _make_room(self) -> None:
        before = self._claim.favoured
        if not self._claim.take(STEP_BYTES, self._stream.until):
            raise TimeoutError("there was no room for its body")
        if self._claim.favoured and not before:
            self._stream.until = min(self._stream.until, time.monotonic() + OVERDRAFT_SECONDS)
        self._room += STEP_BYTES


class _Handler(BaseHTTPRequestHandler):
    """One HTTP connection of a SuperNode."""

    protocol_version = "HTTP/1.1"
    server: NodeServer

    def setup(self) -> None:
        self.connection = self.request
        self.peer = self.server.peer(self.connection)
        self.connection.settimeout(HANDSHAKE_SECONDS)
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.do_handshake()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        self.stream = _Stream(self.connection)
        self.rfile = self.reader = io.BufferedReader(self.stream)
        self.wfile = self.stream  # type: ignore[assignment] # each write leaves at once

    def handle_one_request(self) -> None:
        """Wait for a request and carry it."""
        self.stream.allow(IDLE_CONNECTION_SECONDS if self.peer.known else HANDSHAKE_SECONDS)
        self.stream.head_bytes = MAX_HEAD_BYTES
        self.server.note_idle(self.peer)
        with suppress(TimeoutError):
            if self.reader.peek(1):
                self.stream.allow(REQUEST_SECONDS)
                super().handle_one_request()
                return
        self.close_connection = True

    def do_POST(self) -> None:
        """Carry a request."""
        self.stream.head_bytes = math.inf
        text = self.headers.get("content-length", "")
        length = int(text) if text.isdecimal() and len(text) <= 10 else -1
        if not may_pass(self.path) or not 0 <= length <= max_body(self.path):
            self.send_error(400)
            return
        self.account = f"{self.peer.address} {self.headers.get(PUBLIC_KEY_HEADER, '')[:1024]}"
        if not self.server.identify(self.peer, self.account) and length > MAX_UNKNOWN_BODY_BYTES:
            self._refuse(f"a body of {length} bytes from a node that the SuperLink has not accepted yet")
            return
        place = self.server.places.claim(self.account)
        room = self.server.room.claim(self.account if self.peer.known else "")
        try:
            if place.take(1):
                self.peer.idle = False
                self._carry(_Body(self.rfile, self.stream, length, room))
            else:
                self._refuse("too many of its requests are being answered")
        finally:
            place.release()
            room.release()

    def _carry(self, body: _Body) -> None:
        if is_held(self.path):
            body(len(body.content))  # what is known of such requests goes by their bodies
        request = self.server.bridge.request(self.path, self.headers.items(), body.content)
        self.server.bridge.exchange(request, self._client_waits, self._interim, self._answer, body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Close the connection instead: the SuperNode would take a status for the SuperLink's."""
        what = f"{self.command or '?'} {self.path if hasattr(self, 'path') else '?'}"
        self._refuse(f"it is not one to Flower's Fleet API: {what!r}")

    def log_error(self, format: str, *args: Any) -> None:
        """Log that a request did not arrive in time."""
        self._refuse(format % args)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing else."""

    def _refuse(self, why: str) -> None:
        self.server.complain(self.peer.address, "refused a request of %s: %s", self.peer.address, why)
        self.close_connection = True

    def _client_waits(self) -> bool:
        # It has sent its whole request and gets no answer before this one: whatever comes now means that it closes.
        looked = select.poll()
        looked.register(self.connection, select.POLLIN)
        return not looked.poll(0) and not self.server.stopping.is_set()

    def _interim(self) -> None:
        self.stream.allow(REQUEST_SECONDS)
        self.wfile.write(b"HTTP/1.1 102 Processing\r\n\r\n")

    def _answer(self, response: Response) -> None:
        if not self._client_waits():
            raise ConnectionResetError("the SuperNode has gone")
        self.stream.allow(REQUEST_SECONDS)
        phrase = responses.get(response.status, "")
        lines = [f"HTTP/1.1 {response.status} {phrase}", *(f"{name}: {value}" for name, value in response.headers)]
        head = "\r\n".join([*lines, f"content-length: {len(response.body)}", "", ""])
        self.wfile.write(head.encode("latin-1"))
        self.wfile.write(response.body)
        if 200 <= response.status < 300:
            self.server.accept(self.peer, self.account)


class NodeServer(ThreadingHTTPServer):
    """The HTTP server for SuperNodes.

    Flower demands ``tls`` wherever SuperNodes have keys. A connection beyond ``max_connections`` takes the place of an
    idle one. ``max_bytes`` bounds bodies that wait for their answers; twice as many with the one that may exceed it.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self,
        address: tuple[str, int],
        bridge: DeviceBridge,
        tls: ssl.SSLContext | None = None,
        max_connections: int = MAX_CONNECTIONS,
        max_bytes: int = MAX_BODIES_BYTES,
    ) -> None:
        self.bridge = bridge
        self.room = Budget(max_bytes, overdraft=True)
        self.places = Budget(max_connections)
        self.complain = Complaints(logger)
        self.stopping = threading.Event()
        self._tls = tls
        self._max_connections = max_connections
        self._lock = threading.Lock()
        # In the order in which they became idle, or came.
        self._peers: OrderedDict[socket.socket, _Peer] = OrderedDict()
        self._known: OrderedDict[str, None] = OrderedDict()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind, without asking the name service who this is."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; the handshake is left to its thread."""
        connection, address = self.socket.accept()
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Admit a connection, if necessary in the place of another one; return whether it was admitted."""
        peer = _Peer(request, str(client_address[0]))
        with self._lock:
            closed = None if self._has_place() else self._close_one()
            admitted = closed is not None or self._has_place()
            if admitted:
                self._peers[request] = peer
        if closed is not None:
            self.complain(closed.address, "closed a connection of %s: there are too many", closed.address)
        if not admitted:
            self.complain(peer.address, "refused a connection of %s: all are in use", peer.address)
        return admitted

    def _has_place(self) -> bool:
        unknown = sum(not peer.known for peer in self._peers.values())
        return len(self._peers) < self._max_connections and unknown < self._max_connections // 2

    def _close_one(self) -> _Peer | None:
        """Close a connection: of unknown ones the oldest of the address that has most, or else the longest idle."""
        peers = [peer for peer in self._peers.values() if not peer.known]
        peers = peers or [peer for peer in self._peers.values() if peer.idle]
        if not peers:
            return None
        crowd = Counter(peer.address for peer in peers)
        peer = max(peers, key=lambda peer: crowd[peer.address])
        del self._peers[peer.connection]
        with suppress(OSError):  # it has gone
            # Its thread sees the end; a TLS socket's own method would take the session from under it.
            socket.socket.shutdown(peer.connection, socket.SHUT_RDWR)
        return peer

    def peer(self, connection: socket.socket) -> _Peer:
        """Return what is known of a connection."""
        with self._lock:
            peer = self._peers.get(connection)
        if peer is None:
            raise ConnectionAbortedError("another connection has taken its place")
        return peer

    def note_idle(self, peer: _Peer) -> None:
        """Note that a connection waits for its next request."""
        with self._lock:
            peer.idle = True
            if peer.connection in self._peers:
                self._peers.move_to_end(peer.connection)

    def identify(self, peer: _Peer, account: str) -> bool:
        """Note the account of a connection's request; return whether the account is known."""
        with self._lock:
            peer.known = account in self._known
            return peer.known

    def accept(self, peer: _Peer, account: str) -> None:
        """Note that the SuperLink has accepted an account's request."""
        with self._lock:
            peer.known = True
            self._known[account] = None
            self._known.move_to_end(account)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        super().close_request(request)
        with self._lock:
            self._peers.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note that a connection broke; the SuperNode comes back by itself."""
        error = sys.exc_info()[1]
        if isinstance(error, (ssl.SSLError, ConnectionAbortedError)) and not isinstance(error, ssl.SSLEOFError):
            self.complain(str(client_address[0]), "a connection with %s broke: %s", client_address[0], error)
        else:
            logger.debug("a connection with %s broke: %s", client_address, error)

    def stop(self) -> None:
        """Stop serving; requests that wait are ended."""
        self.stopping.set()
        self.shutdown()
        self.server_close()
