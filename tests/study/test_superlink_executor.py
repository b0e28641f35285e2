"""Grids on a bench: `flwr` by a command that stands for it, and a real testbed on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from grids import Silent, leave
from in_process import call_fedpfl
from support import FEW_SAMPLES, exported, needed, quick
from waiting import wait_until

import fedpfl
from fedpfl.api.comparisons import RunsFailed
from fedpfl.bench.testbed import Testbed
from fedpfl.client.device_model import load_model
from fedpfl.core.errors import ConfigError
from fedpfl.methods import methods
from fedpfl.results.export import trained_model
from fedpfl.study import superlink_executor
from fedpfl.study.execution import Execution
from fedpfl.study.run_store import PlannedRun, State, Store, plan
from fedpfl.study.superlink_executor import SuperLinkExecutor

QUICK = {"method": "fedavg", "dataset": "digits", "num-clients": 3, "num-server-rounds": 2}
# Notes each of its commands, and answers from the files `nodes` and `status-ID`; a run's number follows from how many
# there were.
FLWR = """\
import json, os, pathlib, sys
here, words = pathlib.Path(os.environ["FAKE_FLWR"]), sys.argv[1:]
before = (here / "log").read_text().splitlines() if (here / "log").exists() else []
with (here / "log").open("a") as log:
    log.write(json.dumps(words) + "\\n")
answer = {"success": True}
if words[0] == "supernode":
    answer["nodes"] = [{"status": "online", "node-id": "1"}] * int((here / "nodes").read_text())
elif words[0] == "run":
    answer["run-id"] = str(sum(json.loads(line)[0] == "run" for line in before))
elif words[0] == "ls":
    status = here / f"status-{words[words.index('--run-id') + 1]}"
    answer = {"success": True, "runs": [{"status": status.read_text()}]} if status.exists() else \\
        {"success": False, "error-message": "Run 7 not found while listing runs"}
else:
    print("ERROR: fedpfl: a board has melted")
    raise SystemExit
print(json.dumps(answer))
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "out")


@pytest.fixture
def flwr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put what stands for `flwr` in the place of Flower's command; return the folder of its files."""
    folder = tmp_path / "flower"
    folder.mkdir()
    command = folder / "flwr"
    command.write_text(f"#!{sys.executable} -S\n{FLWR}")
    command.chmod(0o755)
    (folder / "nodes").write_text("3")
    monkeypatch.setenv("FAKE_FLWR", str(folder))
    monkeypatch.setattr("fedpfl.bench.superlink.script", lambda name: str(folder / name))
    monkeypatch.setattr(superlink_executor, "ASK_SECONDS", 0.0)
    return folder


def commands(flwr: Path, word: str) -> list[list[str]]:
    lines = [json.loads(line) for line in (flwr / "log").read_text().splitlines()]
    return [command for command in lines if command[0] == word]


def play(runs: list[PlannedRun], store: Store) -> dict[str, State]:
    on_bench = SuperLinkExecutor("bench")
    on_bench.require(runs)
    return Execution(runs, store, on_bench, 0.05).run(Silent())


def settings_of(store: Store, run: PlannedRun) -> str:
    return (store.cell(run) / "bench.toml").read_text()


def test_runs_are_submitted_one_after_the_other(store: Store, flwr: Path) -> None:
    runs = [plan({**QUICK, "learning-rate": rate}, 1) for rate in (0.1, 0.2)]
    for number in range(len(runs)):
        (flwr / f"status-{number}").write_text("finished:completed")
    states = play(runs, store)
    submitted = commands(flwr, "run")
    assert [command[2] for command in submitted] == ["bench", "bench"]
    assert [Path(command[1]).is_dir() for command in submitted] == [True, True]
    # Nothing is told as finished that has no results here.
    assert set(states.values()) == {State.FAILED}
    assert "run this command on the server's machine, as its user" in store.reason(runs[0])


