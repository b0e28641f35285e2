"""The connection to the broker: MQTT v5 by paho, kept up for as long as the process runs.

What paho leaves open is settled here: sessions that outlive connections, a limit on what is on its way (publishing
waits instead of piling up), the broker's limit on a message's size, and the reasons for which there is no connection,
as readable text.
"""

from __future__ import annotations

import logging
import secrets
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from . import topics
from .account import Account, LinkError
from .frames import DEFAULT_CHUNK, MAX_CHUNK
from .publisher import Message

logger = logging.getLogger(__name__)

# The broker keeps a session, and what is queued in it, for so long after its client has gone.
SESSION_SECONDS = 3600
KEEPALIVE_SECONDS = 15
CONNECT_SECONDS = 10.0
# So many connections in a row that last no longer are no accident of the network.
BRIEF_SECONDS = 10.0
MANY_BRIEF = 3
GOODBYE_SECONDS = 2.0
RETRY_SECONDS = 1
RETRY_SECONDS_MAX = 8
# In addition to its payload a packet has a topic, properties and a header; all of ours have less than this.
PACKET_OVERHEAD = 1024
# Payloads that were published and are not acknowledged: enough to hide a network's latency, few enough for memory.
WINDOW = 8
_PACKET_TOO_LARGE = 149
# A retained `online` lives for so long, and is said anew before it ends: whoever is switched off together with the
# broker, which then sends no last will, is not online for ever.
PRESENCE_SECONDS, RENEW_SECONDS = 35, 15
# Payloads do not become smaller than this for a broker that refuses larger ones, or seems to.
SMALLEST_PAYLOAD = 65_536


