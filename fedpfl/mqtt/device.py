"""The device's side of the bridge: a small HTTP server for the SuperNodes of this device.

It answers with what the SuperLink answered, with 503 or 504, or it closes the connection: Flower's SuperNode takes
anything else for the SuperLink's word, and some of it for a reason to give up.
"""

from __future__ import annotations

import logging
import secrets
import select
import socket
import ssl
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import frames, topics
from .account import LinkError
from .exchange import Body, Request, Response, carried, is_held, may_pass
from .frames import Assembler, FrameError, Kind
from .publisher import Arrived, Publisher
from .server import EXPIRY_SECONDS, HOLD_SECONDS, TIMED_OUT

logger = logging.getLogger(__name__)

# A SuperNode waits 30 s for the first byte of an answer.
ANSWER_SECONDS = 28.0
HELD_ANSWER_SECONDS = HOLD_SECONDS + 30.0
# After so long without any word the server's side is asked about a request, after so long without a word on this one in
# any case: that also renews the lease of one that is held.
PROBE_SECONDS = 3.0
PROBE_ANYWAY_SECONDS = 15.0
# A probe to a server's side that is online is answered within milliseconds.
SELF_TEST_SECONDS = 5.0
# Between two "102 Processing" to a SuperNode whose request is held; each makes it wait for 30 s more.
INTERIM_SECONDS = 10.0
# How long it takes to notice that a SuperNode has gone.
LOOK_SECONDS = 0.5
# HTTP connections; a SuperNode has up to four.
MAX_CONNECTIONS = 64
# Bytes of bodies of requests that are on their way at a time; more SuperNodes wait for their turn.
MAX_BODY_BYTES = frames.MAX_MESSAGE_BYTES - 2**17  # the head needs room, too
MAX_BODIES_BYTES = 2 * frames.MAX_MESSAGE_BYTES
IDLE_CONNECTION_SECONDS = 120.0
MAX_RECEIPTS = 256


