"""False SuperNodes and a false device before the bridge: what they take is bounded, and the others are served."""

from __future__ import annotations

import contextlib
import random
import re
import select
import socket
import struct
import subprocess
import threading
import tracemalloc

import httpx
import pytest
from mqtt_parts import (
    MOSQUITTO,
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
from fedpfl.bench.mqtt.frames import Assembler
from fedpfl.bench.mqtt.http_bytes import MAX_BODY_BYTES, HttpRequest, Response
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
        connections = [
            slow.enter_context(announce(direct, length)) for length in (MAX_BODY_BYTES, MAX_BODY_BYTES, 262_144)
        ]
        body = random.Random(1).randbytes(5 * MIB)
        for connection in connections:
            assert client.post(PUSH, content=body).content == body[::-1]
            connection.sendall(b"x")
        assert client.post(PUSH, content=b"ab").content == b"ba"


class Link:
    """Keeps the topics to which the server's side sends."""

    max_payload = MIB

    def __init__(self):
        self.sent = []

    def send(self, messages, deadline):
        self.sent += [message.topic for message in messages]


class BusySuperLink:
    """Is long about what is long."""

    def __init__(self):
        self.over = threading.Event()

    def call(self, request):
        if len(request.body) > MIB:
            self.over.wait(HANG_SECONDS)
        return Response(200, (), b"done")


@pytest.fixture
def server():
    superlink = BusySuperLink()
    server = ServerBridge(Link(), superlink)
    server.superlink = superlink
    yield server
    superlink.over.set()
    server.stop()


def ask(server, device, body, message_id):
    """Send a request as a device's side does."""
    request = HttpRequest(PUSH, (), body)
    for payload in frames.split(request.head, MIB, request.body):
        server.arrived(Message(topics.request(device), payload, message_id))


@pytest.fixture
def peak():
    """Return the most memory that was allocated since the start of the test, in bytes."""
    tracemalloc.start()
    begin = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[1] - begin
    tracemalloc.stop()


def test_64_requests_of_15_mib_take_no_more_than_the_limit(server, peak, caplog):
    body = memoryview(bytes(15 * MIB))
    for number in range(64):
        ask(server, "nano-1", body, number.to_bytes(16, "big"))
    # One message that grows, and this test's own body with a frame.
    assert peak() < server_side.MAX_BYTES + (2 * 16 + 15 + 10) * MIB
    assert re.search(r"refused a message of nano-1: no room for \d+ bytes more", caplog.text)
    server.superlink.over.set()  # the others are served when there is room
    wait_until(lambda: server._assembler.held == 0)
    ask(server, "nano-2", b"honest", b"2" * 16)
    wait_until(lambda: topics.response("nano-2") in server._link.sent)


def test_two_frames_of_1_kib_take_no_memory_for_what_they_announce(peak):
    assembler = Assembler(32 * MIB)
    for number in range(2):
        payload = struct.pack("!2sBQQ", b"fb", 2, 0, 16 * MIB) + bytes(1024)
        assert assembler.add("nano-1", frames.decode(number.to_bytes(16, "big"), payload)) is None
    assert peak() < 4 * MIB


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