class Link:
    """A connection to the broker that comes back by itself.

    ``on_message`` gets every message, in the network thread: it must not block, and what it raises is logged.
    ``on_online`` is told of every new connection: whether the broker has kept the session, with all that is queued in
    it. ``presence`` is the topic of the retained presence: ``online`` while connected, ``offline`` as the last will.
    ``max_chunk`` is the longest payload to send; the other side may send longer ones. ``persistent``: the broker keeps
    the session while there is no connection. ``stopping`` ends the attempts to connect.
    """

    def __init__(
        self,
        account: Account,
        subscriptions: Sequence[str],
        on_message: Callable[[Message], None],
        on_online: Callable[[bool], None] | None = None,
        presence: str | None = None,
        max_chunk: int = DEFAULT_CHUNK,
        persistent: bool = True,
        stopping: threading.Event | None = None,
    ) -> None:
        self._account = account
        self._subscriptions = subscriptions
        self._on_message = on_message
        self._on_online = on_online
        self._presence = presence
        self._max_chunk = max_chunk
        self._persistent = persistent
        self._max_packet = max_chunk + PACKET_OVERHEAD
        # What the broker was seen to refuse is halved: some have a limit that they do not announce.
        self._max_taken = max_chunk
        self._online = threading.Event()
        self._stopping = stopping or threading.Event()
        self._refused: LinkError | None = None
        self._was_online = self._complained = self._leaving = self._too_large = False
        # Why this link has ended by itself.
        self.lost: LinkError | None = None
        self._session = ""
        self._connected_at, self._brief = 0.0, 0
        self._window = threading.BoundedSemaphore(WINDOW)
        self._lock = threading.Lock()
        self._unacknowledged: dict[int, Callable[[ReasonCode], None]] = {}
        # Acknowledgements that came before _publish knew their id. They are kept only while one is in progress: ids are
        # used again, and paho acknowledges what did not go through _publish as well (QoS 0, presence).
        self._early: dict[int, ReasonCode] = {}
        self._publishing = 0
        self._client = self._new_client()

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, timeout: float | None = None) -> None:
        """Connect, trying again until it works, and go on in a thread."""
        until = None if timeout is None else time.monotonic() + timeout
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = SESSION_SECONDS if self._persistent else 0
        # Not this side's own --max-chunk: the broker silently drops what is larger than the receiver announced.
        properties.MaximumPacketSize = MAX_CHUNK + PACKET_OVERHEAD
        while not self._stopping.is_set():
            try:
                self._client.connect(
                    self._account.host,
                    self._account.port,
                    keepalive=KEEPALIVE_SECONDS,
                    clean_start=not self._persistent,
                    properties=properties,
                )
                break
            except OSError as error:
                words = f"broker {self.where} cannot be reached ({_words(error)})"
                if isinstance(error, ssl.SSLCertVerificationError) or (until and time.monotonic() > until):
                    raise LinkError(words) from error
                self._complain(f"{words}; trying again")
                self._stopping.wait(RETRY_SECONDS)
        self._client.loop_start()
        while not (self._online.wait(0.1) or self._refused or self._stopping.is_set()):
            if until is not None and time.monotonic() > until:
                raise LinkError(f"broker {self.where} does not answer")
        if self._refused:
            raise self._refused

    def stop(self) -> None:
        """Publish that this side is offline, and disconnect. The session stays."""
        self._leaving = True
        if self._presence is not None and self.online:
            gone = threading.Event()
            offline = Message(self._presence, _presence("offline", self._session))
            self._publish(offline, True, lambda _reason: gone.set())
            gone.wait(GOODBYE_SECONDS)
        self._client.disconnect()
        self._client.loop_stop()
        self._online.clear()

    def renew_presence(self) -> None:
        """Publish once more that this side is online."""
        if self._presence is not None and self.online:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.MessageExpiryInterval = PRESENCE_SECONDS
            self._client.publish(self._presence, _presence("online", self._session), 1, True, properties)

    @property
    def where(self) -> str:
        """The broker's address, for messages."""
        return f"{self._account.host}:{self._account.port}"

    @property
    def online(self) -> bool:
        """Whether there is a connection."""
        return self._online.is_set()

    @property
    def max_payload(self) -> int:
        """Longest payload that the broker accepts and that the user allows."""
        return min(self._max_chunk, self._max_packet - PACKET_OVERHEAD, self._max_taken)

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(self, message: Message, retain: bool = False, qos: int = 1) -> None:
        """Publish something small, without waiting; with ``qos=0`` it is lost without a connection."""
        if qos == 0:
            if self.online:
                self._client.publish(message.topic, message.payload, 0, retain)
            return

        def acknowledged(reason: ReasonCode) -> None:
            if reason.is_failure:
                logger.error("broker %s refuses a message to %s: %s", self.where, message.topic, reason)

        self._publish(message, retain, acknowledged)

    def send(self, messages: Iterable[Message], deadline: float) -> None:
        """Publish frames and wait until the broker has them all."""
        sent: list[Future[ReasonCode]] = []
        topic, longest = "", 0
        for message in messages:
            topic, longest = message.topic, max(longest, len(message.payload))
            # What is unacknowledged stays with paho, which sends it again after a break: waiting for room bounds it.
            if not self._window.acquire(timeout=max(0.0, deadline - time.monotonic())):
                raise LinkError(f"broker {self.where} does not take messages")
            future: Future[ReasonCode] = Future()

            def acknowledged(reason: ReasonCode, future: Future[ReasonCode] = future) -> None:
                self._window.release()
                future.set_result(reason)

            self._publish(message, False, acknowledged)
            sent.append(future)
        for future in sent:
            try:
                reason = future.result(max(0.0, deadline - time.monotonic()))
            except FutureTimeoutError:
                raise LinkError(f"broker {self.where} does not acknowledge messages") from None
            if reason.value == _PACKET_TOO_LARGE:
                self._max_taken = min(self._max_taken, max(SMALLEST_PAYLOAD, longest // 2))
            if reason.is_failure:
                raise LinkError(f"broker {self.where} refuses messages of {longest} bytes to {topic}: {reason}")

    def _publish(self, message: Message, retain: bool, acknowledged: Callable[[ReasonCode], None]) -> None:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        if message.id is not None:
            properties.CorrelationData = message.id
        if message.response_topic is not None:
            properties.ResponseTopic = message.response_topic
        if message.expires is not None:
            properties.MessageExpiryInterval = message.expires
        # paho holds its own lock while it calls _acknowledged, and needs it in publish: so none is held here meanwhile.
        with self._lock:
            self._publishing += 1
        mid = self._client.publish(message.topic, message.payload, 1, retain, properties).mid
        with self._lock:
            self._publishing -= 1
            early = self._early.pop(mid, None)
            if not self._publishing:
                self._early.clear()
            if early is None:
                self._unacknowledged[mid] = acknowledged
        if early is not None:
            acknowledged(early)

    # -- paho's callbacks --------------------------------------------------------------------------------------------

    def _new_client(self) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id=self._account.username, protocol=paho.MQTTv5, transport="tcp"
        )
        if self._account.password:
            client.username_pw_set(self._account.username, self._account.password)
        context = self._account.tls()
        if context is not None:
            client.tls_set_context(context)
        if self._presence is not None:
            client.will_set(self._presence, _presence("offline", ""), 1, True)
        client.connect_timeout = CONNECT_SECONDS
        client.reconnect_delay_set(RETRY_SECONDS, RETRY_SECONDS_MAX)
        client.max_inflight_messages_set(WINDOW)
        client.on_connect = self._connected
        client.on_connect_fail = self._connect_failed
        client.on_disconnect = self._disconnected
        client.on_subscribe = self._subscribed
        client.on_publish = self._acknowledged
        client.on_message = self._arrived
        client.on_socket_open = _set_nodelay
        return client

    def _connected(
        self, client: paho.Client, _data: Any, flags: paho.ConnectFlags, reason: ReasonCode, properties: Any
    ) -> None:
        if reason.is_failure:
            refused = LinkError(f"broker {self.where} refuses the account {self._account.username}: {reason}")
            if self._was_online:
                self._complain(f"{refused}; trying again")
            else:
                self._refused = refused
                client.disconnect()
            return
        limit = getattr(properties, "MaximumPacketSize", None)
        self._max_packet = limit if limit is not None else self._max_chunk + PACKET_OVERHEAD
        if self._too_large:
            # Or paho would send it again and again. Only here does it allow this: it goes through them after this call.
            self._too_large, self._brief = False, 0
            reason = ReasonCode(PacketTypes.DISCONNECT, identifier=_PACKET_TOO_LARGE)
            for message in client.drop_out_messages():
                self._acknowledged(client, None, message.mid, reason, None)
        if not flags.session_present or not self._session:
            self._session = secrets.token_hex(8)
        if self._subscriptions:
            client.subscribe([(topic, _how(topic)) for topic in self._subscriptions])
        self._was_online, self._complained, self._connected_at = True, False, time.monotonic()
        logger.info("connected to broker %s as %s", self.where, self._account.username)
        self._online.set()
        self.renew_presence()
        if self._on_online is not None:
            self._on_online(flags.session_present)

    def _connect_failed(self, _client: paho.Client, _data: Any) -> None:
        error = sys.exc_info()[1]  # paho calls this while it handles the exception
        self._complain(f"broker {self.where} cannot be reached ({_words(error)}); trying again")

    def _disconnected(
        self, client: paho.Client, _data: Any, flags: paho.DisconnectFlags, reason: ReasonCode, _properties: Any
    ) -> None:
        self._online.clear()
        if self._leaving:
            return
        if self._was_online:
            logger.warning("lost broker %s: %s", self.where, reason)
        # mosquitto 2.0.11 closes the connection in both cases and gives no reason.
        brief = time.monotonic() - self._connected_at < BRIEF_SECONDS
        self._brief = self._brief + 1 if brief else 0
        if self._brief == MANY_BRIEF and not self._persistent:  # a watcher, which has nothing to lose
            words = f"broker {self.where} closes one connection after the other: somebody else has logged in as"
            words += (
                f" {self._account.username}; each watcher needs an account of its own (fedpfl broker --watcher NAME)"
            )
            self.lost, self._leaving = LinkError(words), True
            client.disconnect()
            self._stopping.set()
            return
        if self._brief == MANY_BRIEF:
            words = "broker %s closes one connection after the other: another process may be logged in as %s as well"
            words += ", or the access list forbids this account something, or it takes no messages of this length"
            logger.error(words, self.where, self._account.username)
        # mosquitto 2.0.11 does not announce its message_size_limit, and hangs up without a reason on longer messages.
        self._too_large |= flags.is_disconnect_packet_from_server and reason.value == _PACKET_TOO_LARGE
        self._too_large |= self._brief == MANY_BRIEF

    def _subscribed(self, _client: paho.Client, _data: Any, _mid: int, reasons: list[ReasonCode], _p: Any) -> None:
        for topic, reason in zip(self._subscriptions, reasons, strict=False):
            if reason.is_failure:
                logger.error("broker %s refuses the subscription to %s: %s", self.where, topic, reason)

    def _acknowledged(self, _client: paho.Client, _data: Any, mid: int, reason: ReasonCode, _properties: Any) -> None:
        with self._lock:
            acknowledged = self._unacknowledged.pop(mid, None)
            if acknowledged is None and self._publishing:
                self._early[mid] = reason
        if acknowledged is not None:
            acknowledged(reason)

    def _arrived(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        p = message.properties
        try:
            self._on_message(
                Message(
                    message.topic,
                    bytes(message.payload),
                    getattr(p, "CorrelationData", None),
                    getattr(p, "ResponseTopic", None),
                    getattr(p, "MessageExpiryInterval", None),
                    bool(message.retain),
                )
            )
        except Exception:  # it would end paho's thread, and with that the connection, but not the process
            logger.exception("a message on %s was dropped", message.topic)

    def _complain(self, words: str) -> None:
        """Log once, until there is a connection again, why there is none."""
        if not self._complained:
            logger.warning("%s", words)
        self._complained = True


def _how(topic: str) -> SubscribeOptions:
    """Return how to subscribe: a request or response that somebody has retained would come at every connection."""
    carries = topic.startswith(topics.CARRYING)
    return SubscribeOptions(qos=1, retainHandling=2 if carries else 0)  # 2: nothing that is retained


def _presence(state: str, session: str) -> bytes:
    return f'{{"state": "{state}", "session": "{session}"}}'.encode()


def _words(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return str(error)


def _set_nodelay(_client: paho.Client, _data: Any, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
