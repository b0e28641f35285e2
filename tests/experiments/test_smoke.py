"""Experiments at smoke scale: no failure, no cell left open. All of them: `make test-experiments`."""

from __future__ import annotations

from pathlib import Path

import pytest
from grids import Silent
from in_process import InProcess

from fedpfl.experiments.description import load
from fedpfl.experiments.grid import Grid
from fedpfl.experiments.store import State, Store
from fedpfl.experiments.tables import Measured, analysed, tables

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
FILES = sorted(FOLDER.glob("*.toml"))
QUICK = ("fedreg-figure-7",)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One store for all, so that runs of several tables are run once."""
    return Store(tmp_path_factory.mktemp("experiments"))


def check(path: Path, store: Store) -> None:
    measured = Measured(load(path), "smoke", store)
    states = Grid(measured.runs.values(), store, InProcess).run(Silent())
    assert set(states.values()) == {State.FINISHED}, list(measured.failures())
    found = [*tables(measured), *analysed(measured).tables]
    for table in found:
        assert table.rows
        assert not {"", "failed", "not run yet"} & {cell for row in table.rows for cell in row if isinstance(cell, str)}
        assert "why it is not there" not in table.columns, table.rows
    for metric in measured.experiment.metrics:
        assert any(measured.values(metric, row, column) for row, column in measured.cells), metric


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_one(name: str, store: Store) -> None:
    check(FOLDER / f"{name}.toml", store)


@pytest.mark.experiments
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_experiment(path: Path, store: Store) -> None:
    check(path, store)
