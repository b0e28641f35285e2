"""`fedpfl up` with real SuperLink, SuperNodes and workers: the same bits as a simulation, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from deployment_parts import SECONDS, SETTINGS, disturbed, needs_mosquitto, wait_for
from support import exported

from fedpfl.client.device_model import load_model
from fedpfl.launch.credentials import prepare
from fedpfl.launch.superlink import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc"),
]


FIRST = f"{SETTINGS} num-server-rounds=2"
BENCH = """
server: {hosts: {laptop: }, vars: &all {fedpfl_address: 10.0.0.1, fedpfl_network: 10.0.0.0/24, fedpfl_bundle: none}}
devices:
  vars: *all
  hosts: {nano-1: {fedpfl_clients: [2]}, nano-2: {fedpfl_clients: [0, 1]}}
"""
REFUSED = "Failed to activate SuperNode."


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The same run in this process; that Flower's simulation gives these bits, too, is tested with `fedpfl run`."""
    return exported(tmp_path_factory.mktemp("simulated"), 3, tomllib.loads(FIRST.replace(" ", "\n"))).path


@pytest.mark.parametrize("transport", ["http", pytest.param("mqtt", marks=needs_mosquitto)])
def test_simulation_and_devices_give_the_same_bits(home, simulated, transport):
    arguments = ("--num-supernodes", "3", "--keep-log")
    if transport == "mqtt":  # as an inventory has it, and on a way that is not a loopback's
        (home.path / "bench.yml").write_text(BENCH)
        arguments = ("--inventory", str(home.path / "bench.yml"), "--network", "200mbit 2ms", "--keep-log")
    process = home.start("up", *arguments, "-c", f'{FIRST} run-name="devices"', "--json")
    if transport == "http":
        intruder_is_refused(home, process)
    outcome = home.outcome(process)
    assert (outcome["status"], outcome["rounds"]) == ("finished:completed", 2)
    devices = home.runs / "devices"
    for name in ("global.safetensors", *(f"personal/client-{client:05d}.safetensors" for client in range(3))):
        assert (devices / name).read_bytes() == (simulated / name).read_bytes(), name
    for client in range(3):  # each device has put its own model together
        model = next((home.path / ".fedpfl" / "state").glob(f"*/client-{client:05d}/model"))
        exported = devices / "personal" / f"client-{client:05d}.safetensors"
        assert (model / "round-000002.safetensors").read_bytes() == exported.read_bytes()
        assert load_model(model).about["client"] == client
    log = (devices / "flower.log").read_text()
    # One query, two trainings and two tests of each client; none was answered by the ClientApp's own process.
    assert log.count("worker.sock is available") == 3 * 5
    assert "this process handles the request" not in log
    keys = home.path / ".fedpfl" / "testbed"
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert all(stat.S_IMODE((keys / "nodes" / f"node-00{n}").stat().st_mode) == 0o600 for n in range(3))


def test_a_nano_and_an_orin_train_models_of_their_own_in_one_run(home, tmp_path):
    (home.path / "bench.yml").write_text(BENCH.replace("[2]}", "[2], fedpfl_model: mlp}"))
    settings = f'{SETTINGS} num-server-rounds=2 method="lg-fedavg" model="mlp-200"'
    up = ("up", "--inventory", str(home.path / "bench.yml"), "--transport", "http")
    home.carry_out(*up, "-c", f'{settings} run-name="mixed"')
    same = tomllib.loads(f'{settings} client-models="2:mlp"'.replace(" ", "\n"))
    simulated = exported(tmp_path / "simulated", 3, {**same, "num-clients": 3}).path
    names = [f"personal/client-{client:05d}.safetensors" for client in range(3)]
    found = [(home.runs / "mixed" / name).read_bytes() for name in names]
    assert found == [(simulated / name).read_bytes() for name in names]
    assert len(found[0]) == len(found[1]) != len(found[2])
    assert json.loads((home.runs / "mixed" / "task.json").read_text())["models"] == {"2": "mlp"}


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
    assert REFUSED in log.read_text()


def test_supernodes_with_their_data_path_alone_take_part(home):
    rng, sizes = np.random.default_rng(0), (40, 50, 60)
    for client, size in enumerate(sizes):
        x = rng.integers(0, 255, (size, 8, 8), dtype=np.uint8)
        np.savez(home.path / f"own-{client}.npz", x=x, y=np.arange(size) % 3)
    own = {client: str(home.path / f"own-{client}.npz") for client in range(3)}
    (home.path / "bench.yml").write_text(BENCH.replace("bundle: none", f"bundle: none, fedpfl_client_data: {own}"))
    settings = 'dataset="npz" num-classes=3 method="fedper" threads=1 num-server-rounds=2 run-name="paths"'
    home.carry_out(
        "up", "--inventory", str(home.path / "bench.yml"), "--transport", "http", "-c",
        f'{settings} state-dir="{home.path / "state"}"', **disturbed("numbers"),
    )  # fmt: skip
    lines = [json.loads(line) for line in (home.runs / "paths" / "metrics.jsonl").read_text().splitlines()]
    assert [line["clients"] for line in lines] == [[0, 1, 2]] * 2
    # Only a node that was given no number stores the one that the server gave it.
    stored = [json.loads(path.read_text())["client"] for path in (home.path / "state").rglob("number-*")]
    assert sorted(stored) == [0, 1, 2]


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


@pytest.mark.parametrize("transport", ["http", pytest.param("mqtt", marks=[needs_mosquitto, pytest.mark.faults])])
def test_after_the_end_a_new_device_makes_its_model_and_another_run_goes_on(home, transport):
    both = 'method="fedper" new-clients=0.34 num-clients=3'
    home.carry_out("up", "-c", f'{FIRST} {both} run-name="first"')
    home.carry_out("up", "--transport", transport, "--resume", "first", "-c", 'personalise="local-train"')
    found = json.loads((home.runs / "first" / "personalised.jsonl").read_text())
    (new,) = found["new"]["each"]
    model = next((home.path / ".fedpfl" / "state").glob(f"first-*/client-{int(new):05d}/model"))
    about = load_model(model).about
    assert about["tested"]["correct"] / about["tested"]["samples"] == found["new"]["each"][new]
    process = home.start("personalise", "first", "--json")  # here, on the same arrays
    assert json.loads(process.communicate(timeout=SECONDS)[0])["each"] == found["new"]["each"]
    for name, command in (("here", "run"), ("there", "up")):
        home.carry_out(command, "--continue", "first", "-c", f'run-name="{name}" num-server-rounds=1')
    weights = [(home.runs / name / "global.safetensors").read_bytes() for name in ("here", "there")]
    assert weights[0] == weights[1]
