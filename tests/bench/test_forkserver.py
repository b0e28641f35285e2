"""The fork server: what it forks behaves as Flower's command would, and without it that command runs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shlex
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import HANG_SECONDS, wait_until

from fedpfl.bench import flower_command
from fedpfl.bench.flower_command import SUPEREXEC, SUPERNODE, supernode_command
from fedpfl.bench.forkserver import load, write_commands
from fedpfl.core.errors import FedpflError

ROOT = Path(__file__).parents[2]

# Stands for flwr-clientapp: says what it sees, and ends with the exit code it is told.
SPY = """
import os, sys

os.environ["SET_BY_IMPORT"] = "set by import"

def run():
    names = ("SPY", "LEFT_OUT", "SET_BY_IMPORT")
    print(os.getcwd(), sys.argv[1:], *map(os.environ.get, names), flush=True)
    print("trouble", file=sys.stderr, flush=True)
    if sys.argv[1:] == ["fail"]:
        raise ValueError("spied")
    if sys.argv[1:2] == ["app"]:
        sys.path.insert(0, sys.argv[2])
        from fedpfl.core.errors import WHOSE
        print(WHOSE, flush=True)
        return 0
    return int(sys.argv[1])
"""
SERVER = """
import os, sys
sys.path.insert(0, sys.argv[1])
import fedpfl.bench.forkserver as f
f.load = lambda *arguments: __import__("spy").run
fork = os.fork
def fork_or_not():
    if os.path.exists(sys.path[0] + "/full"):
        raise BlockingIOError(11, "no process to be had")
    return fork()
os.fork = fork_or_not
sys.argv = ["fedpfl-forkserver", "--socket", sys.argv[2]]
f.main()
"""


@pytest.fixture(scope="module")
def server():
    folder = Path(tempfile.mkdtemp(prefix="fedpfl-test-"))
    (folder / "spy.py").write_text(SPY)
    (folder / "server.py").write_text(SERVER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LEFT_OUT": "the server's own"}
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, str(folder / "server.py"), str(folder), str(folder / "run" / "f.sock")],
        env=environment, stderr=log,
    )  # fmt: skip
    written = (folder / "log").read_text
    wait_until(lambda: "ready" in written(), lambda: process.poll() is None, written)
    process.folder = folder
    yield process
    process.kill()
    process.wait()
    shutil.rmtree(folder)


def call(server, *arguments, cwd="/"):
    """Run the command; return what it, or rather its stand-in, wrote to its two outputs by its end."""
    command = [str(server.folder / "run" / "bin" / "flwr-clientapp"), *arguments]
    environment = {**os.environ, "SPY": "a=b\nc"}
    environment.pop("LEFT_OUT", None)
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=HANG_SECONDS)
    return done.stdout, done.stderr


def test_the_process_has_folder_arguments_environment_and_outputs_of_who_asked(server, tmp_path):
    out, err = call(server, "0", "two words", "", "ü", cwd=tmp_path)
    assert out == f"{tmp_path} ['0', 'two words', '', 'ü'] a=b\nc None set by import\n"
    assert err == "trouble\n"


def test_a_process_that_fails_ends_alone(server):
    _, err = call(server, "fail")
    assert "trouble" in err
    assert call(server, "0")[1] == "trouble\n"


def test_an_app_is_run_with_its_own_package(server, tmp_path):
    (tmp_path / "fedpfl" / "core").mkdir(parents=True)
    (tmp_path / "fedpfl" / "__init__.py").touch()
    (tmp_path / "fedpfl" / "core" / "errors.py").write_text('WHOSE = "the app\'s"')
    out = call(server, "app", str(tmp_path))[0]
    assert out.splitlines()[-1] == "the app's"


def test_nothing_of_its_processes_stays(server):
    call(server, "3")
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    wait_until(lambda: children.read_text() == "")


def test_its_files_are_the_user_s_alone(server):
    folder = server.folder / "run"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "f.sock", folder / "bin")}
    assert modes == {"run": 0o700, "f.sock": 0o600, "bin": 0o700}


def request(*arguments):
    content = b"\0".join(arguments)
    return struct.pack(">I", len(content)) + content


@pytest.mark.parametrize("content", [
    b"", b"abc", b"\0\0\0\5hello", struct.pack(">I", 2**31), request(b"/", b"99", b"word"), request(b"/", b"no number"),
])  # fmt: skip
def test_bytes_that_are_no_request_start_nothing(server, content):
    before = (server.folder / "log").read_text().count("a request was dropped")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(server.folder / "run" / "f.sock"))
        if len(content) > 3:
            socket.send_fds(connection, [content[:4]], [1, 2])
        with contextlib.suppress(BrokenPipeError):  # it may have seen enough
            connection.sendall(content[4:] if len(content) > 3 else content)
            connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert (server.folder / "log").read_text().count("a request was dropped") == before + 1
    assert call(server, "0")[1] == "trouble\n"


def begin(server):
    """Send a request; return the connection."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(server.folder / "run" / "f.sock"))
    content = request(b"/", b"1", b"0")
    socket.send_fds(connection, [content[:4]], [1, 2])
    connection.sendall(content[4:])
    return connection


