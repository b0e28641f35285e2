"""The two sides without a broker: at most once, and what a link loses is answered by the bridge itself."""

import itertools
import random
import threading

import pytest
from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.bench.mqtt import frames, server_side, topics
from fedpfl.bench.mqtt.account import LinkError
from fedpfl.bench.mqtt.device_side import DeviceBridge
from fedpfl.bench.mqtt.http_bytes import HttpRequest, Response, carried
from fedpfl.bench.mqtt.publisher import Message
from fedpfl.bench.mqtt.server_side import ServerBridge
from fedpfl.bench.mqtt.upstream import UpstreamError

PUSH, NAME = "/v1/fleet/push-object", "nano-1"
ONLINE = b'{"state": "online", "session": "%s"}'


class FakeLink:
    """Delivers at once what ``loses`` lets pass."""

    max_payload = 2000

    def __init__(self, deliver, loses=lambda: False):
        self.deliver, self.loses, self.online, self.broken = deliver, loses, threading.Event(), False
        self.online.set()

    def wait_online(self, seconds):
        return self.online.wait(seconds)

    def send(self, messages, deadline):
        for message in messages:
            if self.broken:
                raise LinkError("the connection was lost")
            if not self.loses():
                self.deliver(message)


class FakeSuperLink:
    """Counts what it is asked to do; ``goes_on`` holds it up."""

    def __init__(self):
        self.done, self.down, self.goes_on = [], False, threading.Event()
        self.goes_on.set()

    def call(self, request):
        if self.down:
            raise UpstreamError("refused")
        self.done.append(bytes(request.body))
        self.goes_on.wait(HANG_SECONDS)
        return Response(200, (("flwr-x", "y"),), bytes(request.body)[::-1])


class Bridge:
    """Both sides; an answer is waited for as long as ``seconds``."""

    def __init__(self, seconds=HANG_SECONDS, loses=lambda: False, clock=None):
        self.superlink = FakeSuperLink()
        back = FakeLink(lambda message: self.device.arrived(message), loses)
        self.server = ServerBridge(back, self.superlink, *([clock] if clock else []))
        self.link = FakeLink(self.server.arrived, loses)
        self.device = DeviceBridge(NAME, self.link, answer_seconds=seconds)
        self.tell(ONLINE % b"1")

    def tell(self, presence):
        self.device.arrived(Message(topics.BRIDGE_PRESENCE, presence))

    def ask(self, body, path=PUSH):
        return self.device.exchange(HttpRequest(path, carried([("flwr-a", "b")]), body))

    def held(self):
        """Return the bytes that both sides hold."""
        return self.server._assembler.held + self.device._assembler.held


@pytest.fixture
def make():
    made = []

    def make(**options):
        made.append(Bridge(**options))
        return made[-1]

    yield make
    for bridge in made:
        bridge.superlink.goes_on.set()
        bridge.server.stop()


def test_a_request_and_its_response_in_many_frames(make):
    bridge, body = make(), random.Random(1).randbytes(50_000)
    assert bridge.ask(body) == Response(200, (("flwr-x", "y"),), body[::-1])
    wait_until(lambda: bridge.held() == 0)


def test_what_is_lost_gives_504_and_is_carried_out_at_most_once(make):
    """As a SuperNode, which repeats a request until there is an answer that is none of the bridge's own."""
    rng = random.Random(3)
    bridge = make(seconds=0.05, loses=lambda: rng.random() < 0.1)
    asked = 0
    for number in range(20):
        body = b"%d " % number * 1500
        for _ in itertools.count():
            asked += 1
            response = bridge.ask(body)
            if response.status == 200:
                assert response.body == body[::-1]
                break
            assert response.status == 504
    assert 20 <= len(bridge.superlink.done) <= asked
    assert asked > 30
    assert sorted(set(bridge.superlink.done)) == sorted({b"%d " % number * 1500 for number in range(20)})


def test_a_response_that_cannot_be_carried_is_named_and_answered_with_503(make, caplog):
    bridge = make()
    bridge.superlink.call = lambda request: Response(200, tuple((f"x-{n}", "y" * 16_000) for n in range(9)), b"")
    assert bridge.ask(b"x") == Response(503, (), b"")
    assert "of nano-1: headers of 144" in caplog.text
    wait_until(lambda: bridge.held() == 0)


