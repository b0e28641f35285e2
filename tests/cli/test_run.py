"""`fedpfl run` with the real Flower: outcome, exit code, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import marked
from support import exported

from fedpfl.results import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("flower")]

SECONDS = 240


@pytest.fixture
def started(tmp_path):
    """Start `fedpfl run` in an empty folder, with a mark in its environment that nothing may have at the end."""
    (tmp_path / "work").mkdir()
    mark = f"FEDPFL_TEST_MARK={tmp_path}"
    environment = {**os.environ, "HOME": str(tmp_path), "FEDPFL_TEST_MARK": str(tmp_path), "PYTHONNOUSERSITE": "1"}

    def start(*arguments):
        folders = f'output-dir="{tmp_path / "runs"}" state-dir="{tmp_path / "state"}"'
        command = [sys.executable, "-c", "from fedpfl.cli import main; main()", "run", "-c", folders, *arguments]
        return subprocess.Popen(
            command, env=environment, cwd=tmp_path / "work", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    yield start
    deadline = time.monotonic() + 5
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == {}


def test_an_interrupted_run_leaves_no_process_and_goes_on_to_the_same_bits(started, tmp_path):
    mark = f"FEDPFL_TEST_MARK={tmp_path}"
    settings = {"local-epochs": 1, "feddecomp-lora-epochs": 1, "threads": 1}
    given = " ".join(f"{key}={value}" for key, value in settings.items())
    run = started("--json", "--num-supernodes", "3", "-c", f'run-name="real" num-server-rounds=10000 {given}')
    folder = RunFolder(tmp_path / "runs" / "real")
    deadline = time.monotonic() + SECONDS
    while not (folder.path / "metrics.jsonl").is_file() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert json.loads(out)["status"] == "interrupted"
    assert "--resume" in err
    assert marked(mark) == {}

    rounds = folder.metrics()[-1]["round"] + 1
    run = started("--json", "--keep-log", "--resume", "real", "-c", f"num-server-rounds={rounds}")
    out, err = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, err
    assert f"round {rounds}/{rounds}" in err
    answer = json.loads(out)
    assert (answer["run"], answer["status"], answer["error"]) == ("real", "finished:completed", None)
    assert (answer["folder"], answer["rounds"]) == (str(folder.path), rounds)
    assert 0 < answer["personalised_accuracy"] <= 1
    assert answer["bytes_up"] > 0
    names = {path.name for path in folder.path.iterdir()}
    assert names >= {"config.toml", "task.json", "metrics.jsonl", "summary.md", "global.safetensors", "flower.log"}

    # Nobody interrupted this one, and no Flower is under it.
    whole = exported(tmp_path / "whole", 3, {**settings, "num-server-rounds": rounds})
    assert len(list((folder.path / "personal").iterdir())) == 3
    for name in ("global.safetensors", *(f"personal/client-{client:05d}.safetensors" for client in range(3))):
        assert (folder.path / name).read_bytes() == (whole.path / name).read_bytes(), name


def test_a_run_that_fails_says_why(started, tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"not an archive")
    run = started("--json", "--num-supernodes", "2", "-c", f'dataset="npz" data="{tmp_path / "broken.npz"}"')
    out, err = run.communicate(timeout=SECONDS)
    assert run.returncode == 1
    answer = json.loads(out)
    assert answer["status"] == "finished:failed"
    assert "broken.npz" in answer["error"]
    assert err.splitlines()[-1] == f"error: {answer['error']}"
    log = Path(re.search(r"\(log: (.*)\)", answer["error"]).group(1))
    assert "broken.npz" in log.read_text()
