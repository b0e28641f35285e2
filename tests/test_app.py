"""The app through Flower itself, as a user without the `fedpfl` command runs it: `flwr run .`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedpfl.results import RunFolder, outcome

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.fixture
def flower(tmp_path):
    """Environment in which `flwr` starts a local SuperLink of its own, stopped afterwards by its process group."""
    home = tmp_path / "flwr"
    env = {
        **os.environ,
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": free_port(),
        "FLWR_LOCAL_CONTROL_API_PORT": free_port(),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # Installing the dependencies once more for every run takes gigabytes; the README says what it costs.
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    yield env
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = f"FLWR_HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and int(process.name) != os.getpid():
            os.kill(int(process.name), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes to stop in /proc")
def test_flwr_run_trains_the_default_and_ends_finished_completed(tmp_path, flower):
    # A copy of what git tracks: the bundle must not depend on anything else that lies in a checkout.
    app = tmp_path / "app"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, app / name)
    settings = f'output-dir="{tmp_path}/runs" state-dir="{tmp_path}/state" run-name="default" num-server-rounds=2'
    done = subprocess.run(
        [BIN / "flwr", "run", ".", "--run-config", settings, "--format", "json", "--stream"],
        cwd=app, env=flower, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [BIN / "flwr", "ls", "--format", "json"], cwd=app, env=flower, capture_output=True, text=True, timeout=60
    )
    assert json.loads(listed.stdout)["runs"][0]["status"] == "finished:completed", done.stdout + done.stderr
    folder = RunFolder(tmp_path / "runs" / "default")
    assert outcome(folder)["rounds"] == 2
    # Flower's default is two virtual nodes, and num-clients = 0 takes as many as there are.
    assert folder.task()["clients"] == 2
    assert (folder.path / "global.safetensors").is_file()
