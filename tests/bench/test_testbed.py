"""How `fedpfl up` starts its parts; with real ones: test_up.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedpfl.bench import credentials, testbed
from fedpfl.bench.inventory import Bench


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Return what starts a testbed's bridge and returns the testbed and the commands of its parts, which do not run."""
    beds = []

    def start():
        bed, started = testbed.Testbed(tmp_path / "keys", mqtt=True), {}
        beds.append(bed)
        bed._keys = credentials.prepare(tmp_path / "keys", 0)
        monkeypatch.setattr(bed, "_spawn", lambda name, command, environment: started.update({name: command}))
        monkeypatch.setattr(bed, "_wait_for", lambda *_: None)
        monkeypatch.setattr(testbed, "_mosquitto", lambda: "mosquitto")
        bed._start_bridge(["device-0", "device-1"], tmp_path / "runs", lambda _, port: port)
        return bed, started

    yield start
    for bed in beds:
        shutil.rmtree(bed.folder)


def option(command, name):
    return command[command.index(name) + 1]


def test_the_run_is_published_and_can_be_watched(commands, tmp_path):
    bed, started = commands()
    assert option(started["bridge server"], "--runs") == str(tmp_path / "runs")
    assert bed.watch[:2] == ["fedpfl", "watch"]
    for name in ("--broker", "--ca"):
        assert option(bed.watch, name) == option(started["bridge server"], name)
    password = Path(option(bed.watch, "--password-file"))
    assert password == tmp_path / "keys" / "passwords" / "watch"
    assert password.read_text().strip() not in bed.watch


def test_passwords_are_kept_and_two_testbeds_share_nothing_else(commands, tmp_path):
    first, _ = commands()
    passwords = {path.name: path.read_text() for path in (tmp_path / "keys" / "passwords").iterdir()}
    second, started = commands()
    assert set(passwords) == {"server", "watch", "device-0", "device-1"}
    assert {path.name: path.read_text() for path in (tmp_path / "keys" / "passwords").iterdir()} == passwords
    assert Path(option(started["broker"], "-c")).is_relative_to(second.folder)
    assert first.folder != second.folder


class Ended:
    """A process that has ended."""

    def poll(self):
        return 1


@pytest.mark.parametrize(("pause", "told"), [(20.0, "SuperNode 0 ended 13 times: it printed nothing"), (90.0, None)])
def test_a_part_that_ends_at_once_again_and_again_ends_the_testbed_and_one_that_ran_in_between_does_not(
    monkeypatch, tmp_path, pause, told
):
    bed, clock = testbed.Testbed(tmp_path / "keys"), iter(range(1000))
    monkeypatch.setattr(testbed.time, "monotonic", lambda: pause * next(clock))
    monkeypatch.setattr(bed, "_spawn", lambda *_: None)
    bed._complete, bed._commands = True, {"SuperNode 0": ([], {})}
    bed._processes = {"SuperNode 0": Ended()}
    answers = [bed.ended() for _ in range(30)]
    shutil.rmtree(bed.folder)
    assert answers[12] == answers[-1] == told
    assert answers[:12] == [None] * 12


def test_each_run_of_a_testbed_may_lose_a_part_as_often_as_the_first(monkeypatch, tmp_path):
    bed, clock = testbed.Testbed(tmp_path / "keys"), iter(range(1000))
    monkeypatch.setattr(testbed.time, "monotonic", lambda: 20.0 * next(clock))
    monkeypatch.setattr(bed, "_spawn", lambda *_: None)
    monkeypatch.setattr(testbed.SuperLink, "submit", lambda *_: "1")
    bed._complete, bed._commands, bed._processes = True, {"SuperNode 0": ([], {})}, {"SuperNode 0": Ended()}
    for _ in range(3):
        bed.submit(None, {})
        assert [bed.ended() for _ in range(10)] == [None] * 10
    shutil.rmtree(bed.folder)


@pytest.mark.parametrize("mqtt", [False, True])
def test_a_bench_s_devices_have_their_clients_data_and_network(tmp_path, monkeypatch, mqtt):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    bed, started = testbed.Testbed(tmp_path / "keys", mqtt), {}
    monkeypatch.setattr(
        bed, "_spawn", lambda name, command, environment: started.update({name: (command, environment)})
    )
    for name in ("_wait_for", "_wait_until_ready", "_register"):
        monkeypatch.setattr(bed, name, lambda *_: None)
    monkeypatch.setattr(testbed, "_mosquitto", lambda: "mosquitto")
    monkeypatch.setattr(testbed, "make_groups", lambda board, name: [tmp_path / name])
    bench = Bench({"east": (1,), "west": (0, 2)}, {2: Path("/srv/my data.npz")})
    try:
        bed.start_nodes(3, bench=bench, board="a board", network="20mbit 15ms")
        configs = {client: option(started[f"SuperNode {client}"][0], "--node-config") for client in range(3)}
        assert configs[0] == "partition-id=0 num-partitions=3"
        assert configs[2] == "partition-id=2 num-partitions=3 data='/srv/my data.npz'"
        computing = ("worker", "fork server", "SuperNode")
        threads = {env["OMP_NUM_THREADS"] for name, (_, env) in started.items() if name.startswith(computing)}
        assert threads == {"1"}  # as in `fedpfl run`
        sockets = [started[f"SuperNode {client}"][1]["FEDPFL_WORKER_SOCKET"] for client in range(3)]
        assert sockets[0] == sockets[2] != sockets[1]
        assert started["worker west"][1]["FEDPFL_WORKER_SOCKET"] == sockets[0]
        for device, clients in (("east", [1]), ("west", [0, 2])):
            relay = started[f"network {device}"][0]
            assert option(relay, "--network") == "20mbit 15ms"
            ways = [(f"bridge {device}", "--broker")] if mqtt else [(f"SuperNode {c}", "--superlink") for c in clients]
            assert {option(started[part][0], name) for part, name in ways} == {option(relay, "--listen")}
            group = str(tmp_path / f"{bed.folder.name}-{list(bench.devices).index(device)}")
            limited = {name for name, (command, _) in started.items() if group in command}
            names = {f"worker {device}", f"fork server {device}", *(f"SuperNode {client}" for client in clients)}
            assert limited == names | ({f"bridge {device}"} if mqtt else set())
    finally:
        shutil.rmtree(bed.folder)
