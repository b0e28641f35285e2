"""Who gets what of the live page, and how long it lives."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
from in_process import call_fedpfl
from live_parts import make_run, served
from waiting import HANG_SECONDS, InThread, wait_until

from fedpfl.bench.mqtt import topics
from fedpfl.bench.mqtt.publisher import Message
from fedpfl.bench.mqtt.status import Board
from fedpfl.core.errors import ConfigError
from fedpfl.study.live import page_server
from fedpfl.study.live.page_server import FILES, LiveBoard, LivePage, listen, serve, served_in_background


def client(page, **headers):
    """Return a client that knows the page's token."""
    where = page.address().partition("/#")[0]
    authorised = {"Authorization": f"Bearer {page.token}", **headers}
    return httpx.Client(base_url=where, headers=authorised, timeout=HANG_SECONDS)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    make_run(runs, "one", rounds=2)
    with served(runs) as page:
        yield page


def test_what_the_page_asks_for(page):
    with client(page) as web:
        runs = web.get("/api/runs").json()
        assert [run["name"] for run in runs["runs"]] == ["one"]
        assert (runs["folder"], runs["bench"]) == (str(page.runs), False)
        told = web.get("/api/page", params={"run": "one"}).json()
        assert told["document"]["title"] == "one"
        assert web.get("/api/page", params={"run": "one", "since": told["version"]}).json() == {
            "version": told["version"]
        }
        missing = web.get("/api/page", params={"run": "../one"})
        assert missing.status_code == 404
        assert "there is no such run" in missing.json()["error"]
        assert web.get("/api/bench").json() == {"devices": [], "log": []}
        assert web.get("/page.html").status_code == 404
        assert web.post("/api/runs").status_code == 405


def test_the_files_of_the_page_need_no_token_and_allow_nothing_from_elsewhere(page):
    with client(page, Authorization="") as web:
        for path in FILES:
            answer = web.get(path)
            assert answer.status_code == 200
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["cross-origin-resource-policy"] == "same-origin"
            assert "access-control-allow-origin" not in answer.headers
        assert page.token not in "".join(web.get(path).text for path in FILES)


@pytest.mark.parametrize("token", ["", "Bearer", "Bearer wrong", "Basic abc", "Bearer é"])
def test_without_the_token_there_is_nothing(page, token):
    with client(page, Authorization=token.encode()) as web:
        for path in ("/api/runs", "/api/page?run=one", "/api/bench", "/api/other"):
            answer = web.get(path)
            assert answer.status_code == 401
            assert "one" not in answer.text.replace("open", "")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "rebound.example"}, 403), ({"Host": "rebound.example:8078"}, 403), ({"Host": ""}, 403),
        ({"Host": "127.0.0.1.example"}, 403), ({"Host": "127.0.0.1"}, 200), ({"Host": "[::1]:8078"}, 200),
        ({"Host": "localhost:9000"}, 200),
        ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Host": "localhost:9000", "Origin": "http://localhost:9000"}, 200),
        ({"Host": "localhost:9000", "Origin": "https://localhost:9000"}, 403),
    ],
)  # fmt: skip
def test_other_names_and_other_origins_get_nothing(page, headers, status):
    with client(page, **headers) as web:
        assert web.get("/api/runs").status_code == status


