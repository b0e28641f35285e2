"""False SuperNodes and a false device before the bridge: what they take is bounded, and the others are served."""

from __future__ import annotations

import contextlib
import random
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc

import httpx
import pytest
from mqtt_parts import (
    MOSQUITTO,
    PULL,
    PUSH,
    Broker,
    Process,
    SuperLink,
    fedpfl_bridge,
    free_port,
    publish,
)  # fmt: skip
from waiting import HANG_SECONDS, wait_until

from fedpfl.bench.mqtt import frames, server_side, topics
from fedpfl.bench.mqtt.frames import Assembler, Kind
from fedpfl.bench.mqtt.http_bytes import HttpRequest, Response
from fedpfl.bench.mqtt.publisher import Message
from fedpfl.bench.mqtt.server_side import ServerBridge

MIB = 2**20


@pytest.fixture
def direct(tmp_path):
    superlink, address = SuperLink(), f"127.0.0.1:{free_port()}"
    places = ("--superlink", f"127.0.0.1:{superlink.port}")
    bridge = Process(fedpfl_bridge("direct", "--listen", address, *places), tmp_path / "log", "ready")
    yield address
    assert bridge.end() == 0
    superlink.close()


def announce(address, length):
    """Open a connection that announces a body and sends one byte of it."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), HANG_SECONDS)
    connection.sendall(f"POST {PUSH} HTTP/1.1\r\ncontent-length: {length}\r\n\r\nx".encode())
    return connection


def test_three_slow_connections_delay_nobody(direct):
    with contextlib.ExitStack() as slow, httpx.Client(base_url=f"http://{direct}", timeout=60) as client:
        assert client.post(PUSH, content=b"ab").content == b"ba"
        connections = [slow.enter_context(announce(direct, length)) for length in (33_423_360, 33_423_360, 262_144)]
        body = random.Random(1).randbytes(5 * MIB)
        for connection in connections:
            assert client.post(PUSH, content=body).content == body[::-1]
            connection.sendall(b"x")
        assert client.post(PUSH, content=b"ab").content == b"ba"


class Link:
    """Keeps what the server's side sends, without bodies."""

    online, max_payload = True, MIB

    def __init__(self):
        self.sent = []

    def publish(self, message):
        frame = frames.decode(message.id, message.payload)
        self.sent.append((message.topic, frame.kind, frame.id))

    def send(self, messages, deadline):
        for message in messages:
            self.publish(message)


class BusySuperLink:
    """Has no message for anybody, and is long about what is long."""

    def __init__(self):
        self.over = threading.Event()

    @contextlib.contextmanager
    def connect(self):
        yield self

    def call(self, request, *_):
        if len(request.body) > MIB and not request.held:
            self.over.wait(HANG_SECONDS)
        return Response(200, (), b"" if request.held else b"done")


@pytest.fixture
def server():
    superlink = BusySuperLink()
    server = ServerBridge(Link(), superlink)
    yield server
    superlink.over.set()
    server.stop()


def say(server, device, kind, message_id, payload):
    server.arrived(
        Message(topics.request(device), payload, message_id, topics.response(device), server_side.EXPIRY_SECONDS)
    )


def ask(server, device, path, body, message_id):
    """Send a request as a device's side does."""
    request = HttpRequest(path, (), body, time.time())
    for payload in frames.split(Kind.REQUEST, request.head, MIB, request.body):
        say(server, device, Kind.REQUEST, message_id, payload)


@pytest.fixture
def peak():
    """Return the most memory that was allocated since the start of the test, in bytes."""
    tracemalloc.start()
    begin = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[1] - begin
    tracemalloc.stop()


