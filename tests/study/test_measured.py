"""Which settings are chosen: a candidate that failed is tried again, and shown until it has not."""

from grids import Fake, Silent

from fedpfl.study.comparison import comparison, tables
from fedpfl.study.grid import Grid
from fedpfl.study.store import State, Store

BASE = {"dataset": "digits", "num-clients": 2, "model": "mlp", "num-server-rounds": 1}


def play(tmp_path, **fails):
    store = Store(tmp_path)
    methods = {"fedavg": "fedavg", "local": "local"}
    measured = comparison(methods, BASE, {"learning-rate": [0.01, 0.2]}, 1, {"": {"num-clients": 2}}, store)
    starter = Fake(**fails)
    states = Grid(measured.wanted(), store, starter).run(Silent())
    measured.choose(final=True)
    states |= Grid([run for run in measured.wanted() if run.name not in states], store, starter).run(Silent())
    return measured, {name: states[name] for name in (run.name for run in measured.wanted())}, starter


def test_a_candidate_that_failed_is_shown_and_tried_again(tmp_path):
    measured, states, _ = play(tmp_path, fail={"fedavg 0.2": "no memory"})
    assert measured.chosen["fedavg", ""] == {"learning-rate": 0.01} and [*states.values()].count(State.FAILED) == 1
    rows = {row[0]: row[1] for row in tables(measured, "Comparison")[0].rows}
    assert rows == {"fedavg": "learning-rate 0.01 (failed: learning-rate 0.2)", "local": "learning-rate 0.2"}
    measured, states, starter = play(tmp_path)
    assert measured.chosen["fedavg", ""] == {"learning-rate": 0.2} and {*states.values()} == {State.FINISHED}
    assert starter.started and all(name.startswith("fedavg") for name in starter.started)
