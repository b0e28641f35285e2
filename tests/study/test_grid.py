"""Grids: which settings are chosen, how runs are called, and what several executions share."""

import json

import numpy as np
import pytest
from grids import Fake, Silent

from fedpfl.core.errors import DamagedFile
from fedpfl.study.analysis.repetitions import grouped
from fedpfl.study.comparison import ComparisonGrid, settings_used, tables
from fedpfl.study.execution import Execution, run_grid
from fedpfl.study.run_store import State, Store
from fedpfl.study.saved_grid import SavedGrid, saved_runs
from fedpfl.study.sweep import SweepGrid

BASE = {"dataset": "digits", "num-clients": 2, "model": "mlp", "num-server-rounds": 1}


def play(tmp_path, **fails):
    store = Store(tmp_path)
    methods = {"fedavg": "fedavg", "local": "local"}
    grid = ComparisonGrid(methods, BASE, {"learning-rate": [0.01, 0.2]}, 1, {"": {"num-clients": 2}}, store)
    starter = Fake(**fails)
    return grid, run_grid(grid, Silent(), starter), starter


def test_a_candidate_that_failed_is_shown_and_tried_again(tmp_path):
    grid, states, _ = play(tmp_path, fail={"fedavg 0.2": "no memory"})
    assert grid.chosen["fedavg", ""] == {"learning-rate": 0.01} and [*states.values()].count(State.FAILED) == 1
    rows = {row[0]: row[1] for row in tables(grid, "Comparison")[0].rows}
    assert rows == {"fedavg": "learning-rate 0.01 (failed: learning-rate 0.2)", "local": "learning-rate 0.2"}
    grid, states, starter = play(tmp_path)
    assert grid.chosen["fedavg", ""] == {"learning-rate": 0.2} and {*states.values()} == {State.FINISHED}
    assert starter.started and all(name.startswith("fedavg") for name in starter.started)


def test_new_clients_are_measured_after_the_runs_of_methods_that_have_a_model_for_them(tmp_path):
    methods, base = {name: name for name in ("fedper", "fedamp")}, {**BASE, "num-clients": 4, "new-clients": 0.25}
    grid = ComparisonGrid(methods, base, {"learning-rate": [0.01, 0.2]}, 1, {"": {}}, Store(tmp_path))
    assert not any(run.modes for run in grid.planned()), "candidates are chosen on others' validation samples"
    run_grid(grid, Silent(), Fake(fail={"fedamp 0.2": "no memory"}))
    assert {row: set(run.modes) for (row, *_), run in grid.runs.items()} == {"fedper": {"local-train"}, "fedamp": set()}
    (first, *_) = tables(grid, "Comparison")
    assert "new clients, %" in first.columns and "That took 2 runs for each method" in first.note
    assert "after the last round; fedamp: no model for them." in first.note
    assert dict(zip(first.columns, first.rows[0], strict=True))["runs done"] == "1/1", "the chosen trial counts"


@pytest.mark.parametrize("discard_models", [False, True])
def test_a_chosen_trial_is_measured_as_the_other_seeds_are(discard_models, tmp_path):
    base, store = {**BASE, "num-clients": 4, "new-clients": 0.25}, Store(tmp_path)
    grid = ComparisonGrid({"fedper": "fedper"}, base, {"learning-rate": [0.01, 0.2]}, 2, {"": {}}, store)
    starter = Fake()
    states = run_grid(grid, Silent(), starter, discard_models=discard_models)
    assert len(states) == 2 and {*map(store.state, grid.runs.values())} == {State.FINISHED}
    (first, *_) = tables(grid, "Comparison")
    assert dict(zip(first.columns, first.rows[0], strict=True))["runs done"] == "2/2"
    left = [run for run in grid.planned() if any((tmp_path / "state").glob(f"{run.name}*"))]
    assert bool(left) is not discard_models


def test_the_settings_for_an_appendix_name_the_data_sets_that_have_them(tmp_path):
    data = {"few": {"num-clients": 2}, "many": {"num-clients": 3}, "three": {"num-clients": 3, "dirichlet-alpha": 1.0}}
    grid = ComparisonGrid(
        {"ditto": "ditto", "local": "local"}, BASE, {}, 2, data, Store(tmp_path), {"ditto-pull": [0.3]}
    )
    rows = {tuple(row[:2]): row[2] for row in settings_used(grid).rows}
    assert rows["num-clients", "all"] == "2 (few), 3 (many, three)"
    assert rows["dirichlet-alpha", "all"] == "1.0 (three)"
    assert rows["num-server-rounds", "all"] == "1"
    assert [text for (key, _), text in rows.items() if key == "ditto-pull"] == ["0.3"]


def test_the_best_of_each_data_set_is_marked_where_lower_is_better_and_where_higher_is(tmp_path):
    base = {**BASE, "loss": "mse", "metrics": "mae", "choose-by": "mae", "partitioner": "iid", "new-clients": 0.5}
    data = {"few": {"num-clients": 2}, "many": {"num-clients": 3}}
    grid = ComparisonGrid({"fedavg": "fedavg", "local": "local"}, base, {}, 1, data, Store(tmp_path))
    run_grid(grid, Silent(), Fake(accuracy={"fedavg": 0.8}))
    first, *_, errors, scores = tables(grid, "Comparison")
    assert "New clients did not take part, and there is no number of them: they are tested on classes" in first.note
    assert (errors.title, scores.title) == ("mae, by method and data", "R², mean over clients, by method and data")
    for table, best in ((errors, "0.1900"), (scores, "0.8100")):
        (fedavg,) = (line for line in table.latex().splitlines() if line.startswith("fedavg"))
        assert fedavg.count(rf"\textbf{{{best}}}") == 2


