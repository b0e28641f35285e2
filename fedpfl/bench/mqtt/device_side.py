"""The device's side of the bridge: SuperNodes' requests go to the broker, responses come back.

`http_server.py` is the HTTP server that the SuperNodes connect to.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from . import frames, topics
from .account import LinkError
from .frames import Assembler, FrameError, Kind
from .http_bytes import Body, HttpRequest, Response, carried
from .limits import Complaints
from .publisher import Message, Publisher
from .server_side import EXPIRY_SECONDS, HOLD_SECONDS, TIMED_OUT

logger = logging.getLogger(__name__)

# A SuperNode waits 30 s for the first byte of an answer.
ANSWER_SECONDS = 28.0
HELD_ANSWER_SECONDS = HOLD_SECONDS + 30.0
# After so long without any message the server's side is asked about a request. After so long without one about this
# request it is asked in any case, which also renews the lease of a held request.
PROBE_SECONDS = 3.0
PROBE_ANYWAY_SECONDS = 15.0
# A probe to a server's side that is online is answered within milliseconds.
SELF_TEST_SECONDS = 5.0
# Between two "102 Processing" to a SuperNode whose request is held; each makes it wait for 30 s more.
INTERIM_SECONDS = 10.0
# How long it takes to notice that a SuperNode has gone.
POLL_SECONDS = 0.5


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

    What ``link`` receives goes to :meth:`arrived`, new connections to :meth:`online`. ``clock`` gives seconds, ``wall``
    Unix time. ``account`` is given where it is not called like the device. ``max_bytes`` bounds responses that arrive
    or are handed over.
    """

    def __init__(
        self,
        name: str,
        link: Publisher,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        account: str | None = None,
        max_bytes: int = frames.MAX_SENDER_BYTES,
    ) -> None:
        self._name, self._account = name, account or name
        self._link = link
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._assembler = Assembler(max_bytes=max_bytes, clock=clock)
        self._waiting: dict[bytes, _Waiting] = {}
        self._session = b""
        self._heard = -1e9
        self._complain = Complaints(logger, clock)

    # -- what arrives, in the network thread -------------------------------------------------------------------------

    def arrived(self, message: Message) -> None:
        """Handle a message of this device's response topic, or the server side's presence."""
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
                if content is None:
                    return
                try:
                    response = Response.decode(content)
                except FrameError:
                    self._assembler.drop(frame.id)
                    raise
        except FrameError as error:
            self._complain(message.topic, "refused a message on %s: %s", message.topic, error)
            return
        with waiting.changed:
            waiting.response = response
            waiting.changed.notify_all()

    def online(self, _session_present: bool) -> None:
        """Ask about all waiting requests: there is a new connection, and messages may be lost."""
        with self._lock:
            everything = list(self._waiting.values())
        for waiting in everything:
            with waiting.changed:
                waiting.probe = True
                waiting.changed.notify_all()

    def _server_presence(self, payload: bytes) -> None:
        # Another session than before: the server's side was restarted, or the broker has lost what was queued.
        if b'"online"' in payload and payload != self._session:
            self._session = payload
            self.online(True)
            threading.Thread(target=self._test_access, daemon=True).start()

    def _test_access(self) -> None:
        """Ask the server's side about a request that never was; log an error if no answer comes.

        A broker grants every subscription, and silently keeps back what the access list forbids to read.
        """
        message_id, waiting = secrets.token_bytes(frames.ID_BYTES), _Waiting(heard=self._clock())
        with self._lock:
            self._waiting[message_id] = waiting
        self._send_control(Kind.PROBE, message_id)
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
        request: HttpRequest,
        client_waits: Callable[[], bool],
        interim: Callable[[], None],
        answer: Callable[[Response], None],
        ready: Callable[[int], None] = lambda _end: None,
    ) -> None:
        """Handle a SuperNode's request.

        ``client_waits`` tells whether the SuperNode still waits, ``interim`` tells it to go on waiting, and ``answer``
        hands it the response. ``ready`` returns when the request's body is there up to the given index. The last two
        raise :class:`OSError` if that fails.
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
            if delivered or waiting.sent:
                self._send_control(Kind.DELIVERED if delivered else Kind.CANCEL, message_id)

    def request(self, path: str, headers: list[tuple[str, str]], body: Body) -> HttpRequest:
        """Return a request to send, with its time."""
        return HttpRequest(path, carried(headers), body, self._wall())

    def _ask(
        self,
        message_id: bytes,
        waiting: _Waiting,
        request: HttpRequest,
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
            ready(len(request.body))  # unread bytes would look like the SuperNode closing the connection
            with waiting.changed:
                waiting.changed.wait_for(lambda: waiting.response or waiting.again or waiting.probe, POLL_SECONDS)
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
                self._send_control(Kind.PROBE, message_id)
            if request.held and now - last_interim >= INTERIM_SECONDS:
                last_interim = now
                interim()

    def _send(self, message_id: bytes, request: HttpRequest, begun: float, ready: Callable[[int], None]) -> bool:
        """Send a request; return whether the broker has it."""
        left = max(1.0, begun + ANSWER_SECONDS - self._clock())
        topic, back = topics.request(self._name), topics.response(self._name)
        payloads = frames.split(Kind.REQUEST, request.head, self._link.max_payload, request.body, ready)
        try:
            messages = (Message(topic, payload, message_id, back, EXPIRY_SECONDS) for payload in payloads)
            self._link.send(messages, time.monotonic() + left)
        except LinkError as error:
            logger.warning("a request was not sent: %s", error)
            return False
        return True

    def _send_control(self, kind: Kind, message_id: bytes) -> None:
        payload = frames.single(kind)
        self._link.publish(Message(topics.request(self._name), payload, message_id, expires=EXPIRY_SECONDS))
