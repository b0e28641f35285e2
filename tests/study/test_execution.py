"""Grids of runs: names, what is skipped, resumed, interrupted, and what failures leave."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from grids import FILE, Fake, Silent, leave, write
from waiting import HANG_SECONDS, POLL_SECONDS, wait_until

from fedpfl.core.errors import ConfigError
from fedpfl.study.execution import Execution, Process, Resources, _shares
from fedpfl.study.experiment import ExperimentGrid
from fedpfl.study.experiment_file import load
from fedpfl.study.paper_tables import analysed, tables
from fedpfl.study.run_store import PlannedRun, State, Store, plan

QUICK = {"method": "fedavg", "dataset": "digits", "num-clients": 4, "num-server-rounds": 2}
HELD_OUT = {**QUICK, "new-clients": 0.5}


@pytest.fixture
def in_the_background() -> Iterator[None]:
    """As if a shell had started the grid, and with it its runs, with ``&``: Ctrl-C does not reach them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def measured(tmp_path: Path, scale: str = "smoke", **options: int) -> ExperimentGrid:
    return ExperimentGrid(load(write(tmp_path)), scale, Store(tmp_path / "out"), **options)


def play(of: ExperimentGrid, fake: Fake, **options: int) -> tuple[Silent, dict[str, State]]:
    heard = Silent()
    return heard, Execution(of.runs.values(), of.store, fake).run(heard, **options)


class TestNames:
    def test_follow_from_settings_and_data_and_not_from_places_nor_from_what_is_the_default_anyway(self) -> None:
        name = plan(QUICK, 1).name
        assert name.startswith("fedavg-digits-")
        for more in ({"data-dir": "/elsewhere"}, {"round-timeout": 5.0}, {"momentum": 0.9}, {"ditto-pull": 3.0}):
            assert plan({**QUICK, **more}, 1).name == name
        others = (
            {"learning-rate": 0.5},
            {"num-server-rounds": 3},
            {"dataset": "npz"},
            {"dataset": "npz", "data": "/a"},
        )
        names = {name, plan(QUICK, 2).name, *(plan({**QUICK, **more}, 1).name for more in others)}
        assert len(names) == 2 + len(others)

    def test_places_are_those_of_the_folder_one_stands_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = {**QUICK, "dataset": "npz", "data": "mine.npz"}
        monkeypatch.chdir(tmp_path)
        here = plan(settings, 1)
        assert here.settings["data"] == str(tmp_path / "mine.npz")
        assert here.name == plan({**settings, "data": str(tmp_path / "mine.npz")}, 1).name
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        assert plan(settings, 1).name != here.name

    def test_do_not_depend_on_whose_home_folder_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def planned(home: str) -> PlannedRun:
            monkeypatch.setenv("HOME", home)
            return plan({**QUICK, "initial-weights": "~/w.pth"}, 1)

        a, b = planned("/home/a"), planned("/home/b")
        assert a.name == b.name
        assert (a.settings["initial-weights"], b.settings["initial-weights"]) == ("/home/a/w.pth", "/home/b/w.pth")

    def test_settings_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="did you mean learning-rate"):
            plan({**QUICK, "learning-rat": 1.0}, 1)
        with pytest.raises(ConfigError, match="seed = 5: cannot be set here; use --seeds"):
            plan({**QUICK, "seed": 5}, 1)
        with pytest.raises(ConfigError, match="num-clients = 0: must be given"):
            plan({"method": "fedavg"}, 1)