@dataclass
class _Waiting:
    """A request without its response."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    response: Response | None = None
    sent: bool = False
    again: bool = False
    probe: bool = False
    heard: float = 0.0


class DeviceBridge:
    """The device's side, without its HTTP server.

    Parameters
    ----------
    name : str
        Name of the device.
    link : Publisher
        The connection to the broker; what it receives goes to :meth:`arrived`, new connections to :meth:`online`.
    clock, wall : callable
        Seconds, and Unix time.
    account : str, optional
        The account at the broker, if it is not named like the device.
    """

    def __init__(
        self,
        name: str,
        link: Publisher,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        account: str | None = None,
    ) -> None:
        self._name, self._account = name, account or name
        self._link = link
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._assembler = Assembler(clock=clock)
        self._waiting: dict[bytes, _Waiting] = {}
        self._receipts: OrderedDict[bytes, str] = OrderedDict()
        self._session = b""
        self._heard = self._complained = -1e9

    # -- what arrives, in the network thread -------------------------------------------------------------------------

    def arrived(self, message: Arrived) -> None:
        """Take a message of this device's response topic or the presence of the server's side."""
        if message.topic == topics.BRIDGE_PRESENCE:
            self._server_presence(message.payload)
            return
        try:
            frame = frames.decode(message.id, message.payload)
            with self._lock:
                waiting = self._waiting.get(frame.id)
                if waiting is None:
                    return  # an answer that came twice, or too late
                self._heard = waiting.heard = self._clock()
                if frame.kind is Kind.AGAIN:
                    with waiting.changed:
                        waiting.again = True
                        waiting.changed.notify_all()
                    return
                if frame.kind is not Kind.RESPONSE:
                    raise FrameError("only the device's side sends these")
                content = self._assembler.add(frame)
                response = None if content is None else Response.decode(content)
        except FrameError as error:
            if self._clock() - self._complained >= 1.0:
                self._complained = self._clock()
                logger.warning("refused a message on %s: %s", message.topic, error)
            return
        if response is not None:
            with waiting.changed:
                waiting.response = response
                waiting.changed.notify_all()

    def online(self, _session_present: bool) -> None:
        """Ask about everything that waits: there is a new connection, and something may be lost."""
        with self._lock:
            everything = list(self._waiting.values())
        for waiting in everything:
            with waiting.changed:
                waiting.probe = True
                waiting.changed.notify_all()

    def _server_presence(self, payload: bytes) -> None:
        # Another session than before: the server's side was started anew, or the broker has lost what was queued.
        if b'"online"' in payload and payload != self._session:
            self._session = payload
            self.online(True)
            threading.Thread(target=self._test_access, daemon=True).start()

    def _test_access(self) -> None:
        """Ask the server's side about a request that never was, and say so if the answer does not come.

        A broker grants every subscription, and keeps back without a word what the access list forbids to read.
        """
        message_id, waiting = secrets.token_bytes(frames.ID_BYTES), _Waiting(heard=self._clock())
        with self._lock:
            self._waiting[message_id] = waiting
        self._tell(Kind.PROBE, message_id)
        with waiting.changed:
            answered = waiting.changed.wait_for(lambda: waiting.again, SELF_TEST_SECONDS)
        with self._lock:
            del self._waiting[message_id]
        if not answered and self._link.online:
            words = "the server's side is online, but does not answer: the broker's access list must let account %s"
            words += " write %s and read %s, and the server's account read %s and write %s"
            own, back = topics.request(self._name), topics.response(self._name)
            logger.error(words, self._account, own, back, topics.REQUESTS, topics.response("+"))

    # -- requests, each in the thread of its HTTP connection ---------------------------------------------------------

    def exchange(
        self,
        request: Request,
        client_waits: Callable[[], bool],
        interim: Callable[[], None],
        answer: Callable[[Response], None],
        ready: Callable[[int], None] = lambda _end: None,
    ) -> None:
        """Carry out a request.

        Parameters
        ----------
        request : Request
            What the SuperNode asks.
        client_waits : callable
            Says whether it still waits.
        interim : callable
            Tells it to go on waiting.
        answer : callable
            Hands it the response; raises :class:`OSError` if that fails.
        ready : callable
            Returns when the request's body is there up to the index that it gets; raises :class:`OSError` if it never
            will be.
        """
        message_id = secrets.token_bytes(frames.ID_BYTES)
        waiting = _Waiting(heard=self._clock())
        with self._lock:
            self._waiting[message_id] = waiting
        delivered = False
        try:
            if self._ask(message_id, waiting, request, client_waits, interim, ready):
                answer(waiting.response or Response(TIMED_OUT))
                delivered = waiting.response is not None
        finally:
            with self._lock:
                del self._waiting[message_id]
                self._assembler.drop(message_id)
            if delivered and waiting.response is not None:
                self._delivered(message_id, request, waiting.response)
            elif waiting.sent:
                self._tell(Kind.CANCEL, message_id)

    def request(self, path: str, headers: list[tuple[str, str]], body: Body) -> Request:
        """Return a request as it goes out: with its time, and the receipt of the last answer to the same."""
        request = Request(path, carried(headers), body, self._wall())
        if not request.held:  # only those answers have receipts
            return request
        with self._lock:
            return replace(request, delivered=self._receipts.get(request.key, ""))

    def _ask(
        self,
        message_id: bytes,
        waiting: _Waiting,
        request: Request,
        client_waits: Callable[[], bool],
        interim: Callable[[], None],
        ready: Callable[[int], None],
    ) -> bool:
        """Wait for the response, up to the time limit; return whether anybody waits for it still."""
        begun = self._clock()
        until = begun + (HELD_ANSWER_SECONDS if request.held else ANSWER_SECONDS)
        last_interim, to_send = begun, True
        while True:
            if to_send and self._link.online:
                waiting.sent = True
                to_send = not self._send(message_id, request, begun, ready)
                waiting.heard = self._clock()
            ready(len(request.body))  # what is left of it would be taken for the SuperNode's goodbye
            with waiting.changed:
                waiting.changed.wait_for(lambda: waiting.response or waiting.again or waiting.probe, LOOK_SECONDS)
                if waiting.response is not None:
                    return True
                again, probe = waiting.again, waiting.probe
                waiting.again = waiting.probe = False
            now = self._clock()
            if not client_waits():
                return False
            if now >= until:
                return True
            to_send |= again
            # Frames of another response may be what this one waits behind; a held one has nothing to wait behind.
            silent = not request.held and now - max(waiting.heard, self._heard) > PROBE_SECONDS
            due = probe or silent or now - waiting.heard > PROBE_ANYWAY_SECONDS
            if due and not to_send and self._link.online:
                waiting.heard = now
                self._tell(Kind.PROBE, message_id)
            if request.held and now - last_interim >= INTERIM_SECONDS:
                last_interim = now
                interim()

    def _send(self, message_id: bytes, request: Request, begun: float, ready: Callable[[int], None]) -> bool:
        """Send a request; return whether the broker has it."""
        left = max(1.0, begun + ANSWER_SECONDS - self._clock())
        try:
            self._link.send(
                topics.request(self._name),
                frames.split(Kind.REQUEST, request.head, self._link.max_payload, request.body, ready),
                message_id=message_id,
                expires=EXPIRY_SECONDS,
                deadline=time.monotonic() + left,
                response_topic=topics.response(self._name),
            )
        except LinkError as error:
            logger.warning("a request was not sent: %s", error)
            return False
        return True

    def _delivered(self, message_id: bytes, request: Request, response: Response) -> None:
        if response.receipt:
            with self._lock:
                self._receipts[request.key] = response.receipt
                self._receipts.move_to_end(request.key)
                while len(self._receipts) > MAX_RECEIPTS:
                    self._receipts.popitem(last=False)
        self._tell(Kind.DELIVERED, message_id, response.receipt.encode())

    def _tell(self, kind: Kind, message_id: bytes, content: bytes = b"") -> None:
        payload = frames.single(kind, content)
        self._link.publish(topics.request(self._name), payload, message_id=message_id, expires=EXPIRY_SECONDS)


class _Bytes:
    """Room for so many bytes; who needs more than is left waits."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._changed = threading.Condition()

    def take(self, amount: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._left >= amount)
            self._left -= amount

    def give(self, amount: int) -> None:
        with self._changed:
            self._left += amount
            self._changed.notify_all()


