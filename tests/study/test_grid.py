"""Which settings are chosen: a candidate that failed is tried again, and shown until it has not."""

from grids import Fake, Silent

from fedpfl.study.comparison import ComparisonGrid, tables
from fedpfl.study.execution import run_grid
from fedpfl.study.store import State, Store

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