@pytest.mark.parametrize("path", [PULL, PUSH])
def test_64_requests_of_30_mib_of_one_device_take_its_share(server, peak, caplog, path):
    body = memoryview(bytes(30 * MIB))
    for number in range(64):
        ask(server, "nano-1", path, body, number.to_bytes(16, "big"))
    # Its share, one message that is being joined, and this test's own body with a frame.
    assert peak() < (68 + 32 + 30 + 10) * MIB
    wait_until(lambda: re.search(r"refused a (message|request) of nano-1: (no room for|a body of) ", caplog.text))
    ask(server, "nano-2", PUSH, b"honest", b"2" * 16)
    wait_until(lambda: (topics.response("nano-2"), Kind.RESPONSE, b"2" * 16) in server._link.sent)


def test_two_frames_of_1_kib_take_no_memory_for_what_they_announce(peak):
    assembler = Assembler()
    for number in range(2):
        payload = struct.pack("!2sBBIIQ", b"fb", 1, Kind.REQUEST, 0, 32 * 1024, 32 * MIB) + bytes(1024)
        assert assembler.add(frames.decode(number.to_bytes(16, "big"), payload)) is None
    assert peak() < 4 * MIB


def calls(function, *arguments):
    """Return how many functions and generators a call enters in this thread."""
    entered = []
    sys.setprofile(lambda _frame, event, _argument: entered.append(event) if event == "call" else None)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return len(entered)


def test_bad_requests_cost_the_same_however_many_are_known(server):
    def bad(number):
        content = frames.single(Kind.REQUEST, b"no request")
        say(server, "nano-1", Kind.REQUEST, number.to_bytes(16, "big"), content)

    def probe(number):
        say(server, "nano-1", Kind.PROBE, number.to_bytes(16, "big"), frames.single(Kind.PROBE))

    for number in range(server_side.MAX_REMEMBERED):
        bad(number)
        if number % 32 == 0:
            wait_until(lambda: not server._threads)
    wait_until(lambda: not server._threads)
    assert len(server._devices["nano-1"].exchanges) == server_side.MAX_REMEMBERED
    counts = [calls(bad, 10_000), calls(bad, 10_001), calls(probe, 4000), calls(probe, 20_000)]
    assert max(counts) < 300
    assert len(server._devices["nano-1"].exchanges) <= server_side.MAX_REMEMBERED + 1


@pytest.mark.parametrize(("command", "line"), [
    (
        ("device", "--device", "nano-1", "--broker", "127.0.0.1:1", "--listen", "0.0.0.0:18555"),
        "listen = '0.0.0.0:18555': needs TLS, because it is not loopback: --tls-cert and --tls-key are missing",
    ),
    (
        ("server", "--broker", "127.0.0.1:1", "--superlink", "192.0.2.1:8000"),
        "superlink = '192.0.2.1:8000': needs TLS, because it is not loopback: --superlink-ca is missing",
    ),
    (
        ("direct", "--listen", "127.0.0.1:0", "--superlink", "192.0.2.1:8000"),
        "superlink = '192.0.2.1:8000': needs TLS, because it is not loopback: --superlink-ca is missing",
    ),
    (
        ("device", "--device", "nano-1", "--broker", "192.0.2.1:1883"),
        "broker = '192.0.2.1': needs TLS, because it is not loopback: --ca is missing",
    ),
])  # fmt: skip
def test_no_plain_text_beyond_loopback(command, line):
    done = subprocess.run(fedpfl_bridge(*command), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.splitlines()) == (2, [f"error: {line}"])


@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed (Debian: apt-get install mosquitto)")
def test_connections_that_never_log_in_to_the_broker_are_bounded(tmp_path):
    broker = Broker(tmp_path)
    with contextlib.ExitStack() as silent:
        device, places = broker.client("nano-1"), ("127.0.0.1", broker.port)
        connections = [silent.enter_context(socket.create_connection(places, HANG_SECONDS)) for _ in range(550)]
        wait_until(lambda: len(select.select(connections, [], [], 0)[0]) > 20, seconds=60)  # the broker hung up
        assert publish(device, "fedpfl/request/nano-1", b"").value <= 16  # none of the failures
        device.disconnect()
        device.loop_stop()
    assert broker.end() == 0