def test_a_client_that_does_not_wait_leaves_the_server_running(server):
    server.send_signal(signal.SIGSTOP)
    try:
        begin(server).close()
    finally:
        server.send_signal(signal.SIGCONT)
    assert call(server, "0")[1] == "trouble\n"
    log = (server.folder / "log").read_text()
    assert "flwr-clientapp was started, but who asked for it is gone: [Errno 32]" in log
    assert "a request was dropped: [Errno 32]" not in log


def test_without_room_for_a_process_nothing_is_taken(server):
    (server.folder / "full").touch()
    files = Path(f"/proc/{server.pid}/fd")
    before = len(list(files.iterdir()))
    with begin(server) as connection:
        assert connection.recv(1) == b""
    (server.folder / "full").unlink()
    assert call(server, "0")[1] == "trouble\n"
    assert len(list(files.iterdir())) == before
    assert "no process to be had" in (server.folder / "log").read_text()


def test_a_command_that_is_being_started_is_not_written_to(tmp_path):
    write_commands(tmp_path / "f.sock", "first")
    paths = [tmp_path / "bin" / name for name in ("flwr-clientapp", "flwr-clientapp.py")]
    texts = [path.read_text() for path in paths]
    with paths[0].open() as command, paths[1].open() as hand_over:
        write_commands(tmp_path / "f.sock", "second")
        assert [command.read(), hand_over.read()] == texts
    assert "'second'" in paths[1].read_text()
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o600]
    assert len(list((tmp_path / "bin").iterdir())) == 4


def test_without_the_server_flower_s_own_command_runs(tmp_path):
    real = tmp_path / "real"
    real.write_text('#!/bin/sh\necho "real $1"\n')
    real.chmod(0o700)
    write_commands(tmp_path / "nobody.sock", str(real))
    command = [tmp_path / "bin" / "flwr-clientapp", "here"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.stdout == "real here\n"


def test_the_commands_of_a_supernode_and_its_superexec_are_flower_s(tmp_path):
    write_commands(tmp_path / "f.sock", "real")
    for name in (SUPEREXEC, SUPERNODE):
        command = shlex.split((tmp_path / "bin" / name).read_text().splitlines()[1])
        assert command == ["exec", *supernode_command()[:-1], name, "$@"]


@pytest.mark.parametrize("name", [SUPEREXEC, SUPERNODE])
def test_flower_s_own_commands_have_their_arguments_and_look_when_there_may_be_work(monkeypatch, name):
    called, expected = [], {SUPEREXEC: "stretch_task_polls", SUPERNODE: "shorten_message_polls"}
    for polls in expected.values():
        monkeypatch.setattr(flower_command, polls, lambda polls=polls: called.append(polls))
    monkeypatch.setattr(sys, "argv", ["flower_command.py", name, "--some", "1"])
    (command,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    stands_in = SimpleNamespace(load=lambda: lambda: called.append(sys.argv))
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: [stands_in])
    flower_command.main()
    assert called == [expected[name], [name, "--some", "1"]]
    assert command.value.startswith("flwr.")


def test_it_finds_flower_s_command(tmp_path):
    # In another process: it changes Flower's module.
    code = (
        "import pathlib, sys; from fedpfl.bench.forkserver import load; print(load(pathlib.Path(sys.argv[1])).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.stdout == "flwr_clientapp\n", done.stderr


def test_a_module_that_is_not_there_is_not_preloaded(tmp_path):
    with pytest.raises(FedpflError, match="--preload no_such_module: No module named"):
        load(tmp_path, ["no_such_module"])


def test_it_goes_when_it_is_told(server):
    server.send_signal(signal.SIGTERM)
    assert server.wait(HANG_SECONDS) == 0
    assert not (server.folder / "run" / "f.sock").exists()
