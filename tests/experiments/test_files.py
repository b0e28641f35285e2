"""The files in experiments/: every one parses, and every cell of every scale has settings that a run accepts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedpfl.launch.shipped import experiments
from fedpfl.methods import methods
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config
from fedpfl.study.description import SCALES, load
from fedpfl.study.experiment import ExperimentGrid
from fedpfl.study.run_numbers import WINDOW
from fedpfl.study.store import Store

ROOT = Path(__file__).resolve().parents[2]
FILES = experiments(ROOT / "experiments")


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_every_cell_of_every_scale_can_be_run(path: Path, tmp_path: Path) -> None:
    experiment = load(path)
    for scale in SCALES:
        measured = ExperimentGrid(experiment, scale, Store(tmp_path), seeds=1)  # which checks the settings
        assert set(measured.cells) == {key[:2] for key in measured.runs} | set(measured.trials)
        assert measured.cells, scale


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_what_rows_want_of_one_run_is_all_measured_after_it(path: Path, tmp_path: Path) -> None:
    measured = ExperimentGrid(load(path), "smoke", Store(tmp_path))
    planned = {run.name: run for run in measured.planned()}
    assert all(set(run.modes) <= set(planned[run.name].modes) for run in measured.runs.values())


@pytest.mark.parametrize("scale", SCALES)
def test_the_page_says_how_many_runs_there_are(scale: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "experiments.md").read_text(encoding="utf-8")
    (said,) = re.findall(rf"^\| `{scale}` \|[^|]*\| ([\d,]+) \|", page, re.MULTILINE)
    measured = [ExperimentGrid(load(path), scale, Store(tmp_path)) for path in FILES.values()]
    runs = {run.name for of in measured for run in of.planned()}
    assert len(runs) + sum(of.undecided for of in measured) == int(said.replace(",", ""))


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_every_row_and_column_is_run_at_paper_scale_or_says_why_not(path: Path) -> None:
    experiment = load(path)
    run = {(cell.row, cell.column) for cell in experiment.cells("paper")}
    grid = {(row, column) for row in experiment.rows for column in experiment.columns if not experiment.pooled(column)}
    assert grid == run | set(experiment.not_covered)
    assert not run & set(experiment.not_covered)


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
@pytest.mark.parametrize("scale", SCALES[1:])
def test_the_best_mean_of_ten_tests_is_of_many_more(path: Path, scale: str, tmp_path: Path) -> None:
    experiment = load(path)
    if "weighted-best-10" in experiment.metrics:
        for run in ExperimentGrid(experiment, scale, Store(tmp_path), seeds=1).planned():
            assert run.rounds // run.settings["evaluate-every"] >= 3 * WINDOW


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_the_smoke_scale_needs_no_download_and_few_runs(path: Path, tmp_path: Path) -> None:
    measured = ExperimentGrid(load(path), "smoke", Store(tmp_path))
    assert all(cell.settings["dataset"] == "digits" or cell.generate for cell in measured.cells.values())
    assert len(measured.states()) <= 12
    assert max(run.rounds for run in measured.planned()) <= 10
    assert list(measured.seeds) == [1]


def test_the_leaderboard_has_a_method_once_with_its_defaults_and_the_choice_of_its_rate() -> None:
    experiment = load(FILES["leaderboard"])
    rows = [row.settings["method"] for row in experiment.rows.values()]
    assert len(rows) == len({*rows} & set(methods()))
    for scale in ("small", "paper"):
        assert all(len(experiment.choices(scale, cell.row, cell.column)) == 3 for cell in experiment.cells(scale))


@pytest.mark.parametrize(("name", "traffic"), [("labels", 7.4 / 20.39), ("domains", 15.98 / 40.78)])
def test_pfedpara_sends_the_share_of_the_model_that_the_paper_prints(name: str, traffic: float) -> None:
    cells = load(FILES[f"factorized-fl-table-1-{name}"]).cells("paper")
    sent = {}
    for method in ("fedavg", "pfedpara"):
        config = Config.parse(next(cell.settings for cell in cells if cell.settings["method"] == method))
        _, sharing = assemble(config, (3, 32, 32), 10)
        sent[method] = sharing.layout.size
    assert sent["pfedpara"] / sent["fedavg"] == pytest.approx(traffic, abs=0.001)
