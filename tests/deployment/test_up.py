"""`fedpfl up` with real SuperLink, SuperNodes and workers: the same bits as a simulation, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deployment_parts import OWN_PARTS, SECONDS, SETTINGS, disturbed, needs_mosquitto, toml, wait_for
from support import exported

from fedpfl.bench.credentials import prepare
from fedpfl.bench.superlink import free_port
from fedpfl.client.device_model import load_model
from fedpfl.launch.new_project import TESTBED, make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc"),
]


BENCH = """
server: {hosts: {laptop: }, vars: &all {fedpfl_address: 10.0.0.1, fedpfl_network: 10.0.0.0/24, fedpfl_bundle: none}}
devices:
  vars: *all
  hosts: {nano-1: {fedpfl_clients: [2]}, nano-2: {fedpfl_clients: [0, 1]}}
"""


@needs_mosquitto
def test_an_app_s_own_method_on_the_bench_of_fedpfl_new_gives_the_bits_of_a_simulation_over_mqtt(home, app):
    make(home.path / "bench", TESTBED)
    inventory = home.path / "bench" / "inventory.yml"
    # The app makes its data itself.
    text = re.sub(r"(?m)^ *fedpfl_partitions: .*\n", "", inventory.read_text())
    inventory.write_text(text.replace("[0, 1]", "[0]").replace("[2, 3]", "[1]"))  # a quick one: a client a board
    # On a way that is not a loopback's; the workers know the app's files from the bundle alone.
    up = ("up", "--inventory", str(inventory), "--network", "200mbit 2ms", "--keep-log", "--json")
    process = home.start(*up, "-c", f'{toml(OWN_PARTS, " ")} num-clients=2 run-name="devices"')
    intruder_is_refused(home, process)
    home.outcome(process)
    require_bits_of_a_simulation(home, 2, OWN_PARTS)


def intruder_is_refused(home, process):
    """Start a SuperNode like one of the testbed's, but with a key that the SuperLink does not know."""
    wait_for(lambda: home.find("flower-supernode", "partition-id=1"), process)
    about = Path(f"/proc/{min(home.find('flower-supernode', 'partition-id=1'))}")
    command, environment = ((about / name).read_text().split("\0")[:-1] for name in ("cmdline", "environ"))
    command[command.index("--auth-supernode-private-key") + 1] = str(prepare(home.path / "own", 1).node_keys[0])
    command[command.index("--port") + 1] = str(free_port())
    environment = dict(line.split("=", 1) for line in environment) | {"FLWR_HOME": str(home.path / "own" / "flwr")}
    log = home.path / "intruder.log"
    with log.open("wb") as out:
        intruder = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        assert intruder.wait(SECONDS) != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(intruder.pid, signal.SIGKILL)  # its SuperExec
    assert "Failed to activate SuperNode." in log.read_text()


def require_bits_of_a_simulation(home, clients, settings):
    """See that the devices of a run of two rounds have its arrays, and that their workers answered everything.

    The other is a run in this process; that Flower's simulation gives these bits, too, is tested with `flwr run`.
    """
    devices = home.runs / "devices"
    simulated = exported(home.path / "simulated", clients, {**settings, "num-clients": clients}).path
    for name in ("global.safetensors", *(f"personal/client-{client:05d}.safetensors" for client in range(clients))):
        assert (devices / name).read_bytes() == (simulated / name).read_bytes(), name
    for client in range(clients):  # each device has put its own model together
        model = next((home.path / ".fedpfl" / "state").glob(f"*/client-{client:05d}/model"))
        exported_here = devices / "personal" / f"client-{client:05d}.safetensors"
        assert (model / "round-000002.safetensors").read_bytes() == exported_here.read_bytes()
        assert load_model(model).about["client"] == client
    log = (devices / "flower.log").read_text()
    # One query, two trainings and two tests of each client; none was answered by the ClientApp's own process.
    assert log.count("worker.sock is available") == clients * 5
    assert "this process handles the request" not in log


@pytest.mark.faults
def test_a_command_has_the_testbed_as_its_federation_and_its_exit_code_counts(home):
    (home.path / "bench.yml").write_text(BENCH)
    up = ("up", "--inventory", str(home.path / "bench.yml"), "--transport", "http", "--command")
    flwr = f"{Path(sys.executable).with_name('flwr')} supernode list fedpfl --format json"
    process = home.start(*up, f"sh -c '{flwr} > ../nodes.json; exit 3'")
    assert process.wait(SECONDS) == 3, process.communicate()
    nodes = json.loads((home.path / "nodes.json").read_text())["nodes"]
    assert [node["status"] for node in nodes] == ["online"] * 3
    process = home.start(*up, f"sh -c 'touch {home.path / 'begun'}; exec sleep 600'")
    wait_for((home.path / "begun").exists, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 130, process.communicate()


def test_what_is_said_for_a_run_is_refused_with_a_command(home):
    process = home.start("up", "--command", "true", "-c", "seed=2")
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 2
    assert "run-config = ['seed=2']: is for a single run; with --command put it into the command" in err


@pytest.mark.faults
def test_a_device_with_other_code_is_refused_in_words(home):
    process = home.start("up", "--json", "--num-supernodes", "1", "-c", SETTINGS, **disturbed("code"))
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, out + err
    assert "this device's worker runs other code" in json.loads(out)["error"]


@pytest.mark.faults
def test_a_run_that_fails_says_why(home):
    (home.path / "broken.npz").write_bytes(b"not an archive")
    settings = f'dataset="npz" data="{home.path / "broken.npz"}"'
    process = home.start("up", "--json", "--no-worker", "--num-supernodes", "1", "-c", settings)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    answer = json.loads(out)
    assert answer["status"] == "finished:failed"
    assert "broken.npz" in answer["error"]
    assert err.splitlines()[-1] == f"error: {answer['error']}"


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_testbed_leaves_no_process(home, number):
    process = home.start("up", "--num-supernodes", "2", "-c", 'run-name="long" num-server-rounds=10000')
    wait_for(lambda: sum("flower-supernode" in line for line in home.processes().values()) == 2, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == (130 if number == signal.SIGTERM else -signal.SIGKILL), err
    home.wait_until_empty()


@pytest.mark.thorough
def test_after_the_end_a_new_device_makes_its_model(home):
    first = f'{SETTINGS} num-server-rounds=2 method="fedper" new-clients=0.5 num-clients=2 run-name="first"'
    home.carry_out("run", "--workers", "0", "-c", first)
    home.carry_out("up", "--transport", "http", "--resume", "first", "-c", 'personalise="local-train"')
    scores = json.loads((home.runs / "first" / "personalised.jsonl").read_text())
    (new,) = scores["new"]["each"]
    model = next((home.path / ".fedpfl" / "state").glob(f"first-*/client-{int(new):05d}/model"))
    about = load_model(model).about
    assert about["tested"]["correct"] / about["tested"]["samples"] == scores["new"]["each"][new]
    process = home.start("personalise", "first", "--json")  # here, on the same arrays
    assert json.loads(process.communicate(timeout=SECONDS)[0])["each"] == scores["new"]["each"]
