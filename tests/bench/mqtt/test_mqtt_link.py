"""The connection to the broker, with a stand-in for paho's client."""

import time
from types import SimpleNamespace

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.bench.mqtt.account import Account
from fedpfl.bench.mqtt.frames import MAX_CHUNK
from fedpfl.bench.mqtt.link import Link
from fedpfl.bench.mqtt.publisher import Message

SUCCESS = ReasonCode(PacketTypes.PUBACK, identifier=0)


class Client:
    """Gives out the ids it is told to; acknowledges within ``publish`` if ``early``, as paho's thread may."""

    def __init__(self, link, ids, early=False):
        self.link, self.ids, self.early = link, iter(ids), early

    def connect(self, *_, properties, **__):
        self.announced = properties.MaximumPacketSize
        self.link._online.set()

    def loop_start(self):
        pass

    def publish(self, *_):
        mid = next(self.ids)
        if self.early:
            self.acknowledge(mid)
        return SimpleNamespace(mid=mid)

    def acknowledge(self, mid):
        self.link._acknowledged(None, None, mid, SUCCESS, None)


@pytest.fixture
def make():
    def make(ids=(), on_message=print, **options):
        link = Link(Account("127.0.0.1", 1, "nano-1", ""), [], on_message, **options)
        link._client = Client(link, ids)
        return link

    return make


def test_what_a_message_raises_does_not_reach_paho(make, caplog):
    def refuse(arrived):
        raise RuntimeError("can't start new thread")

    message = paho.MQTTMessage(topic=b"fedpfl/request/nano-1")
    make(on_message=refuse)._arrived(None, None, message)
    assert "a message on fedpfl/request/nano-1 was dropped" in caplog.text
    assert "RuntimeError: can't start new thread" in caplog.text


def test_an_early_acknowledgement_counts(make):
    link = make([1])
    link._client.early = True
    link.send([Message("t", b"x", bytes(16), expires=30)], time.monotonic() + HANG_SECONDS)
    assert not link._early
    assert not link._unacknowledged


def test_an_id_that_comes_again_is_not_acknowledged_already(make):
    link = make([7, 8, 7, 8], presence="fedpfl/node/nano-1/presence")
    client = link._client
    link._connected(client, None, SimpleNamespace(session_present=True), SUCCESS, None)
    link.publish(Message("t", b"x"), qos=0)
    client.acknowledge(7)
    client.acknowledge(8)
    deadline = time.monotonic() + HANG_SECONDS
    sending = InThread(link.send, [Message("t", content, bytes(16), expires=30) for content in (b"a", b"b")], deadline)
    wait_until(lambda: set(link._unacknowledged) == {7, 8})
    assert sending.running
    client.acknowledge(7)
    client.acknowledge(8)
    sending.result()


def test_the_other_side_may_send_longer_payloads(make):
    link = make(max_chunk=4096)
    link.start()
    assert link._client.announced > MAX_CHUNK
    assert link.max_payload == 4096
