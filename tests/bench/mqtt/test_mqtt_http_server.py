"""The HTTP server for a device's SuperNodes, with a bridge that answers as the test says."""

import socket
import threading
import time
from contextlib import ExitStack

import httpcore
import httpx
import pytest
from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.bench.mqtt import http_server
from fedpfl.bench.mqtt.http_bytes import HttpRequest, Response
from fedpfl.bench.mqtt.http_server import NodeServer
from fedpfl.bench.mqtt.limits import Budget

PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"


class ScriptedBridge:
    """Answers when ``work``, which may tell the client to wait, has ended; unless the client has gone by then."""

    def __init__(self):
        self.seen, self.gave_up = [], 0
        self.work = lambda client_waits, interim: None

    def request(self, path, headers, body):
        return HttpRequest(path, tuple(headers), body, time.time())

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
    server = NodeServer(("127.0.0.1", 0), bridge)
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

    server.room, bridge.work = Budget(2 * http_server.STEP_BYTES), work
    server.room.changed = Watched()
    body = bytes(2 * http_server.STEP_BYTES)  # of which the first step needs no room
    posts = [InThread(client.post, PUSH, content=body) for _ in range(2)]
    assert [post.result().content for post in posts] == [body] * 2


# -- limits ----------------------------------------------------------------------------------------------------------

KEY = {"flwr-public-key": "k"}


def connect(server):
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=HANG_SECONDS)


def begun(server, length, sent, key="k"):
    """Return a connection that has sent the first bytes of a body."""
    connection = connect(server)
    head = f"POST {PUSH} HTTP/1.1\r\nflwr-public-key: {key}\r\ncontent-length: {length}\r\n\r\n"
    connection.sendall(head.encode() + bytes(sent))
    return connection


def is_closed(connection):
    """Return whether the server has closed a connection without an answer."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("start", [b"", b"POST", f"POST {PUSH} HTTP/1.1\r\ncontent-length: 9999\r\n\r\n".encode()])
def test_a_request_that_takes_too_long_is_given_up_however_often_a_byte_comes(bridge, server, monkeypatch, start):
    monkeypatch.setattr(http_server, "HANDSHAKE_SECONDS", 0.3)
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.3)
    with connect(server) as connection:
        connection.sendall(start)
        connection.settimeout(0.05)

        def given_up():
            try:
                connection.sendall(b"x" if start else b"")
                return is_closed(connection)
            except TimeoutError:  # it waits for more
                return False
            except OSError:
                return True

        wait_until(given_up)
    assert bridge.seen == []


def test_an_answer_that_nobody_reads_is_given_up(bridge, server, monkeypatch):
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.3)
    gone = threading.Event()

    def exchange(request, client_waits, interim, answer, ready):
        ready(len(request.body))
        with pytest.raises(TimeoutError):
            answer(Response(200, (), bytes(50_000_000)))
        gone.set()

    bridge.exchange = exchange
    with begun(server, 0, 0):
        assert gone.wait(HANG_SECONDS)


def test_a_head_is_not_longer_than_it_may_be(bridge, server, caplog):
    with connect(server) as connection:
        connection.sendall(f"POST {PUSH} HTTP/1.1\r\n".encode())
        line = b"x: " + b"y" * 1000 + b"\r\n"
        wait_until(lambda: sends_no_more(connection, line))
        assert is_closed(connection)
    wait_until(lambda: "the head of its request is longer" in caplog.text)


def sends_no_more(connection, data):
    try:
        connection.sendall(data)
    except OSError:
        return True
    return False


def test_bytes_are_taken_as_they_arrive(server):
    with begun(server, 5_000_000, 10), begun(server, 5_000_000, 3 * http_server.STEP_BYTES):
        wait_until(lambda: server.room.held == 3 * http_server.STEP_BYTES)
    wait_until(lambda: server.room.held == 0)


def test_only_a_node_that_the_superlink_has_accepted_sends_long_bodies(bridge, server, client, caplog):
    length = http_server.MAX_UNKNOWN_BODY_BYTES + 1
    with begun(server, length, 0) as connection:
        assert is_closed(connection)
    assert "from a node that the SuperLink has not accepted yet" in caplog.text
    assert client.post(PUSH, content=b"x", headers=KEY).status_code == 200
    assert len(client.post(PUSH, content=bytes(length), headers=KEY).content) == length
    with begun(server, length, 0, "another") as connection:
        assert is_closed(connection)


def test_a_node_that_the_superlink_refuses_stays_unknown(bridge, server):
    def exchange(request, client_waits, interim, answer, ready):
        ready(len(request.body))
        answer(Response(401))

    bridge.exchange = exchange
    with begun(server, 1, 1) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
    assert not server._known


@pytest.fixture
def small_server(bridge):
    server = NodeServer(("127.0.0.1", 0), bridge, max_connections=8)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server
    server.stop()
    thread.join(HANG_SECONDS)


def post(connection, key="k"):
    """Send a request on a connection and return the answer's status line."""
    head = f"POST {PUSH} HTTP/1.1\r\nflwr-public-key: {key}\r\ncontent-length: 1\r\n\r\nx"
    connection.sendall(head.encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\nx"):
        answer += connection.recv(1000) or pytest.fail("the connection was closed")
    return answer.partition(b"\r\n")[0]


def test_unknown_connections_leave_half_of_the_places_and_the_oldest_goes_first(small_server, caplog):
    with ExitStack() as opened:
        unknown = [opened.enter_context(connect(small_server)) for _ in range(4)]
        wait_until(lambda: len(small_server._peers) == 4)
        honest = opened.enter_context(connect(small_server))
        assert is_closed(unknown[0])
        assert post(honest) == b"HTTP/1.1 200 OK"
        assert len(small_server._peers) <= 5
    assert "closed a connection of 127.0.0.1" in caplog.text


def test_a_connection_that_is_idle_gives_its_place_to_another(small_server):
    with ExitStack() as opened:
        idle = []
        for _ in range(8):
            idle.append(opened.enter_context(connect(small_server)))
            assert post(idle[-1]) == b"HTTP/1.1 200 OK"  # the SuperLink accepts its node
        assert post(opened.enter_context(connect(small_server))) == b"HTTP/1.1 200 OK"
        assert is_closed(idle[0])


def test_one_account_leaves_places_to_others(bridge, small_server, caplog):
    leave = threading.Event()
    with ExitStack() as opened:
        for name in ("liar", "honest"):
            assert post(opened.enter_context(connect(small_server)), name) == b"HTTP/1.1 200 OK"
        bridge.work = lambda client_waits, interim: leave.wait(HANG_SECONDS) if len(bridge.seen) < 7 else None
        for number in range(4):
            opened.enter_context(begun(small_server, 1, 1, "liar"))
            wait_until(lambda number=number: len(bridge.seen) == 3 + number)
        with begun(small_server, 1, 1, "liar") as connection:
            assert is_closed(connection)
        assert "too many of its requests are being answered" in caplog.text
        assert post(opened.enter_context(connect(small_server)), "honest") == b"HTTP/1.1 200 OK"
        leave.set()


def test_it_listens_on_ipv6(bridge):
    server = NodeServer(("::1", 0), bridge)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        answer = httpx.post(f"http://[::1]:{server.server_port}{PUSH}", content=b"x", timeout=HANG_SECONDS)
        assert answer.content == b"x"
    finally:
        server.stop()
        thread.join(HANG_SECONDS)