class TestRunning:
    def test_runs_everything_once_the_first_seed_first_and_then_nothing(self, tmp_path: Path) -> None:
        of, fake = measured(tmp_path, seeds=2), Fake()
        heard, states = play(of, fake)
        assert fake.started == [of.runs[key].name for key in sorted(of.runs, key=lambda key: key[2])]
        assert len(set(fake.started)) == 6 and set(states.values()) == {State.FINISHED}
        assert heard.heard[0] == ("begin", 6, 0, 12)
        again = Fake()
        heard, _ = play(of, again)
        assert (again.started, heard.heard) == ([], [("begin", 6, 6, 0)])

    def test_equal_runs_of_two_tables_are_run_once(self, tmp_path: Path) -> None:
        runs = [plan(HELD_OUT, 1, metrics) for metrics in ((), ["new-clients:ensemble"], ["new-clients:local-train"])]
        planned = Execution(runs, Store(tmp_path), Fake()).runs
        assert [run.modes for run in planned] == [("ensemble", "local-train")]

    def test_a_failure_stops_nothing_else(self, tmp_path: Path) -> None:
        of = measured(tmp_path)
        heard, states = play(of, Fake(fail={"fedavg": "no memory"}))
        assert sorted(state.value for state in states.values()) == ["failed", "failed", "finished"]
        assert [entry[2] for entry in heard.heard if entry[0] == "ended"] == ["no memory", "", "no memory"]
        play(of, retried := Fake())
        assert len(retried.started) == 2
        assert set(of.states().values()) == {State.FINISHED}

    def test_an_interruption_ends_what_runs_and_can_be_taken_up(self, tmp_path: Path) -> None:
        of, fake = measured(tmp_path), Fake(stop_after=1)

        class Impatient(Silent):
            def round(self, run, line) -> None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            Execution(of.runs.values(), of.store, fake).run(Impatient(), jobs=2)
        assert fake.interrupted == fake.started
        assert len(fake.started) == 2
        assert sorted(state.value for state in of.states().values()) == ["interrupted", "interrupted", "missing"]
        heard, states = play(of, after := Fake())
        assert after.resumed == fake.started
        assert set(states.values()) == {State.FINISHED}
        assert heard.heard[0] == ("begin", 3, 0, 6 - 2)

    def test_what_has_no_finished_round_starts_afresh(self, tmp_path: Path) -> None:
        store, run = Store(tmp_path), plan(QUICK, 1)
        leave(store.folder(run).path, run, 0)
        assert store.state(run) is State.MISSING
        store.prepare(run)
        assert not store.folder(run).path.exists()

    def test_a_try_whose_end_nobody_noted_is_not_finished(self, tmp_path: Path) -> None:
        store, run = Store(tmp_path), plan(QUICK, 1)
        store.prepare(run)
        leave(store.folder(run).path, run, 2)
        (store.folder(run).path / "summary.md").touch()  # then the power fails while models are exported
        assert store.state(run) is State.INTERRUPTED
        store.prepare(run)
        assert not (store.folder(run).path / "summary.md").exists()
        assert store.folder(run).resumable

    def test_what_goes_on_without_its_grid_stays_as_it_is(self, tmp_path: Path) -> None:
        store, run = Store(tmp_path), plan(QUICK, 1)
        store.prepare(run)
        for rounds in (0, 2):
            leave(store.folder(run).path, run, rounds)
            (store.folder(run).path / "summary.md").touch()
            with store.folder(run).exclusive():
                before = sorted(tmp_path.rglob("*"))
                assert store.prepare(run).is_file()
                assert sorted(tmp_path.rglob("*")) == before

    def test_what_another_grid_runs_is_waited_for(self, tmp_path: Path) -> None:
        store, run, fake = Store(tmp_path), plan(QUICK, 1), Fake()
        store.cell(run).mkdir(parents=True)
        with (store.cell(run) / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            grid, heard, looks = Execution([run], store, fake), Silent(), []

            def patience(seconds: float) -> None:
                looks.append(seconds)
                if len(looks) == 2:  # the other grid is done
                    leave(store.folder(run).path, run, 2)
                    (store.folder(run).path / "summary.md").touch()
                    fcntl.flock(lock, fcntl.LOCK_UN)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("fedpfl.study.execution.time", SimpleNamespace(sleep=patience))
                states = grid.run(heard)
        assert fake.started == []
        assert states == {run.name: State.FINISHED}

    def test_models_can_be_discarded(self, tmp_path: Path) -> None:
        store, run = Store(tmp_path), plan(QUICK, 1)
        for folder in (store.root / "state" / f"{run.name}-key", store.folder(run).path / "personal"):
            folder.mkdir(parents=True)
        (store.folder(run).path / "checkpoint").mkdir()
        (store.folder(run).path / "checkpoint" / "round-000001.safetensors").touch()
        Execution([run], store, Fake()).run(Silent(), discard_models=True)
        assert not (store.root / "state" / f"{run.name}-key").exists()
        assert not (store.folder(run).path / "personal").exists()
        assert store.state(run) is State.FINISHED

    def test_a_run_whose_export_failed_has_not_finished(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store, run, heard = Store(tmp_path), plan(QUICK, 1), Silent()
        summary = store.folder(run).path / "summary.md"
        leave(store.folder(run).path, run, 2)
        code = f"import pathlib; pathlib.Path({str(summary)!r}).touch(); raise SystemExit('error: the disk is full')"
        with monkeypatch.context() as patch:
            patch.setattr(Process, "_fedpfl", lambda self, *arguments: [sys.executable, "-c", code])
            states = Execution([run], store).run(heard)
        assert states == {run.name: State.FAILED}
        assert heard.heard[-1] == ("ended", run.name, "the disk is full")
        assert summary.is_file()
        store.prepare(run)
        assert not summary.exists()  # with it `fedpfl run --resume` would refuse
        assert Execution([run], store, Fake()).run(Silent()) == {run.name: State.FINISHED}

    def test_a_run_is_not_undone_by_what_is_measured_after_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, run = Store(tmp_path), plan(HELD_OUT, 1)
        with_more = plan(HELD_OUT, 1, ["new-clients:ensemble"])
        Execution([run], store, Fake()).run(Silent())
        monkeypatch.setattr(Process, "_fedpfl", lambda self, *arguments: [sys.executable, "-c", "raise SystemExit(1)"])
        assert Execution([with_more], store).run(Silent()) == {run.name: State.FAILED}
        assert store.state(run) is State.FINISHED

    @pytest.mark.parametrize("killed", [False, True])
    def test_training_that_has_ended_is_not_forgotten(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_the_background: None, killed: bool
    ) -> None:
        store, run = Store(tmp_path), plan(HELD_OUT, 1, ["new-clients:ensemble"])
        ran, measuring = store.folder(run).path / "summary.md", tmp_path / "measuring"

        def command(self: Process, first: str, *arguments: str) -> list[str]:
            if first == "run":
                code = f"import pathlib; pathlib.Path({str(ran)!r}).touch()"
            else:
                code = f"import pathlib, time; pathlib.Path({str(measuring)!r}).touch(); time.sleep({HANG_SECONDS})"
            return [sys.executable, "-S", "-c", code]

        def until_measuring(seconds: float) -> None:
            time.sleep(POLL_SECONDS)
            if measuring.exists() and not seen:
                seen.append(True)
                if killed:  # as if nothing after it ran
                    patch.setattr(Store, "note", lambda self, run, outcome: None)
                raise KeyboardInterrupt

        seen: list[bool] = []
        leave(store.folder(run).path, run, 2)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Process, "_fedpfl", command)
            patch.setattr("fedpfl.study.execution.time", SimpleNamespace(sleep=until_measuring))
            Execution([run], store).run(Silent())
        assert store.trained(run)
        assert store.state(run) is State.INTERRUPTED

    def test_a_folder_that_cannot_be_written_is_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ConfigError, match=r"output-dir = .*: cannot be written"):
            Execution([plan(QUICK, 1)], Store(tmp_path / "file" / "out"), Fake()).run(Silent())


