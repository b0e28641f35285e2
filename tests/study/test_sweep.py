"""Sweeps: their points, that they do not change, and their table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grids import Fake, Silent

from fedpfl.core.errors import ConfigError
from fedpfl.results.history import History
from fedpfl.study.execution import Execution
from fedpfl.study.run_store import Store
from fedpfl.study.sweep import SweepGrid

NOWHERE = Store(Path("/nowhere"))
BASE = {"method": "fedprox", "dataset": "digits", "num-clients": 4, "num-server-rounds": 1}


def sweep(grid: list[str], seeds: int = 1, store: Store = NOWHERE) -> SweepGrid:
    return SweepGrid(BASE, grid, seeds, store)


def test_a_grid_is_every_value_with_every_other() -> None:
    points = sweep(["learning-rate=0.01,0.05", "model=small-cnn,'mlp'"]).points
    assert points == [
        {"learning-rate": rate, "model": model} for rate in (0.01, 0.05) for model in ("small-cnn", "mlp")
    ]  # fmt: skip


def test_a_setting_of_one_method_counts_for_it_alone() -> None:
    planned = sweep(["method=fedprox,fedavg", "fedprox-mu=0.1,1"])
    assert planned.points == [
        {"method": "fedprox", "fedprox-mu": 0.1}, {"method": "fedprox", "fedprox-mu": 1}, {"method": "fedavg"}
    ]  # fmt: skip
    assert planned.methods == ["fedavg", "fedprox"]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (["learning-rate"], "grid = 'learning-rate': must be key=value"),
        ([], "give a grid, or several seeds"),
        (["fedprox-nu=1"], "did you mean fedprox-mu"),
        (["ditto-pull=1"], "ditto-pull = [1]: is a setting of ditto, and the method is fedprox"),
        (["method=fedavg,local", "fedprox-mu=0.1,1"], "of fedprox, and the method is fedavg or local"),
        (["seed=1,2,3"], "seed = 1: cannot be set here; use --seeds N"),
        (["round-timeout=60,90"], "grid = 'round-timeout': changes no result"),
        (["learning-rate=-1"], "learning-rate = -1: must be > 0"),
    ],
)
def test_a_mistake_is_one_line(grid: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        sweep(grid)
    assert message in str(error.value)


def test_there_is_a_line_for_each_run_and_one_for_each_point_the_best_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    planned = sweep(["learning-rate=0.01,0.05", "method=fedprox,local"], seeds=2, store=store)
    Execution([*planned.runs.values()][:-1], store, Fake(fail={"local": "no memory"})).run(Silent())
    runs, points = planned.tables("A sweep")
    # The second seed is 1 % better, whichever its point; the run that was left out is the last one's.
    assert [row[:4] for row in runs.rows[:2]] == [["0.01", "fedprox", 2, 52.0], ["0.05", "fedprox", 2, 52.0]]
    assert len(runs.rows) == len({row[-1] for row in runs.rows}) == 8
    assert [row[-2] for row in runs.rows] == ["finished"] * 4 + ["failed"] * 3 + ["missing"]
    assert "no memory" in runs.note and "clients failed" not in runs.note
    metrics = store.folder(planned.runs["1 learning-rate 0.01, method fedprox", "", 1]).path / "metrics.jsonl"
    *lines, last = metrics.read_text().splitlines()
    metrics.write_text("\n".join([*lines, json.dumps({**json.loads(last), "failed": {"9": "no number"}}), ""]))
    said = "clients failed or were absent, and not tested: learning-rate 0.01, method fedprox (`fedpfl report`"
    assert all(said in table.note for table in planned.tables("A sweep"))
    assert len(sweep(["learning-rate=0.01"]).tables("One seed")) == 1
    text = points.markdown()
    assert "| 0.01 | fedprox | 51.500 ± 0.707 | 51.500 ± 0.707 | – | 2.000 ± 0.000 | 1.000 ± 0.000 | – | 2/2 |" in text
    assert "| 0.01 | local | – | – | – | – | – | no memory | 0/2 |" in text


def test_samples_for_validation_can_choose(tmp_path: Path) -> None:
    base = {**BASE, "validation-fraction": 0.1}
    store = Store(tmp_path)
    planned = SweepGrid(base, ["learning-rate=0.1,0.3,0.2"], 2, store, "validation")
    Execution(planned.runs.values(), store, Fake()).run(Silent())
    runs, points = planned.tables("A sweep")
    assert points.columns[1:3] == ["accuracy on validation samples, best round, %", (
        "personalised accuracy, mean over clients, in the round with the best validation score, %"
    )]  # fmt: skip
    assert [row[0] for row in points.rows] == ["0.3", "0.2", "0.1"]
    assert [row[0] for row in runs.rows[::2]] == ["0.3", "0.2", "0.1"]
    assert "without test samples" in points.note
    with pytest.raises(ConfigError, match=r"select = 'validation': needs validation-fraction above 0, in all runs"):
        SweepGrid(base, ["validation-fraction=0.1,0"], 1, store, "validation")
    with pytest.raises(ConfigError, match="needs the same choose-by in all runs, not accuracy, loss"):
        SweepGrid(base, ["choose-by=loss,accuracy"], 1, store, "validation")
    by_loss = SweepGrid({**base, "choose-by": "loss"}, ["learning-rate=0.1,0.2"], 1, store, "validation")
    number = by_loss.metric("validation:loss")
    assert number.heading == by_loss.tables("")[0].columns[2] == "loss on validation samples, best round"
    lines = [{"round": i, "personalised": {"each": {}}, "validation": {"loss": i}} for i in (2.0, 1.0)]
    assert number.value(History(lines, "loss")) == 1.0 and number.lowest_is_best
