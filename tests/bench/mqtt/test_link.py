"""The connection to the broker, with a stand-in for paho's client."""

import threading
import time
from types import SimpleNamespace

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.bench.mqtt import link as links
from fedpfl.bench.mqtt.account import Account, LinkError
from fedpfl.bench.mqtt.frames import MAX_CHUNK
from fedpfl.bench.mqtt.link import Link
from fedpfl.bench.mqtt.publisher import Message

SUCCESS = ReasonCode(PacketTypes.CONNACK, identifier=0)
ENDED = ReasonCode(PacketTypes.DISCONNECT, identifier=128)


class Handed:
    """A message that paho has; ``out`` when it was written to the connection."""

    def __init__(self, rc):
        self.rc, self.out = rc, threading.Event()

    def is_published(self):
        return self.out.is_set()

    def wait_for_publish(self, seconds):
        self.out.wait(seconds)


class Client:
    """Keeps what is published; writes it at once if ``free``."""

    def __init__(self, link):
        self.link, self.published, self.free, self.rc = link, [], True, 0

    def connect(self, *_, properties, **__):
        self.announced = properties.MaximumPacketSize
        self.link._connected(self, None, None, SUCCESS, SimpleNamespace())

    def loop_start(self):
        pass

    def disconnect(self):
        pass

    def publish(self, *arguments):
        handed = Handed(self.rc)
        self.published.append((arguments, handed))
        if self.free:
            handed.out.set()
        return handed


@pytest.fixture
def make():
    def make(on_message=print, **options):
        link = Link(Account("127.0.0.1", 1, "nano-1", ""), [], on_message, **options)
        link._client = Client(link)
        return link

    return make


def test_what_a_message_raises_does_not_reach_paho(make, caplog):
    def refuse(arrived):
        raise RuntimeError("can't start new thread")

    message = paho.MQTTMessage(topic=b"fedpfl/request/nano-1")
    make(on_message=refuse)._arrived(None, None, message)
    assert "a message on fedpfl/request/nano-1 was dropped" in caplog.text
    assert "RuntimeError: can't start new thread" in caplog.text


def test_the_other_side_may_send_longer_payloads(make):
    link = make(max_chunk=4096)
    link.start()
    assert link._client.announced > MAX_CHUNK
    assert link.max_payload == 4096


def test_a_frame_is_handed_over_when_the_one_before_is_on_its_way(make):
    link = make()
    link.start()
    link._client.free = False
    frames = [Message("t", content, bytes(16)) for content in (b"a", b"b")]
    sending = InThread(link.send, frames, time.monotonic() + HANG_SECONDS)
    for count in (1, 2):
        wait_until(lambda count=count: len(link._client.published) == count)
        assert sending.running
        link._client.published[-1][1].out.set()
    sending.result()
    assert [arguments[1:4] for arguments, _ in link._client.published] == [(b"a", 0, False), (b"b", 0, False)]


@pytest.mark.parametrize("again", [False, True])
def test_a_connection_that_ends_within_a_message_ends_the_sending(make, again):
    lost = []
    link = make(on_lost=lambda: lost.append(True))
    link.start()
    link._client.free = False
    sending = InThread(link.send, [Message("t", b"a", bytes(16))], time.monotonic() + HANG_SECONDS)
    wait_until(lambda: link._client.published)
    link._disconnected(link._client, None, None, ENDED, None)
    if again:
        link._connected(link._client, None, None, SUCCESS, SimpleNamespace())
    with pytest.raises(LinkError, match=r"the connection to broker 127\.0\.0\.1:1 was lost"):
        sending.result()
    assert lost == [True]
    assert link.wait_online(0.0) == again


def test_a_broker_that_takes_nothing_ends_the_sending(make):
    link = make()
    link.start()
    link._client.free = False
    with pytest.raises(LinkError, match="does not take messages"):
        link.send([Message("t", b"a", bytes(16))], time.monotonic())
    link._client.rc = 4
    with pytest.raises(LinkError, match="was lost"):
        link.send([Message("t", b"a", bytes(16))], time.monotonic() + HANG_SECONDS)


def test_small_messages_are_lost_without_a_connection(make):
    link = make()
    link.publish(Message("t", b"a"))
    assert link._client.published == []
    link.start()
    link.publish(Message("t", b"a"), retain=True)
    assert [arguments for arguments, _ in link._client.published] == [("t", b"a", 0, True)]


@pytest.mark.parametrize("watcher", [False, True])
def test_an_account_that_is_taken_again_and_again_is_told_and_ends_a_watcher(make, caplog, watcher):
    stopping = threading.Event()
    link = make(watcher=watcher, stopping=stopping)
    for _ in range(links.MANY_BRIEF):
        link._connected(link._client, None, None, SUCCESS, SimpleNamespace())
        link._disconnected(link._client, None, None, ENDED, None)
    assert stopping.is_set() == watcher
    told = str(link.lost) if watcher else caplog.text
    assert "closes one connection after the other" in told
    assert ("each watcher needs an account of its own" in told) == watcher