def shares(jobs: int) -> list[tuple[tuple[int, ...], int]]:
    return [(share.cores, share.workers) for share in _shares(jobs)]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin processes")
def test_cores_are_divided_among_runs_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4})
    assert shares(1) == [((), 5)]
    assert shares(2) == [((0, 2, 4), 3), ((1, 3), 2)]
    assert shares(7) == [((core,), 1) for core in (0, 1, 2, 3, 4, 0, 1)]


def test_where_processes_cannot_be_kept_to_cores_only_the_workers_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert shares(1) == [((), 5)]
    assert shares(2) == [((), 3), ((), 2)]
    assert shares(7) == 7 * [((), 1)]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system cannot pin processes")
def test_a_command_has_a_session_its_cores_its_folder_and_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import os, sys; own = os.getsid(0) == os.getpid(); "
        "print(own, os.sched_getaffinity(0), os.getcwd(), repr(sys.stdin.read())); sys.exit('two\\nlines')"
    )
    monkeypatch.setattr(Process, "_fedpfl", lambda self, *arguments: [sys.executable, "-S", "-c", code])
    store, run, before = Store(tmp_path / "out"), plan(QUICK, 1), os.sched_getaffinity(0)
    core = max(before)
    job = Process(run, store, Resources((core,), 1))
    wait_until(lambda: job.outcome() is not None)
    assert job.outcome() == {"status": "failed", "error": "lines", "trained": False}
    assert (store.cell(run) / "answer.txt").read_text() == f"True {{{core}}} {store.root} ''\n"
    assert (store.cell(run) / "log.txt").read_text() == "two\nlines\n"
    assert os.sched_getaffinity(0) == before