class _Reading:
    """Reads a body from its connection, no further than it is needed."""

    def __init__(self, source: Any, body: memoryview) -> None:
        self._source, self._body = source, body
        self._there = 0

    def __call__(self, end: int) -> None:
        """Return when the body is there up to ``end``."""
        if end > self._there:
            if self._source.readinto(self._body[self._there : end]) < end - self._there:
                raise ConnectionResetError("the SuperNode has gone")
            self._there = end


class _Handler(BaseHTTPRequestHandler):
    """One HTTP connection of a SuperNode."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = IDLE_CONNECTION_SECONDS
    server: LocalServer

    def setup(self) -> None:
        if isinstance(self.request, ssl.SSLSocket):
            self.request.settimeout(self.timeout)
            self.request.do_handshake()
        super().setup()

    def do_POST(self) -> None:
        """Carry a request."""
        length = self.headers.get("content-length", "")
        if not may_pass(self.path) or not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.send_error(400)
            return
        bridge, room = self.server.bridge, self.server.room
        room.take(int(length))
        try:
            body = memoryview(bytearray(int(length)))
            ready = _Reading(self.rfile, body)
            if is_held(self.path):
                ready(len(body))  # what is known of such requests goes by their bodies
            request = bridge.request(self.path, self.headers.items(), body)
            bridge.exchange(request, self._client_waits, self._interim, self._answer, ready)
        finally:
            room.give(int(length))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Close the connection instead: the SuperNode would take a status for the SuperLink's."""
        what = f"{self.command or '?'} {self.path if hasattr(self, 'path') else '?'}"
        logger.warning("refused a request that is not one to Flower's Fleet API: %.200r", what)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        """Log for people who look for an error."""
        logger.debug(format, *args)

    def _client_waits(self) -> bool:
        # It has sent its whole request and gets no answer before this one: whatever comes now is its goodbye.
        readable, _, _ = select.select([self.connection], [], [], 0)
        return not readable and not self.server.stopping.is_set()

    def _interim(self) -> None:
        self.wfile.write(b"HTTP/1.1 102 Processing\r\n\r\n")

    def _answer(self, response: Response) -> None:
        if not self._client_waits():
            raise ConnectionResetError("the SuperNode has gone")
        phrase = responses.get(response.status, "")
        lines = [f"HTTP/1.1 {response.status} {phrase}", *(f"{name}: {value}" for name, value in response.headers)]
        head = "\r\n".join([*lines, f"content-length: {len(response.body)}", "", ""])
        self.wfile.write(head.encode("latin-1"))
        self.wfile.write(response.body)


class LocalServer(ThreadingHTTPServer):
    """The HTTP server for this device's SuperNodes.

    Parameters
    ----------
    address : tuple of (str, int)
        Where to listen.
    bridge : DeviceBridge
        Where requests go.
    tls : SSLContext, optional
        Certificate and key; Flower demands TLS wherever SuperNodes have keys.
    max_connections : int
        More wait.
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
    ) -> None:
        self.bridge = bridge
        self.room = _Bytes(MAX_BODIES_BYTES)
        self.stopping = threading.Event()
        self._tls = tls
        self._connections = threading.BoundedSemaphore(max_connections)
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind, without asking the name service who this is."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; the handshake is left to its thread."""
        if not self._connections.acquire(timeout=1.0):
            raise TimeoutError("too many connections")  # the next one waits in the listening socket's queue
        try:
            connection, address = self.socket.accept()
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            return connection, address
        except BaseException:
            self._connections.release()
            raise

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        super().close_request(request)
        self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note that a connection broke; the SuperNode comes back by itself."""
        error = sys.exc_info()[1]
        refused = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
        logger.log(logging.WARNING if refused else logging.DEBUG, "connection with %s broke: %s", client_address, error)

    def stop(self) -> None:
        """End what waits and stop serving."""
        self.stopping.set()
        self.shutdown()
        self.server_close()
