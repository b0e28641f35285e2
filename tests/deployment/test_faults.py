"""Parts of a testbed are killed in the middle of a round: it goes on, and its result is an undisturbed run's."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from deployment_parts import SECONDS, wait_for
from support import simulate

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.xdist_group("flower"),
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc"),
]

# A client trains for a few seconds.
WORK = {"method": "fedavg", "local_epochs": 400, "num_server_rounds": 3, "threads": 1}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = simulate(tmp_path_factory.mktemp("undisturbed"), 3, **WORK, run_name="run")
    return folder.path


@pytest.mark.parametrize("victim", [
    ("flower-supernode", "partition-id=1"),
    ("fedpfl.worker",),
    ("fedpfl.forkserver",),
    ("flower-superlink",),
], ids=lambda words: words[0])  # fmt: skip
def test_the_run_goes_on(home, undisturbed, victim):
    settings = home.path / "settings.toml"
    settings.write_text((undisturbed / "config.toml").read_text())
    runs = home.path / ".fedpfl" / "runs"
    places = f'run-name="run" num-clients=3 output-dir="{runs}" state-dir="{home.path / "state"}" check-after=5.0'
    process = home.start("up", "--json", "-c", str(settings), "-c", places)
    metrics = runs / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.is_file() and metrics.read_text(), process)
    time.sleep(4)
    home.kill(*victim)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line.get("failed") for line in lines] == [None] * 3
    assert home.weights("run") == (undisturbed / "global.safetensors").read_bytes()
