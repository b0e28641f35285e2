"""A testbed is disturbed in the middle of a round: it goes on, and its result is an undisturbed run's."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import time
from pathlib import Path

import pytest
from deployment_parts import SECONDS, disturbed, needs_mosquitto, wait_for
from support import simulate

from fedpfl.bench import credentials

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc"),
]

# A client trains for seconds, one after the other.
WORK = {"method": "fedavg", "local_epochs": 150, "num_server_rounds": 2, "threads": 1}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = simulate(tmp_path_factory.mktemp("undisturbed"), 3, **WORK, run_name="run")
    return folder.path


@pytest.mark.parametrize(("transport", "victim"), [
    pytest.param("http", ("flower-supernode", "partition-id=1"), id="supernode"),
    pytest.param("http", ("fedpfl.bench.device.worker",), id="worker"),
    pytest.param("http", ("fedpfl.bench.forkserver",), id="forkserver"),
    pytest.param("http", ("flower-superlink",), id="superlink"),
    pytest.param("mqtt", ("cli.bridge", " server "), id="bridge-server", marks=needs_mosquitto),
    pytest.param("mqtt", ("cli.bridge", " device "), id="bridge-device", marks=needs_mosquitto),
    pytest.param("mqtt", ("mosquitto -c ",), id="broker", marks=needs_mosquitto),
])  # fmt: skip
def test_a_part_is_killed(home, undisturbed, transport, victim):
    process = start(home, undisturbed, transport)
    home.kill(*victim)
    ends_like(undisturbed, home, process)


@pytest.mark.parametrize("victim", [("flower-supernode", "partition-id=1"), ("fedpfl.bench.device.worker",)])
def test_a_part_stands_still_for_a_while(home, undisturbed, victim):
    process = start(home, undisturbed, "http")
    home.kill(*victim, number=signal.SIGSTOP)
    time.sleep(12)  # the fault itself
    home.kill(*victim, number=signal.SIGCONT)
    ends_like(undisturbed, home, process)


@needs_mosquitto
def test_the_broker_is_killed_and_comes_back_after_half_a_minute(home, undisturbed):
    # What the testbed starts again at once waits here until it may.
    away, program = home.path / "away", home.path / "programs" / "mosquitto"
    program.parent.mkdir()
    real = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    program.write_text(f'#!/bin/sh\nwhile [ -e "{away}" ]; do sleep 0.2; done\nexec {real} "$@"\n')
    program.chmod(0o755)
    process = start(home, undisturbed, "mqtt", PATH=f"{program.parent}:{os.environ['PATH']}")
    away.touch()
    home.kill(f"{real} -c ")
    time.sleep(30)  # the fault itself
    assert not [line for line in home.processes().values() if line.startswith(f"{real} ")]
    away.unlink()
    ends_like(undisturbed, home, process)


@needs_mosquitto
def test_messages_are_lost(home, undisturbed):
    ends_like(undisturbed, home, start(home, undisturbed, "mqtt", **disturbed("messages")))


def test_answers_do_not_reach_the_supernodes(home, undisturbed):
    process = start(home, undisturbed, "http", **disturbed("answers"))
    for path in ("pull-messages", "push-messages"):
        wait_for(lambda path=path: f"the answer to /v1/fleet/{path} is lost" in home.log("SuperNode"), process)
    ends_like(undisturbed, home, process)


@pytest.mark.parametrize(("clock", "seconds"), [("device clock", 7200), ("device clock", -7200), ("clock", -7200)])
def test_a_clock_jumps(home, undisturbed, clock, seconds):
    place = home.path / "ahead"
    process = start(home, undisturbed, "http", **disturbed(clock), FEDPFL_TEST_CLOCK=str(place))
    place.write_text(str(seconds))
    if clock == "device clock":  # the SuperLink refuses such signatures, until somebody sets the clock
        nodes = set(home.find("flower-supernode"))
        wait_for(lambda: not nodes & set(home.find("flower-supernode")), process)
        place.unlink()
    ends_like(undisturbed, home, process)


def test_a_run_is_resumed_that_ended_because_the_server_s_clock_was_set(home, undisturbed):
    """To Flower the server was silent for two hours; a machine that slept is the same."""
    place = home.path / "ahead"
    process = start(home, undisturbed, "http", **disturbed("clock"), FEDPFL_TEST_CLOCK=str(place))
    place.write_text("7200")
    out, err = process.communicate(timeout=SECONDS)
    resume = f"fedpfl up --resume {home.runs / 'run'}"
    assert (process.returncode, json.loads(out)["rounds"]) == (1, 1)
    assert f"this machine slept, or its clock was set; resume the run: {resume} (log: " in err
    ends_like(undisturbed, home, home.start(*resume.split()[1:], "--json", "--transport", "http"))


@needs_mosquitto
def test_certificates_are_renewed_without_a_new_authority_while_a_run_goes_on(home, undisturbed, monkeypatch):
    """SuperNodes and bridges keep the old ``ca.pem``, and servers have the new certificate once they start again."""
    process = start(home, undisturbed, "mqtt")
    keys = home.path / ".fedpfl" / "testbed"
    old = {name: (keys / name).read_bytes() for name in ("ca.pem", "server.pem", "server.key", "superexec.secret")}
    monkeypatch.setattr(credentials, "AUTHORITY_MIN_DAYS", credentials.AUTHORITY_DAYS)  # as years later
    (keys / "server.pem").unlink()
    credentials.prepare(keys, 3)
    changed = {name for name, content in old.items() if (keys / name).read_bytes() != content}
    assert changed == {"ca.pem", "server.pem", "server.key"}
    new = (keys / "server.pem").read_text()
    for parts, listens, number in SERVERS:
        pid = min(home.find(*parts))
        line = home.processes()[pid]
        settings = Path(line.split()[-1]).read_text() if parts[0].startswith("mosquitto") else line
        address = re.search(listens, settings).groupdict()
        assert certificate_of(**address) not in ("", new)  # a server has read its files when it was started
        os.kill(pid, number)
        wait_for(lambda address=address: certificate_of(**address) == new, process)
    ends_like(undisturbed, home, process)


# What devices connect to: its command line, where it says its address, and how it is ended.
SERVERS = [
    (("mosquitto -c ",), r"listener (?P<port>\d+) (?P<host>\S+)", signal.SIGTERM),
    (("cli.bridge", " device "), r"--listen (?P<host>\S+):(?P<port>\d+)", signal.SIGTERM),
    (("flower-superlink",), r"--host (?P<host>\S+) --port (?P<port>\d+)", signal.SIGKILL),
]


def certificate_of(host, port):
    try:
        return ssl.get_server_certificate((host, int(port)), timeout=5)
    except OSError:  # it is being started
        return ""


def start(home, undisturbed, transport, **environment):
    """Start the undisturbed run's experiment, and wait until a client has trained in round 2 and another does so."""
    settings = home.path / "settings.toml"
    settings.write_text((undisturbed / "config.toml").read_text())
    places = f'run-name="run" num-clients=3 output-dir="{home.runs}" state-dir="{home.path / "state"}" check-after=40.0'
    process = home.start("up", "--json", "--transport", transport, "-c", str(settings), "-c", places, **environment)
    wait_for(lambda: re.search("train of client ., round 2", home.log("worker")), process)
    return process


def ends_like(undisturbed, home, process):
    """Wait for the end: no client failed, and the bits are those of the undisturbed run."""
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    lines = [json.loads(line) for line in (home.runs / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("failed") for line in lines] == [None] * 2
    assert (home.runs / "run" / "global.safetensors").read_bytes() == (undisturbed / "global.safetensors").read_bytes()
