"""The models of the round that is best on the validation samples."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FEW_SAMPLES, engine, federation, simulate
from typer.testing import CliRunner

import fedpfl
from fedpfl.cli import app
from fedpfl.core.errors import ConfigError
from fedpfl.engine.listener import Listener
from fedpfl.engine.options.best_round import BestRound
from fedpfl.engine.server_run import run_federation
from fedpfl.results import file_cache
from fedpfl.results.history import History
from fedpfl.results.resumed_run import best_of
from fedpfl.results.round_record import Round
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.summary import summary
from fedpfl.setup.config import Config
from fedpfl.study.live import run_data

# The learning rate lets the rounds go up and down.
GIVEN = {
    "method": "fedper", "model": "mlp", "local_epochs": 1, "validation_fraction": 0.2, "learning_rate": 0.3,
    "num_server_rounds": 6, **FEW_SAMPLES,
}  # fmt: skip


@pytest.mark.parametrize("choose_by", ["accuracy", "loss"])
def test_the_best_round_s_run_is_one_that_ended_there(tmp_path, choose_by):
    run = simulate(tmp_path, 3, choose_by=choose_by, **GIVEN)
    number = run.history().best_validated()["round"]
    best = fedpfl.load(str(run.path)).best
    assert len(best.rounds) == number and best._folder.finished
    ended = simulate(tmp_path / "ended", 3, choose_by=choose_by, **{**GIVEN, "num_server_rounds": number})
    other = fedpfl.load(str(ended.path))
    for client in range(3):
        ours, theirs = best.model(client).state_dict(), other.model(client).state_dict()
        assert all((ours[name] == theirs[name]).all() for name in theirs)
    assert (best.path / "global.safetensors").read_bytes() == (ended.path / "global.safetensors").read_bytes()
    assert (best.path / "summary.md").read_text() == summary(best._folder)
    assert [path.name for path in run.path.glob(".best*")] == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4) | st.none()), min_size=1, max_size=8))
def test_the_round_that_is_kept_is_the_one_that_tables_choose(rounds):
    """Without its worst client every round looks better, so one in which more tests are missing is not the best."""
    lines = [
        {"round": number, "untested": [*range(missing)], "personalised": {"accuracy": 0.5},
         "validation": {"accuracy": score}}
        for number, (missing, score) in enumerate(rounds, 1)
    ]  # fmt: skip
    kept = [0]

    class Told(BestRound):
        def _keep(self, rule, number, state):
            kept.append(number)

    listener = Told(Config.parse({"method": "local"}), RunFolder(Path("run")))
    for line in lines:
        listener.round_ended(None, Round(line["round"], line=line), {})
    history = History(lines)
    assert kept[-1] == (history.best_validated() or {"round": 0})["round"]
    scored = [(-missing, score) for missing, score in rounds if score is not None]
    assert history.chosen("validation.accuracy") == (max(scored)[1] if scored else None)


def test_a_metric_that_is_defined_for_nobody_is_told_once(tmp_path, caplog):
    one_class = {"partitioner": "pathological", "classes_per_client": 1, "train_samples": 500, "test_samples": 100}
    run = simulate(tmp_path, 3, **{**GIVEN, **one_class, "metrics": "auroc", "choose_by": "auroc", "early_stop": 2})
    told = "choose-by = auroc is defined for no client's validation samples in round 1: it chooses no round"
    assert [record.getMessage() for record in caplog.records if "choose-by" in record.msg] == [f"fedpfl: {told}"]
    assert run.history().last_round == GIVEN["num_server_rounds"]


def test_a_resumed_run_keeps_the_best_of_all_its_rounds(tmp_path):
    whole = simulate(tmp_path / "whole", 3, **GIVEN)
    part = simulate(tmp_path / "part", 3, run_name="run", **{**GIVEN, "num_server_rounds": 3})
    assert best_of(part).history().last_round == part.history().best_validated()["round"]
    run = simulate(tmp_path / "part", 3, run_name="run", resume=True, **GIVEN)
    assert best_of(run).history().last_round == whole.history().best_validated()["round"]
    assert (best_of(run).path / "global.safetensors").read_bytes() == (
        best_of(whole).path / "global.safetensors"
    ).read_bytes()


def test_what_an_interruption_leaves_is_put_right(tmp_path):
    run = simulate(tmp_path, 3, **{**GIVEN, "num_server_rounds": 3})
    (run.path / "best").rename(run.path / ".best-before")
    (run.path / ".best").mkdir()
    (run.path / ".best.jsonl").write_text("of an older round")
    again = simulate(tmp_path, 3, run_name="run", resume=True, **GIVEN)
    assert best_of(again).history().last_round == again.history().best_validated()["round"]
    kept = best_of(again).path / "metrics.jsonl"
    assert (run.path / "metrics.jsonl").read_bytes().startswith(kept.read_bytes())


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts what a process reads")
def test_a_round_reads_no_more_after_many_rounds(tmp_path, monkeypatch):
    """Each round is the best so far, early-stop looks at it, and a browser lists the run."""
    read = list[int]()

    class Reader(Listener):
        def round_ended(self, rule, done, state):
            assert run_data.list_runs(tmp_path / "runs")[0]["round"] == done.number
            io = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
            read.append(int(io["rchar"]))
            return False

    monkeypatch.setattr(History, "best_validated", lambda history: history.lines[-1])
    monkeypatch.setattr(file_cache, "TAIL", 2**12)  # or all lines of so few rounds are read
    many = {**GIVEN, "num_server_rounds": 24, "early_stop": 100, "train_samples": 8, "test_samples": 8}
    values = federation(tmp_path, 8, **many)
    run = run_federation(engine(8, values), Config.parse(values), [Reader()])
    rounds = [after - before for before, after in itertools.pairwise(read)]
    size = (run.path / "metrics.jsonl").stat().st_size
    assert statistics.median(rounds[-5:]) < statistics.median(rounds[9:14]) + 0.2 * size
    assert best_of(run).history().last_round == 24


def test_it_is_exported_and_without_validation_there_is_none(tmp_path):
    run = simulate(tmp_path, 3, **GIVEN)
    done = CliRunner().invoke(app, ["export", str(run.path / "best")])
    assert done.exit_code == 0 and len(list((run.path / "best" / "personal").glob("*.safetensors"))) == 3, done.output
    plain = simulate(tmp_path / "plain", 3, **{**GIVEN, "validation_fraction": 0.0, "num_server_rounds": 1})
    assert not (plain.path / "best").exists()
    with pytest.raises(ConfigError, match="has no best round, whose models are kept with validation samples"):
        best_of(RunFolder(plain.path))
