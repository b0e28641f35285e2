"""The connection to the broker: MQTT v5 by paho, kept up for as long as the process runs.

Nothing is kept for a side that is away: messages go at most once (QoS 0), and a connection has no session. What paho
leaves open is settled here: the pace of publishing, the broker's limit on a message's size, and the reasons for which
there is no connection, as readable text.
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

KEEPALIVE_SECONDS = 15
CONNECT_SECONDS = 10.0
# So many connections in a row that last no longer are no accident of the network.
BRIEF_SECONDS = 10.0
MANY_BRIEF = 3
GOODBYE_SECONDS = 2.0
RETRY_SECONDS = 1
RETRY_SECONDS_MAX = 8
# How often it is looked whether a connection has ended while a frame is written to it.
LOOK_SECONDS = 0.5
# In addition to its payload a packet has a topic, properties and a header; all of ours have less than this.
PACKET_OVERHEAD = 1024
# A retained `online` lives for so long, and is said anew before it ends: whoever is switched off together with the
# broker, which then sends no last will, is not online for ever.
PRESENCE_SECONDS, RENEW_SECONDS = 35, 15


class Link:
    """A connection to the broker that comes back by itself.

    ``on_message`` gets every message, in the network thread: it must not block, and what it raises is logged.
    ``on_lost`` is told when a connection ends. ``presence`` is the topic of the retained presence: ``online`` while
    connected, ``offline`` as the last will. ``max_chunk`` is the longest payload to send; the other side may send
    longer ones. A ``watcher`` ends when another process takes its account. ``stopping`` ends the attempts to connect.
    """

    def __init__(
        self,
        account: Account,
        subscriptions: Sequence[str],
        on_message: Callable[[Message], None],
        on_lost: Callable[[], None] = lambda: None,
        presence: str | None = None,
        max_chunk: int = DEFAULT_CHUNK,
        watcher: bool = False,
        stopping: threading.Event | None = None,
    ) -> None:
        self._account, self._subscriptions = account, subscriptions
        self._on_message, self._on_lost = on_message, on_lost
        self._presence, self._watcher = presence, watcher
        self._max_chunk, self._max_packet = max_chunk, max_chunk + PACKET_OVERHEAD
        self._online = threading.Event()
        self._stopping = stopping or threading.Event()
        self._refused: LinkError | None = None
        self._was_online = self._complained = self._leaving = False
        # Why this link has ended by itself.
        self.lost: LinkError | None = None
        # Another one for each connection.
        self._session = ""
        self._connected_at, self._brief = 0.0, 0
        self._client = self._new_client()

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self, timeout: float | None = None) -> None:
        """Connect, trying again until it works, and go on in a thread."""
        until = None if timeout is None else time.monotonic() + timeout
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        # Not this side's own --max-chunk: the broker silently drops what is larger than the receiver announced.
        properties.MaximumPacketSize = MAX_CHUNK + PACKET_OVERHEAD
        while not self._stopping.is_set():
            try:
                self._client.connect(
                    self._account.host,
                    self._account.port,
                    keepalive=KEEPALIVE_SECONDS,
                    clean_start=True,
                    properties=properties,
                )
                break
            except OSError as error:
                reason = f"broker {self.where} cannot be reached ({_reason(error)})"
                if isinstance(error, ssl.SSLCertVerificationError) or (until and time.monotonic() > until):
                    raise LinkError(reason) from error
                self._complain(f"{reason}; trying again")
                self._stopping.wait(RETRY_SECONDS)
        self._client.loop_start()
        while not (self._online.wait(0.1) or self._refused or self._stopping.is_set()):
            if until is not None and time.monotonic() > until:
                raise LinkError(f"broker {self.where} does not answer")
        if self._refused:
            raise self._refused

    def stop(self) -> None:
        """Publish that this side is offline, and disconnect."""
        self._leaving = True
        if self._presence is not None and self.online:
            offline = self._client.publish(self._presence, _presence("offline", self._session), 0, True)
            if not offline.rc:
                offline.wait_for_publish(GOODBYE_SECONDS)
        self._client.disconnect()
        self._client.loop_stop()
        self._online.clear()

    def renew_presence(self) -> None:
        """Publish once more that this side is online."""
        if self._presence is not None and self.online:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.MessageExpiryInterval = PRESENCE_SECONDS
            self._client.publish(self._presence, _presence("online", self._session), 0, True, properties)

    @property
    def where(self) -> str:
        """The broker's address, for messages."""
        return f"{self._account.host}:{self._account.port}"

    @property
    def online(self) -> bool:
        """Whether there is a connection."""
        return self._online.is_set()

    def wait_online(self, seconds: float) -> bool:
        """Wait for a connection; return whether there is one."""
        return self._online.wait(seconds)

    @property
    def max_payload(self) -> int:
        """Longest payload that the broker accepts and that the user allows."""
        return min(self._max_chunk, self._max_packet - PACKET_OVERHEAD)

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(self, message: Message, retain: bool = False) -> None:
        """Publish something small, without waiting; without a connection it is lost."""
        if self.online:
            self._client.publish(message.topic, message.payload, 0, retain)

    def send(self, messages: Iterable[Message], deadline: float) -> None:
        """Hand frames to the broker one after the other, each when the one before is on its way."""
        session = self._session
        for message in messages:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.CorrelationData = message.id
            handed = self._client.publish(message.topic, message.payload, 0, False, properties)
            while handed.rc or not handed.is_published():
                if handed.rc or session != self._session or not self.online:
                    raise LinkError(f"the connection to broker {self.where} was lost")
                if time.monotonic() > deadline:
                    raise LinkError(f"broker {self.where} does not take messages")
                handed.wait_for_publish(LOOK_SECONDS)

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
            client.will_set(self._presence, _presence("offline", ""), 0, True)
        client.connect_timeout = CONNECT_SECONDS
        client.reconnect_delay_set(RETRY_SECONDS, RETRY_SECONDS_MAX)
        client.on_connect = self._connected
        client.on_connect_fail = self._connect_failed
        client.on_disconnect = self._disconnected
        client.on_subscribe = self._subscribed
        client.on_message = self._arrived
        client.on_socket_open = _set_nodelay
        return client

    def _connected(
        self, client: paho.Client, _data: Any, _flags: paho.ConnectFlags, reason: ReasonCode, properties: Any
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
        self._session = secrets.token_hex(8)
        if self._subscriptions:
            client.subscribe([(topic, _how(topic)) for topic in self._subscriptions])
        self._was_online, self._complained, self._connected_at = True, False, time.monotonic()
        logger.info("connected to broker %s as %s", self.where, self._account.username)
        self._online.set()
        self.renew_presence()

    def _connect_failed(self, _client: paho.Client, _data: Any) -> None:
        error = sys.exc_info()[1]  # paho calls this while it handles the exception
        self._complain(f"broker {self.where} cannot be reached ({_reason(error)}); trying again")

    def _disconnected(
        self, client: paho.Client, _data: Any, _flags: paho.DisconnectFlags, reason: ReasonCode, _properties: Any
    ) -> None:
        self._online.clear()
        if self._leaving:
            return
        self._on_lost()
        if self._was_online:
            logger.warning("lost broker %s: %s", self.where, reason)
        # mosquitto 2.0.11 closes the connection in all of these cases and gives no reason.
        brief = time.monotonic() - self._connected_at < BRIEF_SECONDS
        self._brief = self._brief + 1 if brief else 0
        if self._brief != MANY_BRIEF:
            return
        complaint = f"broker {self.where} closes one connection after the other: "
        if self._watcher:
            complaint += (
                f"somebody else has logged in as {self._account.username}; each watcher needs an account of its "
            )
            self.lost, self._leaving = LinkError(f"{complaint}own (fedpfl broker --watcher NAME)"), True
            client.disconnect()
            self._stopping.set()
        else:
            complaint += (
                f"another process may be logged in as {self._account.username} as well, or the access list forbids"
            )
            logger.error("%s this account something, or it takes no messages of this length (--max-chunk)", complaint)

    def _subscribed(self, _client: paho.Client, _data: Any, _mid: int, reasons: list[ReasonCode], _p: Any) -> None:
        for topic, reason in zip(self._subscriptions, reasons, strict=False):
            if reason.is_failure:
                logger.error("broker %s refuses the subscription to %s: %s", self.where, topic, reason)

    def _arrived(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        message_id = getattr(message.properties, "CorrelationData", None)
        try:
            self._on_message(Message(message.topic, bytes(message.payload), message_id, bool(message.retain)))
        except Exception:  # it would end paho's thread, and with that the connection, but not the process
            logger.exception("a message on %s was dropped", message.topic)

    def _complain(self, complaint: str) -> None:
        """Log once, until there is a connection again, why there is none."""
        if not self._complained:
            logger.warning("%s", complaint)
        self._complained = True


def _how(topic: str) -> SubscribeOptions:
    """Return how to subscribe: a request or response that somebody has retained would come at every connection."""
    carries = topic.startswith(topics.CARRYING)
    return SubscribeOptions(qos=0, retainHandling=2 if carries else 0)  # 2: nothing that is retained


def _presence(state: str, session: str) -> bytes:
    return f'{{"state": "{state}", "session": "{session}"}}'.encode()


def _reason(error: BaseException | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return str(error)


def _set_nodelay(_client: paho.Client, _data: Any, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
