"""`flwr run .` on a Ray cluster: two nodes, here on one machine, whose clients share a folder for their state."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flower_parts import SECONDS, TOO_BUSY, TRIES, Flower
from processes import marked
from support import exported
from waiting import wait_until

from fedpfl.bench.superlink import free_port, script
from fedpfl.results.export import export_personal

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]

HEAD, OTHER = MACHINES = ("127.0.0.1", "127.0.0.2")
CLIENTS = 4
SETTINGS = {
    "num-server-rounds": 3, "fraction-train": 0.5, "local-epochs": 2, "feddecomp-lora-epochs": 1, "batch-size": 32,
    "threads": 1, "seed": 3,
}  # fmt: skip


@contextlib.contextmanager
def ray_node(flower: Flower, machine: str, ready: Callable[[], bool], *arguments: str) -> Iterator[None]:
    """Run `ray start` as it would run on a machine with this address: with files and an environment of its own."""
    folder = flower.folder / machine
    folder.mkdir()
    environment = {name: value for name, value in flower.environment.items() if not name.startswith("FLWR_")}
    environment |= {"RAY_TMPDIR": str(folder), "FEDPFL_TEST_MACHINE": machine}
    del environment["RAY_ADDRESS"]
    command = [
        script("ray"), "start", "--block", "--node-ip-address", machine, "--num-cpus", "1", "--disable-usage-stats",
        "--object-store-memory", str(200 * 2**20), "--temp-dir", folder, *arguments,
    ]  # fmt: skip
    for attempt in range(TRIES):
        log = folder / f"start-{attempt}.log"
        with log.open("wb") as out:
            node = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)

        def settled(node: subprocess.Popen[bytes] = node) -> bool:
            return node.poll() is not None or ready()

        wait_until(settled, hint=log.read_text, seconds=SECONDS)
        if node.returncode is None or TOO_BUSY not in log.read_text():
            break
    assert node.returncode is None, log.read_text()
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(node.pid, signal.SIGTERM)
        node.wait(SECONDS)


def cpus(flower: Flower, address: str) -> float:
    """Return how many CPUs the cluster has, or 0 if there is none: Flower counts them once."""
    done = subprocess.run(
        [script("ray"), "status", "--address", address], env=flower.environment, capture_output=True, text=True
    )
    match = re.search(r"/([0-9.]+) CPU", done.stdout)
    return float(match.group(1)) if match else 0.0


def actors() -> dict[int, str]:
    """Return the machine of each process that plays clients and has torch loaded, which it does for the first one."""
    raylets = {machine: set(marked(f"FEDPFL_TEST_MACHINE={machine}")) for machine in MACHINES}
    machines = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if not (process / "cmdline").read_bytes().startswith(b"ray::ClientAppActor"):
                continue
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if "libtorch" in (process / "maps").read_text():
                machines.update({int(process.name): machine for machine in MACHINES if parent in raylets[machine]})
        except OSError:
            continue
    return machines


def test_a_cluster_of_two_nodes_plays_the_clients_to_the_same_bits(tmp_path):
    port, shared, played = free_port(), tmp_path / "shared", {}
    address = f"{HEAD}:{port}"
    head = ("--head", "--port", str(port), "--include-dashboard", "false")
    with (
        Flower(RAY_ADDRESS=address) as flower,
        ray_node(flower, HEAD, lambda: cpus(flower, address) == 1, *head),
        ray_node(flower, OTHER, lambda: cpus(flower, address) == 2, "--address", address),
    ):
        nodes = ("--federation-config", f"num-supernodes={CLIENTS} client-resources-num-cpus=1")
        places = (shared / "runs", shared / "state")
        folder = flower.run(flower.app(), *places, SETTINGS, *nodes, meanwhile=lambda: played.update(actors()))
    assert set(played.values()) == set(MACHINES)
    whole = exported(tmp_path / "whole", CLIENTS, SETTINGS)
    export_personal(folder)
    for name in ("global.safetensors", *(f"personal/client-{client:05d}.safetensors" for client in range(CLIENTS))):
        assert (folder.path / name).read_bytes() == (whole.path / name).read_bytes(), name
