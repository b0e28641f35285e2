"""The HTTP server for a device's SuperNodes, with answers that the test gives."""

import socket
import threading
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.bench.mqtt import http_server
from fedpfl.bench.mqtt.http_bytes import MAX_BODY_BYTES, Response
from fedpfl.bench.mqtt.http_server import NodeServer

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"


class Echo:
    """Answers with the request's body, when ``goes_on`` is set."""

    def __init__(self):
        self.seen, self.goes_on = [], threading.Event()
        self.goes_on.set()

    def __call__(self, request):
        self.seen.append(request)
        self.goes_on.wait(HANG_SECONDS)
        return Response(200, (("flwr-x", "y"),), request.body)


@pytest.fixture
def echo():
    return Echo()


@contextmanager
def serving(host, exchange):
    server = NodeServer((host, 0), exchange)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.stop()
    thread.join(HANG_SECONDS)


@pytest.fixture
def server(echo):
    with serving("127.0.0.1", echo) as server:
        yield server


@pytest.fixture
def client(server):
    with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", timeout=HANG_SECONDS) as client:
        yield client


def connect(server):
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=HANG_SECONDS)


def begun(server, length, sent):
    """Return a connection that has sent the first bytes of a body."""
    connection = connect(server)
    connection.sendall(f"POST {PUSH} HTTP/1.1\r\ncontent-length: {length}\r\n\r\n".encode() + bytes(sent))
    return connection


def received(connection):
    """Return all that comes until the server closes the connection."""
    content = b""
    try:
        while part := connection.recv(1000):
            content += part
    except ConnectionResetError:
        pass
    return content


def test_one_connection_serves_many_requests(echo, server, client):
    for number in range(20):
        answer = client.post(PUSH, content=b"%d" % number)
        assert (answer.content, answer.headers["flwr-x"]) == (b"%d" % number, "y")
    body = bytes(range(256)) * 4000
    assert client.post(PUSH, content=body).content == body
    assert len(echo.seen) == 21
    assert len(server._connections) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"GET /v1/fleet/pull-messages HTTP/1.1\r\n\r\n",
        b"POST /v1/control/run HTTP/1.1\r\ncontent-length: 1\r\n\r\nx",
        b"POST /v1/fleet/../control/run HTTP/1.1\r\ncontent-length: 1\r\n\r\nx",
        b"POST /v1/fleet/x?y HTTP/1.1\r\ncontent-length: 1\r\n\r\nx",
        b"POST /v1/fleet/x HTTP/1.1\r\n\r\n",
        b"POST /v1/fleet/x HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/fleet/x HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
        b"POST /v1/fleet/x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"POST " + b"/" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/fleet/x HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"content-length: 1\r\n\r\nx",
        b"POST /v1/fleet/x HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\ncontent-length: 1\r\n\r\nx",
    ],
)
def test_what_is_no_fleet_request_gets_a_closed_connection_and_no_status(echo, server, data):
    with connect(server) as connection:
        connection.sendall(data)
        assert received(connection) == b""
    assert echo.seen == []


def test_a_request_that_breaks_off_is_not_carried(echo, server):
    with begun(server, 10, 4) as connection:
        connection.shutdown(socket.SHUT_WR)
        assert received(connection) == b""
    assert echo.seen == []


@pytest.mark.parametrize("start", [b"", b"POST", f"POST {PUSH} HTTP/1.1\r\ncontent-length: 9999\r\n\r\n".encode()])
def test_who_says_nothing_more_is_given_up(echo, server, monkeypatch, start):
    monkeypatch.setattr(http_server._Handler, "timeout", 0.1)
    with connect(server) as connection:
        connection.sendall(start)
        assert received(connection) == b""
    assert echo.seen == []


def test_a_body_that_comes_byte_by_byte_is_given_up(echo, server, monkeypatch):
    monkeypatch.setattr(http_server, "BODY_SECONDS", 0.1)
    with begun(server, 9999, 1) as connection:

        def given_up():
            try:
                connection.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until(given_up)
    assert echo.seen == []


def test_an_answer_that_nobody_reads_is_given_up(server, monkeypatch):
    monkeypatch.setattr(http_server._Handler, "timeout", 0.1)
    server.exchange = lambda request: Response(200, (), bytes(50_000_000))
    with begun(server, 0, 0):
        wait_until(lambda: server._connections)
        wait_until(lambda: not server._connections)


def test_long_bodies_take_turns_and_short_ones_pass_them(echo, server, client, monkeypatch, caplog):
    length = http_server.SHORT_BODY + 1
    with ExitStack() as opened:
        for _ in range(http_server.MAX_LONG_BODIES):
            opened.enter_context(begun(server, length, 1))
        wait_until(lambda: server.turns._value == 0)
        waits = InThread(client.post, PUSH, content=bytes(length))
        with httpx.Client(base_url=client.base_url, timeout=HANG_SECONDS) as other:
            assert other.post(PULL, content=b"short").content == b"short"
        monkeypatch.setattr(http_server, "TURN_SECONDS", 0.05)
        with begun(server, length, 1) as connection:
            assert received(connection) == b""
        assert "too many others are sending" in caplog.text
        assert waits.running
    assert len(waits.result().content) == length
    wait_until(lambda: server.turns._value == http_server.MAX_LONG_BODIES)


def test_connections_are_bounded_and_a_place_is_free_again(server, client, monkeypatch, caplog):
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)
    with ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(connect(server))
        wait_until(lambda: len(server._connections) == 3)
        with connect(server) as connection:
            assert received(connection) == b""
        assert "refused a connection of 127.0.0.1: all are in use" in caplog.text
    wait_until(lambda: not server._connections)
    assert client.post(PUSH, content=b"x").content == b"x"


def test_what_goes_wrong_within_an_exchange_closes_its_connection(server, client, caplog):
    server.exchange = lambda request: 1 / 0
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(PUSH, content=b"x")
    assert "a request of 127.0.0.1 failed: ZeroDivisionError" in caplog.text


def test_it_listens_on_ipv6(echo):
    with serving("::1", echo) as server:
        answer = httpx.post(f"http://[::1]:{server.server_port}{PUSH}", content=b"x", timeout=HANG_SECONDS)
        assert answer.content == b"x"
