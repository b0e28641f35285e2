"""The HTTP server for a device's SuperNodes, with a bridge that answers as the test says."""

import socket
import threading
import time

import httpcore
import httpx
import pytest
from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.mqtt import local
from fedpfl.mqtt.exchange import Request, Response
from fedpfl.mqtt.limits import Budget
from fedpfl.mqtt.local import LocalServer

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"


class ScriptedBridge:
    """Answers when ``work``, which may tell the client to wait, has ended; unless the client has gone by then."""

    def __init__(self):
        self.seen, self.gave_up = [], 0
        self.work = lambda client_waits, interim: None

    def request(self, path, headers, body):
        return Request(path, tuple(headers), body, time.time())

    def exchange(self, request, client_waits, interim, answer, ready):
        ready(len(request.body))
        self.seen.append(request)
        self.work(client_waits, interim)
        if client_waits():
            answer(Response(200, (("flwr-x", "y"),), request.body))
        else:
            self.gave_up += 1


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
    thread.join(HANG_SECONDS)


@pytest.fixture
def client(server):
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", timeout=HANG_SECONDS) as client:
        yield client


class Patient(httpcore.SyncBackend):
    """A network that notes the time limit of each wait for an answer."""

    def __init__(self):
        self.limits = []

    def connect_tcp(self, *args, **options):
        stream = super().connect_tcp(*args, **options)
        read = stream.read

        def noted(size, timeout=None):
            self.limits.append(timeout)
            return read(size, timeout)

        stream.read = noted
        return stream


def test_flower_s_http_client_waits_anew_whenever_it_is_told_to(bridge, server):
    network = Patient()

    def work(client_waits, interim):
        for told in range(3):
            wait_until(lambda told=told: len(network.limits) == told + 1)
            assert client_waits()
            interim()
        wait_until(lambda: len(network.limits) == 4)

    bridge.work = work
    with httpcore.ConnectionPool(network_backend=network) as pool:  # what httpx, which Flower uses, is made of
        url, limits = f"http://127.0.0.1:{server.server_port}{PULL}", {"timeout": {"read": HANG_SECONDS}}
        response = pool.request("POST", url, content=b"x", extensions=limits)
    assert (response.status, response.content, dict(response.headers)[b"flwr-x"]) == (200, b"x", b"y")
    assert network.limits[:4] == [HANG_SECONDS] * 4


def test_a_client_that_is_not_told_to_wait_leaves_and_that_is_noticed(bridge, client):
    bridge.work = lambda client_waits, interim: wait_until(lambda: not client_waits())
    with pytest.raises(httpx.ReadTimeout):
        client.post(PULL, content=b"x", timeout=httpx.Timeout(HANG_SECONDS, read=0.2))
    wait_until(lambda: bridge.gave_up)


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
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=HANG_SECONDS) as connection:
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
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=HANG_SECONDS) as connection:
        connection.sendall(b"POST /v1/fleet/x HTTP/1.1\r\ncontent-length: 10\r\n\r\nhalf")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert bridge.seen == []


def test_bodies_wait_for_room(bridge, server, client):
    waits, working = threading.Event(), []

    class Watched(threading.Condition):
        def wait(self, timeout=None):
            waits.set()
            return super().wait(timeout)

    def work(client_waits, interim):
        working.append(True)
        assert waits.wait(HANG_SECONDS)  # until the other body does
        assert len(working) == 1
        working.pop()

    server.room, bridge.work = Budget(2 * local.STEP_BYTES), work
    server.room._changed = Watched()
    body = bytes(2 * local.STEP_BYTES)  # of which the first step needs no room
    posts = [InThread(client.post, PUSH, content=body) for _ in range(2)]
    assert [post.result().content for post in posts] == [body] * 2
