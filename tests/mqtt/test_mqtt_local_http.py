"""The HTTP server for a device's SuperNodes, with a bridge that answers as the test says."""

import socket
import threading
import time

import httpx
import pytest

from fedpfl.mqtt import device as device_side
from fedpfl.mqtt.device import LocalServer
from fedpfl.mqtt.exchange import Request, Response

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"


class ScriptedBridge:
    """Answers after ``seconds``; meanwhile it tells the client to wait, as often as the device's side would."""

    def __init__(self):
        self.seconds, self.interim_seconds, self.seen, self.gave_up = 0.0, 0.1, [], 0

    def request(self, path, headers, body):
        return Request(path, tuple(headers), body, time.time())

    def exchange(self, request, client_waits, interim, answer, ready):
        ready(len(request.body))
        self.seen.append(request)
        until = time.monotonic() + self.seconds
        while time.monotonic() < until:
            time.sleep(self.interim_seconds)
            if not client_waits():
                self.gave_up += 1
                return
            interim()
        answer(Response(200, (("flwr-x", "y"),), request.body))


@pytest.fixture
def bridge():
    return ScriptedBridge()


@pytest.fixture
def server(bridge):
    server = LocalServer(("127.0.0.1", 0), bridge)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.stop()
    thread.join(5)


@pytest.fixture
def client(server):
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", timeout=0.5) as client:
        yield client


def test_flower_s_http_client_waits_beyond_its_timeout_while_it_is_told_to(bridge, client):
    bridge.seconds = 1.5
    response = client.post(PULL, content=b"x")
    assert (response.status_code, response.content, response.headers["flwr-x"]) == (200, b"x", "y")


def test_and_not_when_it_is_not(bridge, client):
    bridge.seconds = bridge.interim_seconds = 1.0
    with pytest.raises(httpx.ReadTimeout):
        client.post(PULL, content=b"x")


def test_a_client_that_leaves_is_noticed(bridge, client):
    bridge.seconds, bridge.interim_seconds = 5.0, 0.6
    with pytest.raises(httpx.ReadTimeout):
        client.post(PULL, content=b"x")
    until = time.monotonic() + 5
    while not bridge.gave_up:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_one_connection_serves_many_requests(bridge, client):
    for number in range(20):
        assert client.post(PUSH, content=b"%d" % number).content == b"%d" % number
    assert len(bridge.seen) == 20


@pytest.mark.parametrize(
    "data",
    [
        b"GET /v1/fleet/pull-messages HTTP/1.1\r\n\r\n",
        b"POST /v1/control/run HTTP/1.1\r\ncontent-length: 1\r\n\r\nx",
        b"POST /v1/fleet/x HTTP/1.1\r\n\r\n",
        b"POST /v1/fleet/x HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/fleet/x HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n",
        b"POST /v1/fleet/x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"POST " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_fleet_request_gets_a_closed_connection_and_no_status(bridge, server, data):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as connection:
        connection.sendall(data)
        received = b""
        try:
            while part := connection.recv(1000):
                received += part
        except ConnectionResetError:
            pass
    assert received == b""
    assert bridge.seen == []


def test_a_request_that_breaks_off_is_not_carried(bridge, server):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as connection:
        connection.sendall(b"POST /v1/fleet/x HTTP/1.1\r\ncontent-length: 10\r\n\r\nhalf")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert bridge.seen == []


def test_bodies_wait_for_room(bridge, server, client, monkeypatch):
    server.room = device_side._Bytes(10)
    bridge.seconds = 0.2
    threads = [threading.Thread(target=client.post, args=(PULL,), kwargs={"content": b"12345678"}) for _ in range(2)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert time.monotonic() - started >= 0.4