@pytest.mark.parametrize("lose", [
    lambda bridge: bridge.device.lost(),
    lambda bridge: bridge.tell(ONLINE % b"2"),
    lambda bridge: bridge.tell(b'{"state": "offline", "session": ""}'),
], ids=["the broker", "another server's side", "no server's side"])  # fmt: skip
def test_requests_end_at_once_with_the_connection_that_carries_them(make, lose):
    bridge = make()
    bridge.superlink.goes_on.clear()
    asking = InThread(bridge.ask, b"x")
    wait_until(lambda: bridge.superlink.done)
    lose(bridge)
    assert asking.result().status == 503
    bridge.superlink.goes_on.set()  # its response comes too late, and disturbs nobody
    bridge.tell(ONLINE % b"3")
    assert bridge.ask(b"ab").body == b"ba"


def test_the_same_presence_said_again_ends_nothing(make):
    bridge = make()
    bridge.superlink.goes_on.clear()
    asking = InThread(bridge.ask, b"ab")
    wait_until(lambda: bridge.superlink.done)
    bridge.tell(ONLINE % b"1")
    bridge.superlink.goes_on.set()
    assert asking.result().body == b"ba"


def test_requests_wait_for_the_broker_and_for_the_server_s_side(make):
    bridge = make()
    bridge.link.online.clear()
    bridge.device.lost()
    asking = InThread(bridge.ask, b"ab")
    bridge.link.online.set()
    assert asking.running
    bridge.tell(ONLINE % b"1")
    assert asking.result().body == b"ba"


@pytest.mark.parametrize("missing", ["broker", "server"])
def test_what_waits_too_long_for_either_gives_503(make, missing):
    bridge = make(seconds=0.05)
    if missing == "broker":
        bridge.link.online.clear()
    else:
        bridge.device.lost()
    assert bridge.ask(b"x").status == 503
    assert bridge.superlink.done == []


def test_a_link_that_breaks_within_a_request_gives_503(make, caplog):
    bridge = make()
    bridge.link.broken = True
    assert bridge.ask(b"x").status == 503
    assert "a request was not sent: the connection was lost" in caplog.text


def test_an_unreachable_superlink_gives_503(make, caplog):
    bridge = make()
    bridge.superlink.down = True
    assert bridge.ask(b"x").status == 503
    assert "no response for nano-1: refused" in caplog.text


def test_what_waited_too_long_for_its_turn_is_not_carried_out(make, caplog):
    """Its SuperNode has given up: a message that it pulled would be lost."""
    now = [0.0]
    bridge = make(clock=lambda: now[0])
    bridge.superlink.goes_on.clear()
    asking = [InThread(bridge.ask, b"%d" % number) for number in range(server_side.MAX_REQUESTS)]
    wait_until(lambda: len(bridge.superlink.done) == server_side.MAX_REQUESTS)
    late = InThread(bridge.ask, b"late")
    wait_until(lambda: bridge.server._pool._work_queue.qsize() == 1)
    now[0] += server_side.ANSWER_SECONDS + 1
    bridge.superlink.goes_on.set()
    assert {one.result().status for one in asking} == {200}
    wait_until(lambda: "dropped a request of nano-1: it has waited too long" in caplog.text)
    assert b"late" not in bridge.superlink.done
    bridge.device.lost()
    assert late.result().status == 503


@pytest.mark.parametrize("name", ["", "a b", "a\x00", "x" * 65])
def test_names_that_are_no_device_s_are_refused(make, caplog, name):
    bridge = make()
    payload = next(frames.split(HttpRequest(PUSH, (), b"x").head, 2000, b"x"))
    bridge.server.arrived(Message(topics.request(name), payload, bytes(16)))
    assert "it is no device" in caplog.text
    assert bridge.superlink.done == []


def test_what_is_no_request_disturbs_nobody(make, caplog):
    bridge = make()
    for payload in (b"", b"xx", next(frames.split(b"no request", 2000))):
        bridge.server.arrived(Message(topics.request("nano-2"), payload, bytes(16)))
    for payload in (b"[1]", b"{", b"\xff", b'{"state": "online"}'):
        bridge.tell(payload)
    bridge.device.arrived(Message(topics.response(NAME), b"no frame", bytes(16)))
    assert "refused a message of nano-2" in caplog.text
    assert "refused a message on fedpfl/bridge/presence" in caplog.text
    assert bridge.ask(b"ab").body == b"ba"
    wait_until(lambda: bridge.held() == 0)
