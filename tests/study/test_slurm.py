"""Grids on a cluster: submitit's own executor for this machine, and Slurm's by commands that stand for Slurm's."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fake_jobs
import fake_slurm
import pytest
import submitit
from grids import Fake, Silent
from typer.testing import CliRunner, Result

from fedpfl.cli import app
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.study.cluster import Cluster, Task, minutes, slurm
from fedpfl.study.grid import Grid
from fedpfl.study.store import PlannedRun, State, Store, plan

HERE = Path(__file__).parent
QUICK = {"method": "fedavg", "dataset": "digits", "num-clients": 4, "num-server-rounds": 2}
LOOK = 0.05


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *sys.path]))  # jobs import what stands in the tests
    return Store(tmp_path / "out")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the commands that stand for Slurm's first in the path; return the folder of their jobs."""
    for name, value in fake_slurm.install(tmp_path, os.environ["PATH"]).items():
        monkeypatch.setenv(name, value)
    submitit.SlurmJob.watcher.clear()  # it knows jobs of other tests by the same numbers
    return tmp_path / "queue"


def on_slurm(store: Store, start: object = fake_jobs.quick, **options: object) -> Cluster:
    found = slurm(store, options)
    found._start = start
    return found


def play(runs: list[PlannedRun], store: Store, cluster: Cluster, jobs: int = 9) -> tuple[Silent, dict[str, State]]:
    heard = Silent()
    return heard, Grid(runs, store, cluster, LOOK).run(heard, jobs)


def runs(*rates: float) -> list[PlannedRun]:
    return [plan({**QUICK, "learning-rate": rate}, 1) for rate in rates]


@pytest.mark.slow
def test_a_job_runs_fedpfl_as_a_user_would(store: Store) -> None:
    settings = {**QUICK, "local-epochs": 1, "num-clients": 2}
    executor = submitit.LocalExecutor(store.root / "jobs")
    executor.update_parameters(timeout_min=9)
    good, bad = plan(settings, 1), plan({**settings, "dataset": "npz", "data": "/nowhere.npz"}, 1)
    _, states = play([good, bad], store, Cluster(executor, 1), jobs=1)
    assert states == {good.name: State.FINISHED, bad.name: State.FAILED}
    assert [line["round"] for line in store.folder(good).metrics()] == [1, 2]
    assert "/nowhere.npz" in store.reason(bad)


def test_slurm_gets_a_script_with_what_it_is_told(store: Store, queue: Path, tmp_path: Path) -> None:
    options = {"partition": "gpu", "time": "1-02:00:00", "cpus-per-task": 3, "mem": "8G", "exclusive": True,
               "requeue-soon": False, "setup": ["module load python"]}  # fmt: skip
    (run,) = runs(0.1)
    heard, states = play([run], store, on_slurm(store, **options))
    assert states == {run.name: State.FINISHED}
    assert [entry[0] for entry in heard.heard] == ["begin", "started", "round", "round", "ended"]
    assert not (store.cell(run) / "job.json").exists()
    script = (queue / "1.sh").read_text().splitlines()
    flags = {line.removeprefix("#SBATCH --") for line in script if line.startswith("#SBATCH")}
    log = store.root / "jobs" / "%j_0_log"
    assert flags == {
        f"job-name={run.name}", "partition=gpu", "time=1560", "cpus-per-task=3", "mem=8G", "exclusive", "nodes=1",
        "signal=USR2@90", "open-mode=append", f"output={log}.out", f"error={log}.err", "wckey=submitit",
    }  # fmt: skip
    assert "module load python" in script
    command = next(line for line in script if line.startswith("srun"))
    assert command.endswith(f"{sys.executable} -u -m submitit.core._submit {store.root / 'jobs'}")
    assert (store.cell(run) / "workers").read_text() == "3"
    assert (store.root / "jobs" / "1_0_log.err").is_file()


def test_jobs_are_left_in_the_queue_and_found_again(store: Store, queue: Path) -> None:
    class Impatient(Silent):
        def round(self, run, line) -> None:
            raise KeyboardInterrupt

    (run,), first = runs(0.1), on_slurm(store, fake_jobs.Waiting)
    with pytest.raises(KeyboardInterrupt):
        Grid([run], store, first, LOOK).run(Impatient())
    assert first.active() == ["1"]
    assert store.state(run) is State.INTERRUPTED
    (store.root / "go").touch()
    _, states = play([run], store, on_slurm(store, fake_jobs.Waiting))
    assert states == {run.name: State.FINISHED}
    assert [path.name for path in queue.glob("*.sh")] == ["1.sh"]
    assert first.active() == []