def test_a_saved_comparison_calls_its_runs_by_its_rows_and_data_sets(tmp_path):
    store = Store(tmp_path)
    data = {"few": {"num-clients": 2}, "many": {"num-clients": 3}}
    grid = ComparisonGrid({"ditto": "ditto"}, BASE, {}, 2, data, store, {"ditto-pull": [0.1, 1]})
    saved = SavedGrid(store, "mine")
    assert not saved.open(grid)
    run_grid(grid, Silent(), Fake())
    places = {(folder.row, folder.column) for folder in saved_runs(store, "mine")}
    assert places == {(f"ditto ditto-pull {pull}", column) for pull in ("0.1", "1") for column in data}
    for column in data:
        runs = [folder for folder in saved_runs(store, "mine") if folder.column == column]
        assert [group.label for group in grouped(runs)] == ["ditto ditto-pull 0.1", "ditto ditto-pull 1"]
    (saved.path / "runs.json").write_text('{"run": 3}')
    with pytest.raises(DamagedFile):
        saved_runs(store, "mine")


def test_a_saved_sweep_leaves_its_runs_their_settings_as_names(tmp_path):
    store = Store(tmp_path)
    grid = SweepGrid({"method": "fedavg", **BASE}, ["learning-rate=0.1,0.2"], 1, store)
    SavedGrid(store, "mine").open(grid)
    run_grid(grid, Silent(), Fake())
    assert [group.label for group in grouped(saved_runs(store, "mine"))] == [
        "fedavg, learning-rate 0.1", "fedavg, learning-rate 0.2",
    ]  # fmt: skip


def test_runs_that_are_made_again_are_told_and_counted_and_no_others(tmp_path):
    store, data = Store(tmp_path / "grid"), tmp_path / "mine.npz"
    base = {"method": "fedavg", **BASE, "dataset": "npz", "data": str(data), "partitioner": "iid"}

    def play(name, content):
        np.savez(data, x=np.full((20, 2), content), y=np.arange(20) % 2)
        grid, heard = SweepGrid(base, ["learning-rate=0.1,0.2"], 1, store), Silent()
        told = SavedGrid(store, name).open(grid)
        run_grid(grid, heard, Fake())
        return grid, told, heard.heard[0]

    play("mine", 1.0)
    told = "the content of data has changed since 2 of these runs were made: they are made again"
    assert play("mine", 2.0)[1:] == (told, ("begin", 2, 0, 2))
    grid, *heard = play("mine", 1.0)
    assert heard == ["", ("begin", 2, 2, 0)], "those of the first content are still there"
    (tmp_path / "read.npy").write_text("1")
    for run in grid.planned():  # their code has opened a file
        task = store.folder(run).path / "task.json"
        read = {"opened": {str(tmp_path / "read.npy"): "other"}}
        task.write_text(json.dumps({**json.loads(task.read_text()), "written_by": read}))
    told = f"the file {tmp_path / 'read.npy'} has changed since 2 of these runs were made: they are made again"
    assert play("mine", 1.0)[1:] == (told, ("begin", 2, 0, 2))


@pytest.mark.parametrize("fails", [{}, {"fedavg": "no memory"}])
def test_what_another_execution_has_tried_meanwhile_is_not_tried_again(tmp_path, fails):
    store, other, executor = Store(tmp_path), Fake(fail=fails), Fake()
    grid = SweepGrid({"method": "fedavg", **BASE}, ["learning-rate=0.1,0.2"], 1, store)

    class Meanwhile(Silent):
        def begin(self, runs, done, rounds):
            Execution(grid.wanted(), store, other).run(Silent())

    states = run_grid(grid, Meanwhile(), executor)
    assert not executor.started and {*states.values()} == {State.FAILED if fails else State.FINISHED}


def test_r2_stands_in_the_tables_as_a_number(tmp_path):
    base = {**BASE, "dataset": "npz", "data": "/nowhere.npz", "loss": "mse", "num-clients": 2}
    store = Store(tmp_path)
    grid = ComparisonGrid({"fedavg": "fedavg", "local": "local"}, base, {}, 2, {"": {}}, store)
    run_grid(grid, Silent(), Fake(accuracy={"local": -2.0}))
    first, differences = tables(grid, "Comparison")
    assert first.columns[1] == "R², mean over clients" and not any(
        "%" in head for head in first.columns if "95" not in head
    )
    assert "| fedavg | 0.5150 ± 0.0071 |" in first.markdown() and "| local | -1.9850 ± 0.0071 |" in first.markdown()
    assert "R² on test samples" in first.note and "cut at 1." in first.note
    assert "mean difference" in differences.columns and differences.rows[0][2] == pytest.approx(2.5)
    sweep = SweepGrid({"method": "fedavg", **base}, ["learning-rate=0.1"], 1, store)
    run_grid(sweep, Silent(), Fake())
    assert sweep.tables("Sweep")[0].columns[2] == "personalised R², mean over clients, best round"
