"""The files in experiments/: every one parses, and every cell of every scale has settings that a run accepts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from fedpfl.launch.shipped import experiments
from fedpfl.methods import methods
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.study.experiment import ExperimentGrid
from fedpfl.study.experiment_file import SCALES, ExperimentFile, load
from fedpfl.study.run_numbers import WINDOW
from fedpfl.study.run_store import Store

ROOT = Path(__file__).resolve().parents[2]
FILES = experiments(ROOT / "experiments")
NAMES = sorted(FILES)

# What is planned of a file serves all tests: in one process.
pytestmark = pytest.mark.xdist_group("experiments")


@cache
def loaded(name: str) -> ExperimentFile:
    return load(FILES[name])


@cache
def grid(name: str, scale: str) -> ExperimentGrid:
    """Plan an experiment's runs with one seed, which checks their settings; nothing is written."""
    return ExperimentGrid(loaded(name), scale, Store(Path("nowhere")), seeds=1)


def test_every_cell_of_every_scale_can_be_run() -> None:
    for name in NAMES:
        for scale in SCALES:
            cells = grid(name, scale).cells
            assert set(cells) == {key[:2] for key in grid(name, scale).runs} | set(grid(name, scale).trials), name
            assert cells, (name, scale)


def test_what_rows_want_of_one_run_is_all_measured_after_it() -> None:
    for name in NAMES:
        planned = {run.name: run for run in grid(name, "smoke").planned()}
        assert all(set(run.modes) <= set(planned[run.name].modes) for run in grid(name, "smoke").runs.values()), name


def test_every_row_and_column_is_run_at_paper_scale_or_says_why_not() -> None:
    for name in NAMES:
        experiment = loaded(name)
        run = {(cell.row, cell.column) for cell in experiment.cells("paper")}
        columns = [column for column in experiment.columns if not experiment.pooled(column)]
        assert {(row, column) for row in experiment.rows for column in columns} == run | {*experiment.not_covered}, name
        assert not run & set(experiment.not_covered), name


def test_the_best_mean_of_ten_tests_is_of_many_more() -> None:
    for name in (name for name in NAMES if "weighted-best-10" in loaded(name).metrics):
        for run in (run for scale in SCALES[1:] for run in grid(name, scale).planned()):
            assert run.rounds // run.settings["evaluate-every"] >= 3 * WINDOW, name


def test_the_smoke_scale_needs_no_download_and_few_runs() -> None:
    for name in NAMES:
        measured = grid(name, "smoke")
        assert all(cell.settings["dataset"] == "digits" or cell.generate for cell in measured.cells.values()), name
        assert len(measured.states()) <= 12, name
        assert max(run.rounds for run in measured.planned()) <= 10, name
        assert loaded(name).scale("smoke").seeds == 1, name


def test_the_leaderboard_has_a_method_once_with_its_defaults_and_the_choice_of_its_rate() -> None:
    experiment = loaded("leaderboard")
    rows = [row.settings["method"] for row in experiment.rows.values()]
    assert len(rows) == len({*rows} & set(methods()))
    for scale in ("small", "paper"):
        assert all(len(cell.choices) == 3 for cell in experiment.cells(scale))


@pytest.mark.parametrize(("name", "traffic"), [("labels", 7.4 / 20.39), ("domains", 15.98 / 40.78)])
def test_pfedpara_sends_the_share_of_the_model_that_the_paper_prints(name: str, traffic: float) -> None:
    cells = loaded(f"factorized-fl-table-1-{name}").cells("paper")
    sent = {}
    for method in ("fedavg", "pfedpara"):
        config = Config.parse(next(cell.settings for cell in cells if cell.settings["method"] == method))
        _, sharing = assemble(config, (3, 32, 32), 10)
        sent[method] = sharing.layout.size
    assert sent["pfedpara"] / sent["fedavg"] == pytest.approx(traffic, abs=0.001)
