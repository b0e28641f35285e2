"""The server's side of the bridge: requests from the broker go to the SuperLink, its responses back.

What makes it safe to repeat everything: a request has an id, and while the id is known it is never carried out again.
A device that hears nothing asks (a *probe*); the answer is the stored response, or "send it again", or silence while
the request is being worked on. A response is stored until the device says that it was handed over.

A ``pull-messages`` is *held*: it is put to the SuperLink again and again until there is a message, so that a device has
it at once. There is at most one for each SuperNode; a newer one takes the older one's place.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from . import frames, topics
from .account import LinkError
from .exchange import Request, Response
from .frames import Assembler, Frame, FrameError, Kind
from .parked import Parked
from .publisher import Arrived, Publisher
from .upstream import Connection, Upstream, UpstreamError

logger = logging.getLogger(__name__)

# Flower accepts signatures that are up to 300 s old (and 5 more); nothing older is carried out.
SIGNATURE_SECONDS = 300.0
# A request is put to the SuperLink with its own, ageing signature for as long as this.
HOLD_SECONDS = 240.0
# A held request of which its device has not reminded for so long is dropped (devices do so every 15 s).
LEASE_SECONDS = 60.0
# How long the broker keeps a frame for a side that is away. Longer is of no use: the SuperNode waits 30 s.
EXPIRY_SECONDS = 30
# Ids of requests that were carried out are known for this long, their responses at most as long.
REMEMBER_SECONDS = 120.0
SEND_SECONDS = 60.0
# Between two looks at the SuperLink for a held request: short while something is going on, longer when not.
LOOK_SECONDS = 0.05
LOOK_SECONDS_IDLE = 0.25
LOOK_GROWTH = 1.1
# A look keeps the SuperLink, which is one process, busy for 10 ms. With many SuperNodes each looks less often, so that
# all together take no more of its time than this; whoever finds something makes the others look. A round's messages
# come together, so the looks of different SuperNodes are spread over the time: the first of them finds one soon.
LOOK_SHARE = 0.2
LOOK_SECONDS_CROWDED = 1.0
# Of one device, which may have several SuperNodes.
MAX_RUNNING = 64
# While so many responses wait for their turn at the broker, those sent for the first time included, none is sent again;
# a device asks once more.
MAX_REPEATED = 8
MAX_REMEMBERED = 4096
MAX_STORED_BYTES = 2 * frames.MAX_MESSAGE_BYTES
UNAVAILABLE, TIMED_OUT = 503, 504


@dataclass
class _Exchange:
    """A request whose id is known."""

    device: str
    id: bytes
    touched: float
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
    """What is known of one device."""

    assembler: Assembler
    exchanges: dict[bytes, _Exchange] = field(default_factory=dict)
    holds: dict[bytes, _Hold] = field(default_factory=dict)
    complained: float = -1e9


class ServerBridge:
    """The server's side.

    Parameters
    ----------
    link : Publisher
        The connection to the broker; what it receives on the request topics goes to :meth:`arrived`.
    upstream : Upstream
        The SuperLink.
    state_dir : Path
        Where answers are kept until they are confirmed.
    clock, wall : callable
        Seconds, and Unix time.
    max_running : int
        Requests of one device that are worked on or answered at a time.
    """

    def __init__(
        self,
        link: Publisher,
        upstream: Upstream,
        state_dir: Path,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        max_running: int = MAX_RUNNING,
    ) -> None:
        self._link = link
        self._max_running = max_running
        self._upstream = upstream
        self._parked = Parked(state_dir / "answers")
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._devices: dict[str, _Device] = {}
        self._news = threading.Condition()
        self._news_count = 0
        self._next_turn = 0.0
        self._stopping = threading.Event()
        self._threads: set[threading.Thread] = set()

    def stop(self, timeout: float = 5.0) -> None:
        """End what is held, and wait for what the SuperLink is just answering."""
        self._stopping.set()
        self._tell()
        until = time.monotonic() + timeout
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))

    # -- what arrives, in the network thread -------------------------------------------------------------------------

    def arrived(self, message: Arrived) -> None:
        """Take a message of a request topic; whatever is wrong with it is logged and changes nothing."""
        name = topics.requesting_device(message.topic)
        with self._lock:
            device = self._devices.setdefault(name, _Device(Assembler(clock=self._clock)))
            try:
                frame = frames.decode(message.id, message.payload)
                ready = self._take(name, device, frame, message)
            except FrameError as error:
                self._complain(device, "refused a message of %s: %s", name, error)
                return
        if ready is not None:
            exchange, content = ready
            thread = threading.Thread(target=self._work, args=(device, exchange, content), daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads: the device asks again
                with self._lock:
                    self._threads.discard(thread)
                    del device.exchanges[exchange.id]
                    self._complain(device, "dropped a request of %s: %s", name, error)

    def _take(self, name: str, device: _Device, frame: Frame, message: Arrived) -> tuple[_Exchange, memoryview] | None:
        now = self._clock()
        self._forget(device, now)
        known = device.exchanges.get(frame.id)
        if known is not None:
            known.touched = now
        if frame.kind is Kind.REQUEST:
            if message.response_topic != topics.response(name):
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
            exchange = device.exchanges[frame.id] = _Exchange(name, frame.id, now)
            if sum(e.running or e.sending for e in device.exchanges.values()) <= self._max_running:
                return exchange, content
            exchange.running, exchange.finished = False, now
            self._answer_again(device, exchange)
            raise FrameError(f"{self._max_running} of its requests are being worked on or answered")
        if frame.kind is Kind.PROBE:
            self._answer_probe(name, device, frame, known)
        elif frame.kind is Kind.DELIVERED:
            self._delivered(name, frame, known)
        elif frame.kind is Kind.CANCEL:
            device.assembler.drop(frame.id)
            if known is not None:
                known.cancelled, known.response = True, None
                self._tell()
        elif frame.kind in (Kind.RESPONSE, Kind.AGAIN):
            raise FrameError("only the server's side sends these")
        return None

    def _answer_probe(self, name: str, device: _Device, frame: Frame, known: _Exchange | None) -> None:
        if known is None:
            # All its frames went before the probe, so what is missing of them is lost.
            device.assembler.drop(frame.id)
            again = frames.single(Kind.AGAIN)
            self._link.publish(topics.response(name), again, message_id=frame.id, expires=EXPIRY_SECONDS)
        else:
            self._answer_again(device, known)

    def _delivered(self, name: str, frame: Frame, known: _Exchange | None) -> None:
        if known is not None:
            known.response = None
        if frame.piece and self._parked.drop(name, bytes(frame.piece).decode("ascii", "replace")):
            self._tell()

    def _answer_again(self, device: _Device, exchange: _Exchange) -> None:
        if exchange.running or exchange.sending:
            return
        if sum(e.sending for e in device.exchanges.values()) >= MAX_REPEATED:
            return
        # There is none if it was never carried out, confirmed, cancelled, or not kept for want of room.
        response = exchange.response or Response(UNAVAILABLE)
        try:
            threading.Thread(target=self._send, args=(exchange, response), daemon=True).start()
        except RuntimeError as error:  # the system has no more threads: the device asks again
            self._complain(device, "dropped an answer for %s: %s", exchange.device, error)
            return
        exchange.sending = True

    def _forget(self, device: _Device, now: float) -> None:
        # In order of arrival: the oldest that still runs ends the search.
        for message_id, old in list(device.exchanges.items()):
            crowded = len(device.exchanges) > MAX_REMEMBERED
            if old.running or old.sending or not (crowded or now - old.finished > REMEMBER_SECONDS):
                if not crowded:
                    break
                continue
            del device.exchanges[message_id]

    # -- work, each request in its own thread ------------------------------------------------------------------------

    def _work(self, device: _Device, exchange: _Exchange, content: memoryview) -> None:
        response: Response | None = None
        try:
            response = self._carry_out(device, exchange, content)
        finally:
            self._finish(device, exchange, response)
            self._threads.discard(threading.current_thread())

    def _carry_out(self, device: _Device, exchange: _Exchange, content: memoryview) -> Response | None:
        try:
            request = Request.decode(content)
        except FrameError as error:
            with self._lock:
                self._complain(device, "refused a request of %s: %s", exchange.device, error)
            return Response(UNAVAILABLE)
        age = self._wall() - request.sent
        if age > SIGNATURE_SECONDS:
            with self._lock:
                words = "refused a request of %s that is %.0f s old by this clock (both clocks must agree)"
                self._complain(device, words, exchange.device, age)
            return Response(TIMED_OUT)
        try:
            if request.held:
                return self._hold(device, exchange, request)
            with self._upstream.connect() as connection:
                return connection.call(request)
        except UpstreamError as error:
            with self._lock:
                self._complain(device, "no response for %s: %s", exchange.device, error)
            return Response(UNAVAILABLE)

    def _hold(self, device: _Device, exchange: _Exchange, request: Request) -> Response | None:
        with self._lock:
            hold = device.holds.setdefault(request.key, _Hold(exchange))
            hold.users += 1
            before, hold.holder = hold.holder, exchange
        if before is not exchange:
            before.superseded = True
            self._tell()
        try:
            with self._upstream.connect() as connection:
                return self._look_until(hold, exchange, request, connection)
        finally:
            with self._lock:
                hold.users -= 1
                if hold.users == 0:
                    del device.holds[request.key]

    def _look_until(
        self, hold: _Hold, exchange: _Exchange, request: Request, connection: Connection
    ) -> Response | None:
        """Ask the SuperLink until it has a message, the time is over or nobody waits."""
        until = self._clock() + HOLD_SECONDS - max(0.0, self._wall() - request.sent)
        pause = LOOK_SECONDS
        while True:
            seen = self._news_count
            with hold.lock:  # so that no two take messages out for the same SuperNode
                if exchange.superseded:
                    return Response(UNAVAILABLE)
                if exchange.cancelled or self._stopping.is_set():
                    return None
                began = self._clock()
                answer = self._look(exchange.device, request, connection)
                took = self._clock() - began
            if not answer.says_nothing or self._clock() > until:
                return answer
            if self._clock() - exchange.touched > LEASE_SECONDS:
                return None
            news = self._wait_for_news(seen, max(pause, self._take_turn(took)))
            pause = LOOK_SECONDS if news else min(pause * LOOK_GROWTH, LOOK_SECONDS_IDLE)

    def _take_turn(self, took: float) -> float:
        """Return the seconds until a SuperNode's next look: it comes evenly after those of the others."""
        with self._lock:
            holds = sum(len(device.holds) for device in self._devices.values())
        apart = min(took / LOOK_SHARE, LOOK_SECONDS_CROWDED / holds)
        with self._news:
            now = self._clock()
            self._next_turn = min(max(now, self._next_turn) + apart, now + LOOK_SECONDS_CROWDED)
            return self._next_turn - now

    def _look(self, device: str, request: Request, connection: Connection) -> Response:
        if request.delivered:
            self._parked.drop(device, request.delivered)
        answer = self._parked.get(device, request.key)
        if answer is None:
            answer = connection.call(request)
            if answer.status == 200 and answer.body:
                answer = self._parked.put(device, request.key, answer)
                self._tell()
        return answer

    def _finish(self, device: _Device, exchange: _Exchange, response: Response | None) -> None:
        with self._lock:
            exchange.running, exchange.finished = False, self._clock()
            if response is None:
                # Nobody waits, or this side stops: a device that asks nevertheless sends the request again.
                device.exchanges.pop(exchange.id, None)
                return
            if exchange.cancelled:
                return
            stored = sum(len(e.response.body) for e in device.exchanges.values() if e.response is not None)
            if stored + len(response.body) <= MAX_STORED_BYTES:
                exchange.response = response
            exchange.sending = True
        self._send(exchange, response)

    def _send(self, exchange: _Exchange, response: Response) -> None:
        try:
            self._link.send(
                topics.response(exchange.device),
                frames.split(Kind.RESPONSE, response.head, self._link.max_payload, response.body),
                message_id=exchange.id,
                expires=EXPIRY_SECONDS,
                deadline=time.monotonic() + SEND_SECONDS,
            )
        except LinkError as error:
            logger.warning("a response for %s was not sent: %s", exchange.device, error)
        finally:
            with self._lock:
                exchange.sending = False

    # -- news: whoever gets a message makes all others look at once --------------------------------------------------

    def _tell(self) -> None:
        with self._news:
            self._news_count += 1
            self._next_turn = 0.0  # all look now, and nobody uses the turn that it has
            self._news.notify_all()

    def _wait_for_news(self, seen: int, seconds: float) -> bool:
        with self._news:
            return self._news.wait_for(lambda: self._news_count != seen or self._stopping.is_set(), seconds)

    def _complain(self, device: _Device, words: str, *details: object) -> None:
        """Log at most a line a second for each device."""
        now = self._clock()
        if now - device.complained >= 1.0:
            device.complained = now
            logger.warning(words, *details)
