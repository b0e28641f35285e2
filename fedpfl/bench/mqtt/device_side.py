"""The device's side of the bridge: SuperNodes' requests go to the broker, responses come back.

`http_server.py` is the HTTP server that the SuperNodes connect to. Nothing is sent twice here: the SuperNode asks again
for what is lost, and the run's server for a client's answer (`flower/half_round.py`).
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from . import frames, topics
from .account import LinkError
from .frames import Assembler, FrameError
from .http_bytes import HttpRequest, Response
from .publisher import Message, Publisher
from .server_side import ANSWER_SECONDS, TIMED_OUT, UNAVAILABLE
from .warning_limit import Complaints

logger = logging.getLogger(__name__)

# Bytes of responses that arrive or are handed over.
MAX_BYTES = 128 * 2**20


class DeviceBridge:
    """The device's side, without its HTTP server.

    What ``link`` receives goes to :meth:`arrived`; :meth:`lost` is called when its connection ends. ``account`` is
    given where it is not called like the device.
    """

    def __init__(
        self, name: str, link: Publisher, account: str | None = None, answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self._name, self._account, self._link, self._seconds = name, account or name, link, answer_seconds
        self._assembler = Assembler(MAX_BYTES)
        self._waiting: dict[bytes, Future[Response]] = {}
        self._server = threading.Event()
        self._session: object = None
        self._complain = Complaints(logger)

    def arrived(self, message: Message) -> None:
        """Handle a message of this device's response topic, or the server side's presence."""
        if message.topic == topics.BRIDGE_PRESENCE:
            self._server_presence(message.payload)
            return
        try:
            frame = frames.decode(message.id, message.payload)
            answer = self._waiting.get(frame.id)
            if answer is None:
                return  # it comes too late
            content = self._assembler.add(self._name, frame)
            if content is not None:
                response = Response.decode(content)
                if not answer.cancelled():
                    answer.set_result(response)
        except FrameError as error:
            self._complain(message.topic, "refused a message on %s: %s", message.topic, error)

    def lost(self) -> None:
        """End the waiting requests: they, or their responses, are lost."""
        self._server.clear()
        for answer in list(self._waiting.values()):
            answer.cancel()

    def _server_presence(self, payload: bytes) -> None:
        try:
            presence = json.loads(payload)
            online, session = presence["state"] == "online", presence["session"]
        except (ValueError, RecursionError, TypeError, KeyError):
            self._complain(topics.BRIDGE_PRESENCE, "refused a message on %s", topics.BRIDGE_PRESENCE)
            return
        if not online or session != self._session:  # the server's side is another process, or has another connection
            self.lost()
        self._session = session
        if online:
            self._server.set()

    def exchange(self, request: HttpRequest) -> Response:
        """Return the SuperLink's response to a SuperNode's request, or one of the bridge's own."""
        until = time.monotonic() + self._seconds
        if not self._link.wait_online(self._seconds):
            return Response(UNAVAILABLE)
        if not self._server.wait(max(0.0, until - time.monotonic())):
            self._complain("presence", "the server's side of the bridge is not online")
            return Response(UNAVAILABLE)
        message_id, answer = secrets.token_bytes(frames.ID_BYTES), Future[Response]()
        self._waiting[message_id] = answer
        try:
            payloads = frames.split(request.head, self._link.max_payload, request.body)
            messages = (Message(topics.request(self._name), payload, message_id) for payload in payloads)
            self._link.send(messages, until)
            return answer.result(max(0.0, until - time.monotonic()))
        except LinkError as error:
            self._complain("link", "a request was not sent: %s", error)
            return Response(UNAVAILABLE)
        except CancelledError:
            return Response(UNAVAILABLE)
        except FutureTimeoutError:
            reason = "no answer within %.0f s: the broker's access list must let account %s write %s and read %s, and"
            reason += f" the server's account read {topics.REQUESTS} and write {topics.response('+')}"
            requests, responses = topics.request(self._name), topics.response(self._name)
            self._complain("answer", reason, self._seconds, self._account, requests, responses)
            return Response(TIMED_OUT)
        finally:
            del self._waiting[message_id]
            self._assembler.drop(self._name, message_id)