class TestTables:
    def test_before_anything_ran(self, tmp_path: Path) -> None:
        first, second = tables(measured(tmp_path))
        assert list(first.columns) == ["", "A (smoke scale)", "A (published)", "B (smoke scale)", "B (published)"]
        assert [list(row) for row in first.rows] == [
            ["FedAvg", "not run yet", "60.39 ± 1.46", "not run yet", "61.5"],
            ["Local", "not run yet", "81.91 ± 3.09", None, None],
        ]  # fmt: skip
        assert "Not covered: Local, B: there is no such data." in first.note
        assert "Of the paper: the paper does not say." in first.note
        assert list(second.columns) == ["", "A (smoke scale)", "B (smoke scale)"]  # the paper has no such table

    def test_analyses_are_made_of_each_column(self, tmp_path: Path) -> None:
        analyses = '[analyses]\nfairness = { of = "column" }\nattack = { of = "all", images = 0 }\n[rows]'
        of = ExperimentGrid(load(write(tmp_path, FILE.replace("[rows]", analyses))), "smoke", Store(tmp_path / "out"))
        assert analysed(of).tables == []  # no runs yet
        play(of, Fake())
        first, second, third = analysed(of).tables
        assert (len(first.rows), len(second.rows)) == (2, 1)
        assert (first.title[-3:], second.title[-3:]) == (", A", ", B")
        assert third.rows == [["attack", "images = 0: must be at least 1"]]

    def test_an_unknown_analysis_is_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path, FILE.replace("[rows]", '[analyses]\nhoroscope = { of = "all" }\n[rows]'))
        with pytest.raises(ConfigError, match="analyses = 'horoscope': table: must be one of attack"):
            ExperimentGrid(load(path), "smoke", Store(tmp_path))

    def test_a_value_relative_to_a_row(self, tmp_path: Path) -> None:
        path = write(tmp_path, FILE.replace("seeds = 3", 'seeds = 3\nrelative-to = "FedAvg"'))
        of = ExperimentGrid(load(path), "smoke", Store(tmp_path / "out"))
        play(of, Fake())
        assert "| FedAvg | 1.0000 | 60.39 ± 1.46 |" in tables(of)[0].markdown()

    def test_curves(self, tmp_path: Path) -> None:
        path = write(tmp_path, FILE.replace("seeds = 3", 'seeds = 3\ncurves = ["detail:drift", "train-loss"]'))
        of = ExperimentGrid(load(path), "smoke", Store(tmp_path / "out"))
        play(of, Fake())
        drift, loss = tables(of)[2:]
        assert "| 2 | 4.0000 | 4.0000 | 4.0000 |" in drift.markdown()
        assert list(loss.columns) == ["round", "FedAvg, A", "Local, A", "FedAvg, B"]

    def test_data_are_generated_for_each_seed(self, tmp_path: Path) -> None:
        generate = 'generate = ["make.py", "--p", "1"], data = "{generated}/data.npz", dataset = "npz"'
        path = write(tmp_path, FILE.replace("dirichlet-alpha = 0.1", generate))
        (tmp_path / "make.py").write_text("# makes data")
        of = ExperimentGrid(load(path), "smoke", Store(tmp_path / "out"), seeds=2)
        one, two = (of.runs["FedAvg", "A", seed] for seed in (1, 2))
        assert one.generate == (str(tmp_path / "make.py"), "--p", "1", "--seed", "1")
        assert one.settings["data"] == f"{of.store.generated(one.generate)}/data.npz"
        assert one.settings["data"] != two.settings["data"]
        (tmp_path / "make.py").write_text("# makes other data")
        changed = ExperimentGrid(load(path), "smoke", of.store, seeds=2).runs["FedAvg", "A", 1]
        assert changed.settings["data"] != one.settings["data"] and changed.name != one.name
