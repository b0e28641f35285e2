"""The models of the round that is best on the validation samples."""

from __future__ import annotations

import pytest
from support import FEW_SAMPLES, simulate
from typer.testing import CliRunner

import fedpfl
from fedpfl.cli import app
from fedpfl.core.errors import ConfigError
from fedpfl.results.run_folder import RunFolder

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


def test_a_resumed_run_keeps_the_best_of_all_its_rounds(tmp_path):
    whole = simulate(tmp_path / "whole", 3, **GIVEN)
    part = simulate(tmp_path / "part", 3, run_name="run", **{**GIVEN, "num_server_rounds": 3})
    assert part.best().history().last_round == part.history().best_validated()["round"]
    run = simulate(tmp_path / "part", 3, run_name="run", resume=True, **GIVEN)
    assert run.best().history().last_round == whole.history().best_validated()["round"]
    assert (run.best().path / "global.safetensors").read_bytes() == (
        whole.best().path / "global.safetensors"
    ).read_bytes()


def test_it_is_exported_and_continued_and_without_validation_there_is_none(tmp_path):
    run = simulate(tmp_path, 3, **GIVEN)
    done = CliRunner().invoke(app, ["export", str(run.path), "--round", "best"])
    assert done.exit_code == 0 and len(list((run.path / "best" / "personal").glob("*.safetensors"))) == 3, done.output
    on = simulate(tmp_path, 3, run_name="on", continue_from=str(run.path / "best"), **GIVEN)
    assert on.task()["continued"]["round"] == run.best().history().last_round
    plain = simulate(tmp_path / "plain", 3, **{**GIVEN, "validation_fraction": 0.0, "num_server_rounds": 1})
    assert not (plain.path / "best").exists()
    with pytest.raises(ConfigError, match="has no best round: validation-fraction above 0 keeps"):
        RunFolder(plain.path).best()
    done = CliRunner().invoke(app, ["export", str(run.path), "--round", "third"])
    assert done.exit_code and "last, best" in done.output