def test_a_run_that_goes_on_is_followed_and_not_submitted_again(store: Store, flwr: Path) -> None:
    run = plan(QUICK, 1)
    store.cell(run).mkdir(parents=True)
    (store.cell(run) / "flower.json").write_text('{"id": "5"}\n')
    (flwr / "status-5").write_text("running")
    job = SuperLinkExecutor("bench")(run, store, None)
    assert job.outcome() is None
    assert not job.interrupt()
    leave(store.folder(run).path, run, 2)
    (store.folder(run).path / "summary.md").touch()
    (flwr / "status-5").write_text("finished:completed")
    assert job.outcome() == {"status": "finished:completed", "error": None}
    assert commands(flwr, "run") == []


def test_a_run_that_was_lost_is_resumed(store: Store, flwr: Path) -> None:
    run = plan(QUICK, 1)
    store.cell(run).mkdir(parents=True)
    (store.cell(run) / "flower.json").write_text('{"id": "7"}\n')
    SuperLinkExecutor("bench")(run, store, None)
    assert "resume = false" in settings_of(store, run)
    leave(store.folder(run).path, run, 1)
    (flwr / "status-0").write_text("finished:failed")
    SuperLinkExecutor("bench")(run, store, None)
    assert "resume = true" in settings_of(store, run)
    assert f'run-name = "{run.name}"' in settings_of(store, run)
    assert 'state-dir = "~/.fedpfl/state"' in settings_of(store, run)
    assert len(commands(flwr, "run")) == 2


def test_why_a_run_failed_is_told(store: Store, flwr: Path) -> None:
    run = plan(QUICK, 1)
    (flwr / "status-0").write_text("finished:failed")
    assert play([run], store) == {run.name: State.FAILED}
    assert store.reason(run) == "a board has melted"


def test_a_comparison_of_data_that_only_devices_have_names_no_partitioner(tmp_path: Path, flwr: Path) -> None:
    for number in range(2):
        (flwr / f"status-{number}").write_text("finished:completed")
    with pytest.raises(RunsFailed) as failed:
        fedpfl.compare(
            "local", "fedavg", seeds=1, executor="flower", federation="bench", output_dir=tmp_path / "out", quiet=True,
            dataset="npz", num_classes=10, num_clients=3,
        )  # fmt: skip
    assert failed.value.result.tables[0].title.startswith("local, fedavg on npz (3 clients)")


@pytest.mark.parametrize(("settings", "more", "message"), [
    ({"num-clients": 6}, {}, "num-clients = 6: 3 SuperNodes are online at 'bench', at least 4 are needed"),
    ({"num-clients": 4, "min-clients": 4}, {}, "num-clients = 4: 3 SuperNodes are online at 'bench', at least 4 are"),
    ({"new-clients": 0.4}, {"measured": ["new-clients:local-train"]}, "which stay on the devices"),
    ({}, {"generate": ("make.py",)}, "first makes data, which the devices would not have"),
])  # fmt: skip
def test_what_devices_cannot_do_is_refused_before_the_first_run(store, flwr, settings, more, message) -> None:
    with pytest.raises(ConfigError, match=message):
        play([plan(QUICK, 1), plan({**QUICK, **settings}, 1, **more)], store)
    assert commands(flwr, "run") == []
    (flwr / "nodes").unlink()
    with pytest.raises(ConfigError, match="federation = 'bench': `flwr supernode` failed: "):
        play([plan(QUICK, 1)], store)