def test_a_job_that_is_ended_from_outside_has_failed_and_is_tried_again(
    store: Store, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cancelling(Silent):
        def round(self, run, line) -> None:
            os.system(f"scancel {cluster.active()[0]}")

    (run,), cluster = runs(0.1), on_slurm(store, fake_jobs.Waiting)
    monkeypatch.setattr("fedpfl.study.cluster.SILENT_SECONDS", 0)
    heard = Cancelling()
    assert Grid([run], store, cluster, LOOK).run(heard) == {run.name: State.FAILED}
    log = store.root / "jobs" / "1_0_log.err"
    assert heard.heard[-1] == ("ended", run.name, f"job 1 ended without an outcome (FAILED; log: {log})")
    (store.root / "go").touch()
    assert play([run], store, on_slurm(store, fake_jobs.Waiting))[1] == {run.name: State.FINISHED}
    assert len(list(queue.glob("*.sh"))) == 2


def test_a_queue_that_takes_no_job_ends_the_grid_in_one_line(store: Store, queue: Path) -> None:
    (queue / "refuse").touch()
    with pytest.raises(FedpflError, match=r"^Slurm refuses fedavg-digits-\w+: sbatch: error: invalid part"):
        play(runs(0.1), store, on_slurm(store, partition="nowhere"))


def test_a_job_whose_time_is_up_goes_on_where_it_ended(store: Store) -> None:
    (run,), fake = runs(0.1), Fake(stop_after=1)
    task = Task(run, store, 2, fake)
    task.active = fake(run, store, None)
    again = task.checkpoint()
    assert fake.interrupted == [run.name]
    assert store.state(run) is State.INTERRUPTED
    assert store.folder(run).resumable
    assert (again.function.run, again.function.workers, again.function.active) == (run, 2, None)
    fake.stop_after = 9
    assert again.result()["status"] == "finished:completed"
    assert fake.resumed == [run.name]
    assert store.state(run) is State.FINISHED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (90, 90), ("90", 90), ("10:00", 10), ("10:01", 11), ("04:00:00", 240), ("1-2", 1560), ("2-00:30", 2910),
        ("1-02:00:30", 1561), ("00:30", 1),
    ],
)  # fmt: skip
def test_time_limits_are_read_as_slurm_writes_them(text: object, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"time": "soon"}, "slurm = 'time=soon': must be minutes, or HH:MM:SS, or D-HH:MM:SS"),
        ({"time": 0}, "must be at least a minute"),
        ({"time": 1.5}, "must be minutes"),
        ({"nodes": 2}, "slurm = 'nodes': cannot be set: a run is one task on one machine"),
        ({"cpus-per-task": "two"}, "slurm = 'cpus-per-task=two': must be a whole number of at least 1"),
        ({"setup": "module load python"}, "must be a list of texts, in a TOML file"),
        ({"mem": [1]}, "must be a text, a number, true or false"),
    ],
)
def test_a_mistaken_option_is_one_line(store: Store, queue: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        slurm(store, options)
    assert words in str(error.value)


def test_what_is_missing_is_one_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FedpflError, match="there is no Slurm on this machine: srun"):
        slurm(store, {})
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(FedpflError, match=r"submitit, which is not installed: pip install .fedpfl\[cluster"):
        slurm(store, {})


def fedpfl(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="fedpfl")


def test_the_commands_take_an_executor(
    store: Store, queue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster.__init__, "__defaults__", (fake_jobs.quick,))
    monkeypatch.setattr("fedpfl.study.cluster.POLL_SECONDS", LOOK)
    (tmp_path / "slurm.toml").write_text('partition = "cpu"\ntime = 04:00:00\n')
    command = ["sweep", "--grid", "learning-rate=0.01", "--output-dir", store.root, "-c", "num-server-rounds=2"]
    done = fedpfl(*command, "--executor", "slurm", "--slurm", tmp_path / "slurm.toml", "--slurm", "account=lab")
    assert done.exit_code == 0, done.output
    assert "| 0.01 | 1 | 51.000 |" in done.stdout
    lines = (queue / "1.sh").read_text().splitlines()
    assert {"#SBATCH --partition=cpu", "#SBATCH --time=240", "#SBATCH --account=lab"} <= {*lines}
    for more, words in (
        (["--slurm", "account=lab"], "slurm = 'account=lab': does nothing without --executor slurm"),
        (["--executor", "pbs"], "executor = 'pbs': must be one of local, slurm"),
        (
            ["--executor", "slurm", "--slurm", "account"],
            "slurm = 'account': must be key=value, or a .toml or .yaml file",
        ),
        (["--executor", "slurm", "--slurm", "no.toml"], "slurm = 'no.toml': cannot be read"),
    ):
        refused = fedpfl(*command, *more)
        assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
        assert words in refused.stderr