def test_a_port_that_is_taken_is_named_unless_nobody_asked_for_it(monkeypatch):
    with listen(port=0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port.*{port}.*cannot be used"):
            listen(port=port)
        monkeypatch.setattr("fedpfl.study.live.page_server.PORT", port)
        with listen() as other:
            assert other.getsockname()[1] not in (port, 0)


def test_a_bench_is_told_without_what_devices_made_up(monkeypatch):
    now = [1000.0]
    board = LiveBoard()
    board._board = Board(clock=lambda: now[0], log_lines=3)
    events = [
        (topics.node_presence("nano-1"), {"state": "online"}),
        (topics.telemetry("nano-1"), {"temperature_c": {"a": 40.0, "b": 51.2}, "memory_mib": {"available": 900},
                                      "power_mw": {"x": 2000, "y": 500}}),
        (topics.telemetry("nano-2"), {"temperature_c": {"a": float("nan"), "b": "hot"},
                                      "memory_mib": {"available": [1]}, "power_mw": {"x": float("inf")}}),
        (topics.node_presence("nano-2"), {"state": {"a": ["b"] * 3000}}),
        (topics.log("nano-1"), {"level": "warning", "message": "<b>hot</b>"}),
    ]  # fmt: skip
    for topic, values in events:
        board.receive(Message(topic, json.dumps(values).encode()))
    board.receive(Message("fedpfl/log/\x1b", b"{"))
    now[0] = 1060.0
    board.receive(Message(topics.node_presence("nano-2"), b'{"state": "offline"}'))
    now[0] = 1100.0
    told = board.payload()
    first, second = told["devices"]
    assert first == {"name": "nano-1", "state": "silent", "temperature": 51.2, "memory": 900, "power": 2500,
                     "heard": 100.0}  # fmt: skip
    assert second == {"name": "nano-2", "state": "offline", "temperature": None, "memory": None, "power": None,
                      "heard": 40.0}  # fmt: skip
    assert told["log"] == [{"at": 1000.0, "name": "nano-1", "text": "warning <b>hot</b>"},
                           {"at": 1000.0, "name": "", "text": "fedpfl/log/ : not JSON"}]  # fmt: skip
    json.dumps(told, allow_nan=False)


def test_beside_a_run_it_lives_as_long_as_the_block(tmp_path):
    page = LivePage(tmp_path, listen(port=0))
    where, port = page.address("one"), page.listening.getsockname()[1]
    assert where == f"http://127.0.0.1:{port}/#token={page.token}&run=one"
    with served_in_background(page, last_look=0.3):
        assert httpx.get(f"http://127.0.0.1:{port}/", timeout=HANG_SECONDS).status_code == 200
    assert not connects(port)


def test_a_browser_sees_how_the_run_has_ended_before_the_page_ends(tmp_path):
    folder = make_run(tmp_path, "one", rounds=1)
    (folder / ".lock").touch()
    page, stopping, seen = LivePage(tmp_path, listen(port=0)), threading.Event(), []
    serving, web = InThread(serve, page, stopping, HANG_SECONDS), client(page)

    def look():
        document = web.get("/api/page?run=one").json()["document"]
        seen.append((document["title"], document["runs"][0]["state"]))

    with web, contextlib.suppress(httpx.TransportError):
        look()
        (folder / "summary.md").touch()
        stopping.set()
        while serving.running:
            look()
            time.sleep(0.1)  # the page asks less often
    serving.result()
    assert (seen[0], seen[-1]) == (("one", "stopped"), ("one", "finished"))


def test_connections_that_send_no_request_keep_nobody_out(tmp_path, monkeypatch):
    monkeypatch.setattr(page_server, "REQUEST_SECONDS", 0.3)
    make_run(tmp_path, "one")
    with served(tmp_path) as page, contextlib.ExitStack() as stack, client(page) as web:
        assert web.get("/api/runs").status_code == 200
        for number in range(page_server.MAX_CONNECTIONS + 10):
            slow = stack.enter_context(socket.create_connection(page.listening.getsockname()))
            slow.sendall(b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * (number % 2) + b"GET / HT")
        wait_until(lambda: httpx.get(page.address().partition("#")[0]).status_code == 200)


def test_connections_that_take_no_answer_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(page_server, "REQUEST_SECONDS", 0.3)
    with served(tmp_path) as page, socket.socket() as idle:
        idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        idle.settimeout(1)
        host, port = page.listening.getsockname()
        idle.connect((host, port))
        with contextlib.suppress(OSError):
            idle.sendall(f"GET /page.js HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode() * 400)
        established = 1  # of Linux's TCP_INFO
        wait_until(lambda: idle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != established)


def test_connections_that_end_early_leave_no_error(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(page_server, "REQUEST_SECONDS", 0.1)
    with served(tmp_path) as page:
        host, port = page.listening.getsockname()
        for sent in (b"", b"GET /page.js HT", f"GET /page.js HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()):
            with socket.create_connection((host, port)) as early:
                early.sendall(sent)
        time.sleep(0.3)
        assert httpx.get(page.address().partition("#")[0]).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def connects(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


BESIDE = """
import sys, time
from pathlib import Path
from fedpfl.study.live.page_server import LivePage, listen, serve, served_in_background
page = LivePage(Path(sys.argv[1]), listen(port=0))
port = page.listening.getsockname()[1]
with served_in_background(page, last_look=0.3):
    print(port, flush=True)
    time.sleep(600)
"""


def test_it_ends_when_the_run_s_process_is_killed(tmp_path):
    started = subprocess.Popen([sys.executable, "-c", BESIDE, tmp_path], stdout=subprocess.PIPE, text=True)
    port = int(started.stdout.readline())
    answer = httpx.get(f"http://127.0.0.1:{port}/", timeout=HANG_SECONDS)
    assert answer.status_code == 200
    os.kill(started.pid, signal.SIGKILL)
    started.wait(HANG_SECONDS)
    wait_until(lambda: not connects(port))


def test_fedpfl_watch_web_serves_until_its_time_is_over(tmp_path):
    make_run(tmp_path, "one")
    done = call_fedpfl("watch", "--web", "--runs", str(tmp_path), "--port", "0", "--seconds", "0.2")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("live page: http://127.0.0.1:")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "1"], "port = 1: is an option of --web"),
        (["--runs", "x"], "runs = x: is an option of --web"),
        (["--web", "--json"], "leave it out with --web"),
        (["--web", "--runs", "/nowhere"], "/nowhere: is not a folder"),
        (["--web", "--broker", "x"], "must be host:port"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    done = call_fedpfl("watch", *options, "--seconds", "0")
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.output.split()).replace("'", ""), done.output
