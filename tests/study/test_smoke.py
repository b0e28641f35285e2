"""Experiments at smoke scale: no failure, no cell left open. All of them: `make test-experiments`."""

from __future__ import annotations

from pathlib import Path

import pytest
from grids import FILE as DESCRIPTION
from grids import Fake, Silent, write
from in_process import InProcess

from fedpfl.launch.shipped import experiments
from fedpfl.study.execution import Execution
from fedpfl.study.experiment import ExperimentGrid
from fedpfl.study.experiment_file import load
from fedpfl.study.paper_tables import analysed, tables
from fedpfl.study.run_store import State, Store

FILES = experiments(Path(__file__).resolve().parents[2] / "experiments")
QUICK = ("fedreg-figure-7",)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One store for all, so that runs of several tables are run once."""
    return Store(tmp_path_factory.mktemp("experiments"))


def check(path: Path, store: Store) -> None:
    states = {}
    for _ in range(2):  # what the first runs choose is known to those after them
        measured = ExperimentGrid(load(path), "smoke", store)
        states |= Execution(measured.planned(), store, InProcess).run(Silent())
    measured = ExperimentGrid(load(path), "smoke", store)
    assert set(states.values()) == {State.FINISHED}, list(measured.failures())
    shown = [*tables(measured), *analysed(measured).tables]
    for table in shown:
        assert table.rows
        assert not {"", "failed", "not run yet"} & {cell for row in table.rows for cell in row if isinstance(cell, str)}
        assert "why it is not there" not in table.columns, table.rows
    check_numbers(measured)


def check_numbers(measured: ExperimentGrid) -> None:
    """Every cell that is run has a number of every seed, or its file says why not, and that is true."""
    for metric in measured.experiment.metrics:
        for row, column in measured.cells:
            declared = (metric, row, column) in measured.experiment.no_number
            count = len(measured.values(metric, row, column))
            assert count == (0 if declared else len(measured.seeds)), (metric, row, column)


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_one(name: str, store: Store) -> None:
    check(FILES[name], store)


def test_a_cell_without_a_number_is_noticed(tmp_path: Path) -> None:
    text = DESCRIPTION.replace('"gigabytes"]', '"gigabytes", "global-best"]')
    declared = '[[no-number]]\nmetrics = ["global-best"]\nreason = "nobody tests it"\n[scale.smoke]'
    grids = {}
    for kind, content in {"open": text, "declared": text.replace("[scale.smoke]", declared)}.items():
        grids[kind] = ExperimentGrid(load(write(tmp_path, content)), "smoke", Store(tmp_path / "runs"), seeds=1)
        Execution(grids[kind].runs.values(), grids[kind].store, Fake()).run(Silent())
    with pytest.raises(AssertionError, match="global-best"):
        check_numbers(grids["open"])
    check_numbers(grids["declared"])
    note = tables(grids["declared"])[2].note
    assert "no such number: FedAvg, A; Local, A; FedAvg, B: nobody tests it." in note


@pytest.mark.experiments
@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_every_experiment(path: Path, store: Store) -> None:
    check(path, store)
