"""The server's side of the bridge: requests from the broker go to the SuperLink, its responses back.

What makes it safe to repeat everything: a request has an id, and while the id is known it is never executed again. A
device that hears nothing asks (a *probe*); the answer is the stored response, or "send it again", or silence while the
request is being worked on. A response is in memory until the device confirms that it was handed over: one that is lost
with a process is asked for again end to end, by the server of the run (``flower/half_round.py``), as over HTTP.

A ``pull-messages`` is *held*: it is put to the SuperLink again and again until there is a message, so that a device has
it at once. There is at most one for each SuperNode; a newer one takes the older one's place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from . import frames, topics
from .account import LinkError
from .frames import Assembler, Frame, FrameError, Kind
from .http_bytes import HttpRequest, Response
from .limits import MAX_SENDERS, Budget, Claim, Complaints
from .publisher import Message, Publisher
from .upstream import Connection, Upstream, UpstreamError

logger = logging.getLogger(__name__)

# Flower accepts signatures that are up to 300 s old (and 5 more); nothing older is executed.
SIGNATURE_SECONDS = 300.0
# A request is put to the SuperLink with its own, ageing signature for as long as this.
HOLD_SECONDS = 240.0
# A held request of which its device has not reminded for so long is dropped (devices do so every 15 s).
LEASE_SECONDS = 60.0
# How long the broker keeps a frame for a side that is away. Longer is of no use: the SuperNode waits 30 s.
EXPIRY_SECONDS = 30
# How long the ids of executed requests are known, and at most their responses.
REMEMBER_SECONDS = 120.0
SEND_SECONDS = 60.0
# Between two polls of the SuperLink for a held request: short while something happens, longer when not.
POLL_SECONDS = 0.05
POLL_SECONDS_IDLE = 0.25
POLL_GROWTH = 1.1
# A look keeps the SuperLink, which is one process, busy for 10 ms. With many SuperNodes each looks less often, so that
# all together take no more of its time than this; one that finds something makes the others look. A round's messages
# come together, so the looks of different SuperNodes are spread over the time: the first of them finds one soon.
POLL_SHARE = 0.2
POLL_SECONDS_CROWDED = 1.0
# Requests of one device, which may have several SuperNodes.
MAX_RUNNING = 64
# While so many responses wait for their turn at the broker, those sent for the first time included, none is sent again;
# a device asks once more.
MAX_REPEATED = 8
MAX_REMEMBERED = 4096
# Bytes of requests of all devices, and bytes of their responses; one device has at most its share of each.
MAX_BYTES = 512 * 2**20
MAX_RESPONSES_BYTES = 2 * frames.MAX_MESSAGE_BYTES
# A response waits so long for room, less than the device's side waits for it.
ROOM_SECONDS = 20.0
UNAVAILABLE, TIMED_OUT = 503, 504


@dataclass
class _Exchange:
    """A request whose id is known."""

    device: str
    id: bytes
    touched: float
    claim: Claim  # for the response
    content: bytes | memoryview = b""
    cancelled: bool = False
    superseded: bool = False
    running: bool = True
    sending: bool = False
    response: Response | None = None
    finished: float = 0.0


@dataclass
class _Hold:
    """The held request of one SuperNode; older ones that have not noticed yet are users as well."""

    holder: _Exchange
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class _Device:
    """The state of one device."""

    name: str
    assembler: Assembler
    exchanges: dict[bytes, _Exchange] = field(default_factory=dict)
    # Neither running nor sending, the longest at rest first; `stored` are those that have a response.
    resting: dict[bytes, _Exchange] = field(default_factory=dict)
    stored: dict[bytes, _Exchange] = field(default_factory=dict)
    running: int = 0
    sending: int = 0
    holds: dict[bytes, _Hold] = field(default_factory=dict)

    def rest(self, exchange: _Exchange, now: float) -> None:
        """Note that an exchange is no longer running or sending."""
        exchange.finished = now
        self.resting[exchange.id] = exchange
        if exchange.response is None:
            exchange.claim.release()
        else:
            self.stored[exchange.id] = exchange

    def wake(self, exchange: _Exchange) -> None:
        """Note that a response is to be sent once more."""
        self.resting.pop(exchange.id, None)
        self.stored.pop(exchange.id, None)
        exchange.sending = True
        self.sending += 1

    def forget_response(self, exchange: _Exchange) -> None:
        """Forget a response; if it is being sent just now, its bytes are free after that."""
        exchange.response = None
        self.stored.pop(exchange.id, None)
        if exchange.id in self.resting:
            exchange.claim.release()


class ServerBridge:
    """The server's side.

    What ``link`` receives on the request topics goes to :meth:`arrived`. ``clock`` gives seconds, ``wall`` Unix time.
    For each device, ``max_running`` requests are worked on or answered at a time, ``max_bytes`` bounds the bytes of
    requests and ``max_responses_bytes`` those of responses. With ``by_node`` each node has its own share of the latter,
    and none is forgotten to make room for another: where the device's side is in the same process, it still holds them.
    """

    def __init__(
        self,
        link: Publisher,
        upstream: Upstream,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        max_running: int = MAX_RUNNING,
        max_bytes: int = frames.MAX_SENDER_BYTES,
        max_responses_bytes: int = MAX_RESPONSES_BYTES,
        by_node: bool = False,
    ) -> None:
        self._link = link
        self._max_running, self._max_bytes = max_running, max_bytes
        self._requests = Budget(MAX_BYTES)
        self._responses = Budget(MAX_BYTES, max_responses_bytes)
        self._by_node = by_node
        self._upstream = upstream
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._devices: dict[str, _Device] = {}
        self._holds = 0
        self._complain = Complaints(logger, clock)
        self._news = threading.Condition()
        self._news_count = 0
        self._next_turn = 0.0
        self._stopping = threading.Event()
        self._threads: set[threading.Thread] = set()

    def stop(self, timeout: float = 5.0) -> None:
        """End held requests, and wait for those that the SuperLink is answering."""
        self._stopping.set()
        self._announce()
        until = time.monotonic() + timeout
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))

    # -- what arrives, in the network thread -------------------------------------------------------------------------

    def arrived(self, message: Message) -> None:
        """Handle a message of a request topic; a wrong one is logged and changes nothing."""
        name = message.topic.rpartition("/")[2]  # the broker's access list lets only this device write to it
        exchange = None
        with self._lock:
            try:
                device = self._device(name)
                exchange = self._take(device, frames.decode(message.id, message.payload), message)
            except FrameError as error:
                self._complain(name, "refused a message of %s: %s", name, error)
        if exchange is None:
            return
        thread = threading.Thread(target=self._work, args=(device, exchange), daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads: the device asks again
            with self._lock:
                self._threads.discard(thread)
                device.running -= 1
                device.assembler.drop(exchange.id)
                del device.exchanges[exchange.id]
            self._complain(name, "dropped a request of %s: %s", name, error)

    def _device(self, name: str) -> _Device:
        device = self._devices.get(name)
        if device is None:
            # A broker with the access list of `fedpfl broker` lets no such message pass.
            if not topics.is_name(name) or len(self._devices) >= MAX_SENDERS:
                raise FrameError("it is no device, or there are too many")
            assembler = Assembler(self._requests, name, self._max_bytes, self._clock)
            device = self._devices[name] = _Device(name, assembler)
        return device

    def _take(self, device: _Device, frame: Frame, message: Message) -> _Exchange | None:
        now = self._clock()
        self._forget(device, now)
        known = device.exchanges.get(frame.id)
        if known is not None:
            known.touched = now
        if frame.kind is Kind.REQUEST:
            return self._take_request(device, frame, message, known, now)
        if frame.kind is Kind.PROBE:
            self._answer_probe(device, frame, known)
        elif frame.kind is Kind.DELIVERED:
            if known is not None:
                device.forget_response(known)
        elif frame.kind is Kind.CANCEL:
            self._cancel(device, frame, known)
        else:
            raise FrameError("only the server's side sends these")
        return None

    def _take_request(
        self, device: _Device, frame: Frame, message: Message, known: _Exchange | None, now: float
    ) -> _Exchange | None:
        if message.response_topic != topics.response(device.name):
            raise FrameError(f"it asks for the response on {message.response_topic!r}")
        if message.expires is None or message.expires > EXPIRY_SECONDS:
            raise FrameError("it does not expire in time")
        if known is not None:
            if frame.index == 0:
                self._answer_again(device, known)
            return None
        content = device.assembler.add(frame)
        if content is None:
            return None
        exchange = _Exchange(device.name, frame.id, now, self._responses.claim(device.name), content)
        device.exchanges[frame.id] = exchange
        if device.running + device.sending < self._max_running:
            device.running += 1
            return exchange
        exchange.running, exchange.content = False, b""
        device.assembler.drop(frame.id)
        device.rest(exchange, now)
        self._answer_again(device, exchange)
        raise FrameError(f"{self._max_running} of its requests are being worked on or answered")

    def _cancel(self, device: _Device, frame: Frame, known: _Exchange | None) -> None:
        if known is None:
            device.assembler.drop(frame.id)
            return
        known.cancelled = True
        device.forget_response(known)
        self._wake_held()

    def _answer_probe(self, device: _Device, frame: Frame, known: _Exchange | None) -> None:
        if known is None:
            # All its frames went before the probe, so what is missing of them is lost.
            device.assembler.drop(frame.id)
            again = frames.single(Kind.AGAIN)
            self._link.publish(Message(topics.response(device.name), again, frame.id, expires=EXPIRY_SECONDS))
        else:
            self._answer_again(device, known)

    def _answer_again(self, device: _Device, exchange: _Exchange) -> None:
        if exchange.running or exchange.sending or device.sending >= MAX_REPEATED:
            return
        # There is none if it was never executed, confirmed, cancelled, or dropped for lack of room.
        response = exchange.response or Response(UNAVAILABLE)
        try:
            threading.Thread(target=self._send, args=(device, exchange, response), daemon=True).start()
        except RuntimeError as error:  # the system has no more threads: the device asks again
            self._complain(device.name, "dropped an answer for %s: %s", device.name, error)
            return
        device.wake(exchange)

    def _forget(self, device: _Device, now: float) -> None:
        while device.resting:
            oldest = next(iter(device.resting.values()))
            if len(device.exchanges) <= MAX_REMEMBERED and now - oldest.finished <= REMEMBER_SECONDS:
                break
            device.forget_response(oldest)
            del device.resting[oldest.id], device.exchanges[oldest.id]

    # -- work, each request in its own thread ------------------------------------------------------------------------

    def _work(self, device: _Device, exchange: _Exchange) -> None:
        response: Response | None = None
        try:
            response = self._handle(device, exchange)
        finally:
            self._finish(device, exchange, response)
            self._threads.discard(threading.current_thread())

    def _handle(self, device: _Device, exchange: _Exchange) -> Response | None:
        content, exchange.content = exchange.content, b""  # it is free when this returns
        try:
            request = HttpRequest.decode(content)
        except FrameError as error:
            self._complain(device.name, "refused a request of %s: %s", device.name, error)
            return Response(UNAVAILABLE)
        if self._by_node:
            exchange.claim = self._responses.claim(request.node)
        age = self._wall() - request.sent
        if age > SIGNATURE_SECONDS:
            words = "refused a request of %s that is %.0f s old by this clock (both clocks must agree)"
            self._complain(device.name, words, device.name, age)
            return Response(TIMED_OUT)
        try:
            if request.held:
                return self._hold(device, exchange, request)
            with self._upstream.connect() as connection:
                return connection.call(request, lambda length: self._make_room(device, exchange, length))
        except UpstreamError as error:
            self._complain(device.name, "no response for %s: %s", device.name, error)
            return Response(UNAVAILABLE)

    def _make_room(self, device: _Device, exchange: _Exchange, length: int) -> bool:
        """Take room for a response, if necessary that of the device's oldest stored ones; return whether there is."""
        while not exchange.claim.take(length):
            with self._lock:
                oldest = None if self._by_node else next(iter(device.stored.values()), None)
                if oldest is not None:
                    device.forget_response(oldest)
            if oldest is None:
                return exchange.claim.take(length, time.monotonic() + ROOM_SECONDS)
        return True

    def _hold(self, device: _Device, exchange: _Exchange, request: HttpRequest) -> Response | None:
        with self._lock:
            hold = device.holds.get(request.key)
            if hold is None:
                hold = device.holds[request.key] = _Hold(exchange)
                self._holds += 1
            hold.users += 1
            before, hold.holder = hold.holder, exchange
        if before is not exchange:
            before.superseded = True
            self._wake_held()
        try:
            with self._upstream.connect() as connection:
                return self._poll(hold, exchange, request, connection)
        finally:
            with self._lock:
                hold.users -= 1
                if hold.users == 0:
                    del device.holds[request.key]
                    self._holds -= 1

    def _poll(self, hold: _Hold, exchange: _Exchange, request: HttpRequest, connection: Connection) -> Response | None:
        """Ask the SuperLink until it has a message, the time is up or the device waits no more."""
        until = self._clock() + HOLD_SECONDS - max(0.0, self._wall() - request.sent)
        pause = POLL_SECONDS
        while True:
            seen = self._news_count
            with hold.lock:  # so that no two take messages out for the same SuperNode
                if exchange.superseded:
                    return Response(UNAVAILABLE)
                if exchange.cancelled or self._stopping.is_set():
                    return None
                began = self._clock()
                answer = self._ask(exchange, request, connection)
                took = self._clock() - began
            if not answer.is_empty or self._clock() > until:
                return answer
            if self._clock() - exchange.touched > LEASE_SECONDS:
                return None
            news = self._wait_for_news(exchange, seen, max(pause, self._take_turn(took)))
            pause = POLL_SECONDS if news else min(pause * POLL_GROWTH, POLL_SECONDS_IDLE)

    def _take_turn(self, took: float) -> float:
        """Return the seconds until a SuperNode's next look: it comes evenly after those of the others."""
        apart = min(took / POLL_SHARE, POLL_SECONDS_CROWDED / self._holds)
        with self._news:
            now = self._clock()
            self._next_turn = min(max(now, self._next_turn) + apart, now + POLL_SECONDS_CROWDED)
            return self._next_turn - now

    def _ask(self, exchange: _Exchange, request: HttpRequest, connection: Connection) -> Response:
        answer = connection.call(request)
        if answer.status == 200 and answer.body:
            self._announce()
        # The SuperLink has handed it out, so it is not refused for lack of room.
        exchange.claim.add(len(answer.body))
        return answer

    def _finish(self, device: _Device, exchange: _Exchange, response: Response | None) -> None:
        with self._lock:
            device.assembler.drop(exchange.id)
            device.running -= 1
            exchange.running = False
            if response is None:
                # Nobody waits, or this side stops: a device that asks nevertheless sends the request again.
                device.exchanges.pop(exchange.id, None)
                exchange.claim.release()
                return
            if exchange.cancelled:
                device.rest(exchange, self._clock())
                return
            exchange.response = response
            device.wake(exchange)
        self._send(device, exchange, response)

    def _send(self, device: _Device, exchange: _Exchange, response: Response) -> None:
        topic = topics.response(device.name)
        payloads = frames.split(Kind.RESPONSE, response.head, self._link.max_payload, response.body)
        try:
            messages = (Message(topic, payload, exchange.id, expires=EXPIRY_SECONDS) for payload in payloads)
            self._link.send(messages, time.monotonic() + SEND_SECONDS)
        except LinkError as error:
            logger.warning("a response for %s was not sent: %s", device.name, error)
        finally:
            with self._lock:
                exchange.sending = False
                device.sending -= 1
                device.rest(exchange, self._clock())

    # -- news: after a message was found, all others look at once ----------------------------------------------------

    def _announce(self) -> None:
        with self._news:
            self._news_count += 1
            self._next_turn = 0.0  # all poll now, whatever turn they had
            self._news.notify_all()

    def _wake_held(self) -> None:
        """Have held requests notice that they are over; the others do not poll because of it."""
        with self._news:
            self._news.notify_all()

    def _wait_for_news(self, exchange: _Exchange, seen: int, seconds: float) -> bool:
        def over() -> bool:
            return exchange.cancelled or exchange.superseded or self._stopping.is_set()

        with self._news:
            return self._news.wait_for(lambda: self._news_count != seen or over(), seconds)