@pytest.mark.parametrize(("options", "message"), [
    (["--executor", "flower"], "federation = ''"),
    (["--federation", "bench"], "federation = 'bench': does nothing without --executor flower"),
    (["--executor", "flower", "--federation", "bench", "--jobs", "2"], "jobs = 2: must be 1 with --executor flower"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    done = call_fedpfl("sweep", "--seeds", "2", "--output-dir", str(tmp_path), *options)
    assert message in str(done.exception) + done.output


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.xdist_group("flower")
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc")
def test_runs_on_a_bench_have_the_bits_of_the_simulation(tmp_path: Path, store: Store, monkeypatch) -> None:
    small = {**QUICK, "num-clients": 2, "partitioner": "dirichlet-client", "train-samples": 64, "test-samples": 32,
             "num-server-rounds": 1, "local-epochs": 1, "threads": 1}  # fmt: skip
    pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in small.items() if key != "method")
    options = ["--seeds", "1", "--output-dir", str(store.root), "--executor", "flower", "--federation", "fedpfl"]
    one, *two = (
        plan({**small, "method": method}, seed) for method, seed in (("fedper", 1), ("fedavg", 2), ("fedper", 2))
    )
    monkeypatch.chdir(tmp_path)  # not an app: devices get the installed package
    with Testbed(tmp_path / "keys", database=False) as bed:
        bed.start_nodes(2)
        for name, value in bed._environment.items():
            monkeypatch.setenv(name, value)
        wait_until(lambda: len(SuperLinkExecutor("fedpfl").online()) == 2, hint=lambda: bed.log(None), seconds=300)
        arguments = ["sweep", "--grid", "method=fedper", "-c", pairs, *options, "--quiet"]
        # Killed during the run, which goes on; the same command follows it.
        program = "from fedpfl.cli import main; main()"
        killed = subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE, text=True)
        note = store.cell(one) / "flower.json"
        wait_until(note.is_file, lambda: killed.poll() is None, lambda: killed.communicate()[1], seconds=300)
        killed.kill()
        killed.communicate()
        submitted = note.read_text()
        done = call_fedpfl(*arguments)
        assert done.exit_code == 0, done.output
        assert note.read_text() == submitted
        # Two owners at once: each device works on the messages of both, one after the other.
        states = Execution(two, store, SuperLinkExecutor("fedpfl"), 0.3).run(Silent(), jobs=2)
    assert set(states.values()) == {State.FINISHED}, [store.reason(run) for run in two]
    for run in [one, *two]:
        simulated = exported(tmp_path / run.name, 2, dict(run.settings)).path
        there = store.folder(run).path
        assert (there / "global.safetensors").read_bytes() == (simulated / "global.safetensors").read_bytes()
        assert store.measure(run, "personalised-last") is not None


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin") is None, reason="no mosquitto")
@pytest.mark.parametrize("mqtt", [False, True], ids=["http", "mqtt"])
def test_devices_keep_the_models_that_a_simulation_exports(elsewhere: Path, store: Store, monkeypatch, mqtt) -> None:
    few = {key.replace("_", "-"): value for key, value in FEW_SAMPLES.items()}
    small = {**QUICK, **few, "num-clients": 2, "local-epochs": 2, "threads": 1, "device-models": "always"}
    runs = {}
    for method in methods():
        options = {key.replace("_", "-"): value for key, value in quick(method).items()}
        runs[method] = plan({**small, **needed(method), **options, "method": method}, 1)
    with Testbed(elsewhere / "keys", mqtt, database=False) as bed:
        bed.start_nodes(2, devices=2)
        for name, value in bed._environment.items():
            monkeypatch.setenv(name, value)
        wait_until(lambda: len(SuperLinkExecutor("fedpfl").online()) == 2, hint=lambda: bed.log(None), seconds=300)
        states = Execution(list(runs.values()), store, SuperLinkExecutor("fedpfl"), 0.3).run(Silent(), jobs=1)
    assert set(states.values()) == {State.FINISHED}, [store.reason(run) for run in runs.values()]
    plain = set()
    for method, run in runs.items():
        key = store.folder(run).task()["state_key"]
        folders = [elsewhere / ".fedpfl" / "state" / key / f"client-{client:05d}" / "model" for client in range(2)]
        models = [folder for folder in folders if (folder / "round-000002.safetensors").is_file()]
        # Others write a program. And flexlora's export has the largest rank of all clients' adapters.
        if not models or method == "flexlora":
            assert all(
                json.loads((folder / "round-000002.json").read_text())["why"] for folder in folders if not models
            )
            continue
        plain.add(method)
        simulated = exported(elsewhere / method, 2, dict(run.settings))
        weights = [trained_model(simulated, client).state_dict() for client in range(2)]
        for client, folder in enumerate(models):
            arrays = load_model(folder).module.state_dict()
            assert arrays.keys() == weights[client].keys(), method
            assert all(torch.equal(arrays[name], weights[client][name]) for name in arrays), method
    assert len(plain) > 30, sorted(plain)
