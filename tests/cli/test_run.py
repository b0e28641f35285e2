"""`fedpfl run` as users start it: outcome, exit code, debugging, and nothing left behind."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from in_process import call_fedpfl
from processes import marked
from support import exported
from waiting import wait_until

from fedpfl.cli.common import ending_signals, overrides
from fedpfl.results.run_folder import RunFolder

pytestmark = pytest.mark.slow

# Only bounds a hang.
SECONDS = 240
QUICK = 'local-epochs=2 threads=1 model="mlp" partitioner="dirichlet-client" train-samples=64 test-samples=32'


@pytest.fixture
def command(tmp_path):
    """Return what starts `fedpfl run` in an empty folder, with a mark in its environment that must go."""
    (tmp_path / "work").mkdir()
    environment = {**os.environ, "HOME": str(tmp_path), "FEDPFL_TEST_MARK": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    folders = f'output-dir="{tmp_path / "runs"}" state-dir="{tmp_path / "state"}"'
    parts = [sys.executable, "-c", "from fedpfl.cli import main; main()", "run", "-c", folders]
    yield parts, {"env": environment, "cwd": tmp_path / "work"}
    assert gone(tmp_path)


@pytest.fixture
def started(command):
    parts, how = command

    def start(*arguments, **more):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*parts, *arguments], **how, **{**pipes, **more})

    return start


def gone(tmp_path):
    """Wait until no process of a test is left."""
    return wait_until(lambda: not marked(f"FEDPFL_TEST_MARK={tmp_path}"))


def endless(tmp_path, name="real"):
    return "--num-clients", "3", "--workers", "2", "-c", f'run-name="{name}" num-server-rounds=10000 {QUICK}'


def has_rounds(folder, run):
    return wait_until(lambda: any((folder.path / "checkpoint").glob("round-*")), lambda: run.poll() is None)


def test_an_interrupted_run_leaves_no_process_and_goes_on_to_the_same_bits(command, started, tmp_path):
    run = started("--json", *endless(tmp_path))
    folder = RunFolder(tmp_path / "runs" / "real")
    has_rounds(folder, run)
    # A second run at the same time, in the same folders.
    places, more = command[0][-1], f'run-name="other" num-server-rounds=2 {QUICK}'
    other = call_fedpfl("run", "-q", "--workers", "0", "--num-clients", "3", "-c", places, "-c", more)
    assert other.exit_code == 0, other.output
    run.send_signal(signal.SIGTERM)
    out, err = run.communicate(timeout=SECONDS)
    assert run.returncode == 130, err
    assert json.loads(out)["status"] == "interrupted"
    assert "--resume" in err
    assert gone(tmp_path)

    rounds = folder.metrics()[-1]["round"] + 1
    run = started("--json", "--resume", "real", "-c", f"num-server-rounds={rounds}")
    out, err = run.communicate(timeout=SECONDS)
    assert run.returncode == 0, err
    assert f"round {rounds}/{rounds}" in err
    answer = json.loads(out)
    assert (answer["run"], answer["status"], answer["error"]) == ("real", "finished:completed", None)
    assert (answer["folder"], answer["rounds"]) == (str(folder.path), rounds)
    assert 0 < answer["personalised_accuracy"] <= 1
    assert answer["bytes_up"] > 0
    names = {path.name for path in folder.path.iterdir()}
    assert names >= {"config.toml", "task.json", "metrics.jsonl", "summary.md", "global.safetensors"}

    # Nobody interrupted these, and nothing ran beside them.
    settings = overrides([QUICK])
    whole = exported(tmp_path / "whole", 3, {**settings, "num-server-rounds": rounds})
    assert len(list((folder.path / "personal").glob("client-*.safetensors"))) == 3
    for name in ("global.safetensors", *(f"personal/client-{client:05d}.safetensors" for client in range(3))):
        assert (folder.path / name).read_bytes() == (whole.path / name).read_bytes(), name
    alone = exported(tmp_path / "alone", 3, {**settings, "num-server-rounds": 2})
    assert all(
        (tmp_path / "runs" / "other" / name).read_bytes() == (alone.path / name).read_bytes()
        for name in ("global.safetensors", "personal/client-00002.safetensors")
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_program_that_is_asked_to_end_unwinds_as_by_ctrl_c(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), ending_signals():
        signal.raise_signal(number)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_a_run_however_it_ends(started, tmp_path, number):
    run = started(*endless(tmp_path), start_new_session=True)
    folder = RunFolder(tmp_path / "runs" / "real")
    has_rounds(folder, run)
    assert len(marked(f"FEDPFL_TEST_MARK={tmp_path}")) == 3
    if number == signal.SIGINT:
        os.killpg(run.pid, number)  # as a terminal does
    else:
        run.send_signal(number)
    run.communicate(timeout=SECONDS)
    assert gone(tmp_path)
    assert not list((tmp_path / "state").rglob("*.part"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('dataset="npz" data="{}/broken.npz"', "broken.npz"),
        ('dataset="npz" data="{}/missing.npz"', "missing.npz"),
        ('dataset="npz" data="{}/nan.npz"', "nan.npz"),
        ("num-clients=5000", "5000"),
        ("seed=-1", "seed"),
        ('model="transformer"', "transformer"),
        ('initial-weights="{}/broken.npz"', "broken.npz"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_started(elsewhere, tmp_path, settings, message):
    (tmp_path / "broken.npz").write_bytes(b"not an archive")
    np.savez(tmp_path / "nan.npz", x=np.full((100, 4), np.nan, np.float32), y=np.arange(100) % 2)
    folders = f'output-dir="{tmp_path / "runs"}" state-dir="{tmp_path / "state"}"'
    run = call_fedpfl("run", "-c", folders, "--json", "-c", settings.format(tmp_path))
    assert run.exit_code in (1, 2)
    answer = json.loads(run.stdout)
    assert answer["status"] in ("invalid", "finished:failed")
    assert message in answer["error"]
    assert run.stderr.splitlines()[-1] == f"error: {answer['error']}"
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_breakpoint_in_a_user_s_model_stops_first_in_the_first_batch_and_pdb_is_left_in_one_line(command):
    parts, how = command
    (how["cwd"] / "own.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.out = nn.Linear(64, 10)\n\n    def forward(self, x):\n        breakpoint()\n"
        "        return self.out(x.flatten(1))\n"
    )
    settings = 'model="own:Net" method="fedavg" num-server-rounds=1 batch-size=7'
    done = subprocess.run(
        [*parts, "--workers", "0", "--quiet", "--num-clients", "2", "-c", QUICK, "-c", settings],
        input="p 'stop', tuple(x.shape)\nu 7\np 'loop', tuple(batch.y.shape), len(params)\nc\nq\n",
        capture_output=True, text=True, timeout=SECONDS, **how,
    )  # fmt: skip
    assert re.findall(r"\('stop', \((\d+), 1, 8, 8\)\)", done.stdout) == ["7"] and done.stdout.count("(Pdb)") == 5
    assert "('loop', (7,), 2)" in done.stdout, "the tutorial says that u 7 leads from forward to the loop over batches"
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
