"""Connections to the SuperLink are used again while they are good."""

from __future__ import annotations

import select
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from waiting import HANG_SECONDS, InThread

from fedpfl.bench.mqtt import upstream
from fedpfl.bench.mqtt.http_bytes import HttpRequest
from fedpfl.bench.mqtt.upstream import Upstream, UpstreamError

REQUEST = HttpRequest("/v1/fleet/pull-object", (("flwr-x", "1"),), b"body")


class SuperLink(ThreadingHTTPServer):
    """Answers with the number of its connection; closes it after each answer if it is told to."""

    daemon_threads = True

    def __init__(self):
        self.connections, self.closes, self.closed = 0, False, threading.Semaphore(0)
        self.together = threading.Barrier(1)
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.connections += 1
        self.number = self.server.connections

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.server.together.wait(HANG_SECONDS)
        body = str(self.number).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.server.closes  # as the SuperLink does: without a word in its answer

    def finish(self):
        super().finish()
        self.server.closed.release()

    def log_message(self, *_):
        pass


@pytest.fixture
def superlink():
    server = SuperLink()
    yield server
    server.shutdown()
    server.server_close()


def ask(to):
    return int(to.call(REQUEST).body)


def test_a_connection_is_used_again_and_two_at_a_time_are_two(superlink):
    to = Upstream("127.0.0.1", superlink.server_port)
    assert [ask(to), ask(to)] == [1, 1]
    superlink.together = threading.Barrier(2)
    assert sorted(one.result() for one in [InThread(ask, to), InThread(ask, to)]) == [1, 2]


def test_one_that_was_idle_for_long_or_that_the_superlink_closed_is_not(superlink, monkeypatch):
    to = Upstream("127.0.0.1", superlink.server_port)
    superlink.closes = True
    assert ask(to) == 1
    assert superlink.closed.acquire(timeout=HANG_SECONDS)
    ((_, connection),) = to._idle
    assert select.select([connection.sock], [], [], HANG_SECONDS)[0]  # the goodbye has come
    superlink.closes = False
    assert [ask(to), ask(to)] == [2, 2]
    monkeypatch.setattr(upstream, "IDLE_SECONDS", 0.0)
    assert ask(to) == 3


def test_one_that_failed_is_not(superlink):
    to = Upstream("127.0.0.1", superlink.server_port)
    superlink.shutdown()
    superlink.server_close()
    with pytest.raises(UpstreamError):
        ask(to)
    assert to._idle == []
