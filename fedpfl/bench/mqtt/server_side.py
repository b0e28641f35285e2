"""The server's side of the bridge: requests from the broker go to the SuperLink, its responses back.

Each request is carried out at most once and its response sent at most once. What is lost on the way is missed by the
SuperNode, which repeats its request as over HTTP, or by the server of the run, which sends its message again
(``flower/half_round.py``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from . import frames, topics
from .account import LinkError
from .frames import Assembler, FrameError
from .http_bytes import Body, HttpRequest, Response
from .publisher import Message, Publisher
from .upstream import Upstream, UpstreamError
from .warning_limit import Complaints

logger = logging.getLogger(__name__)

# Requests that are carried out at a time, of all devices.
MAX_REQUESTS = 16
# Bytes of requests, of all devices.
MAX_BYTES = 256 * 2**20
# A SuperNode waits 30 s for the first byte of an answer: what has waited longer for its turn is not carried out.
ANSWER_SECONDS = 28.0
SEND_SECONDS = 60.0
UNAVAILABLE, TIMED_OUT = 503, 504


class ServerBridge:
    """The server's side; what ``link`` receives on the request topics goes to :meth:`arrived`."""

    def __init__(self, link: Publisher, upstream: Upstream, clock: Callable[[], float] = time.monotonic) -> None:
        self._link, self._upstream, self._clock = link, upstream, clock
        self._assembler = Assembler(MAX_BYTES)
        self._complain = Complaints(logger)
        self._pool = ThreadPoolExecutor(MAX_REQUESTS)

    def stop(self) -> None:
        """Carry out nothing more; wait for what the SuperLink is answering."""
        self._pool.shutdown(cancel_futures=True)

    def arrived(self, message: Message) -> None:
        """Handle a message of a request topic; a wrong one is logged and changes nothing."""
        device = message.topic.rpartition("/")[2]  # the broker's access list lets only this device write to it
        try:
            if not topics.is_name(device):
                raise FrameError("it is no device")
            frame = frames.decode(message.id, message.payload)
            content = self._assembler.add(device, frame)
        except FrameError as error:
            self._complain(device, "refused a message of %s: %s", device, error)
            return
        if content is not None:
            self._pool.submit(self._work, device, frame.id, content, self._clock())

    def _work(self, device: str, message_id: bytes, content: bytearray, arrived: float) -> None:
        try:
            if self._clock() - arrived > ANSWER_SECONDS:
                self._complain(device, "dropped a request of %s: it has waited too long", device)
                return
            head, body = self._answer(device, content)
            payloads = frames.split(head, self._link.max_payload, body)
            messages = (Message(topics.response(device), payload, message_id) for payload in payloads)
            self._link.send(messages, time.monotonic() + SEND_SECONDS)
        except LinkError as error:
            logger.warning("a response for %s was not sent: %s", device, error)
        finally:
            self._assembler.drop(device, message_id)

    def _answer(self, device: str, content: bytearray) -> tuple[bytes, Body]:
        try:
            response = self._upstream.call(HttpRequest.decode(content))
            return response.head, response.body
        except FrameError as error:
            self._complain(device, "refused a request of %s: %s", device, error)
        except UpstreamError as error:
            self._complain(device, "no response for %s: %s", device, error)
        return Response(UNAVAILABLE).head, b""
