"""What is measured of a run, on lines of metrics that can be checked by hand."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from grids import FILE, Fake, Silent, write

from fedpfl.core.errors import ConfigError
from fedpfl.results.history import History, of_clients
from fedpfl.results.run_folder import RunFolder
from fedpfl.study import run_numbers
from fedpfl.study.analysis import ANALYSES
from fedpfl.study.execution import Execution
from fedpfl.study.experiment import ExperimentGrid
from fedpfl.study.experiment_file import load
from fedpfl.study.paper_tables import tables
from fedpfl.study.run_store import Store


def line(number: int, accuracy: float, weighted: float, shared: float | None = None) -> dict:
    each = {"0": accuracy - 0.1, "1": accuracy, "2": accuracy + 0.1}
    scores = {"accuracy": accuracy, "weighted": weighted, "each": each}
    out = {
        "round": number, "seconds_train": 2.0, "bytes_up": 3 * 10**8, "bytes_down": 2 * 10**8, "train_loss": 1 / number,
        "personalised": scores, "details": {"drift": 5.0 * number},
    }  # fmt: skip
    return out if shared is None else {**out, "global": {"accuracy": shared}}


def trained(scores: dict[str, tuple[float, int]]) -> dict:
    return {"each": {i: s for i, (s, _) in scores.items()}, "samples": {i: n for i, (_, n) in scores.items()}}


LINES = [
    line(1, 0.5, 0.6, 0.4),
    {**line(2, 0.7, 0.65, 0.3), "trained": trained({"0": (1.0, 2)})},
    {**line(3, 0, 0), "personalised": None, "trained": trained({"1": (0.5, 8)})},
    {**line(4, 0.6, 0.7), "trained": trained({"0": (0.5, 2)})},
]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("personalised-best", 0.7), ("personalised-last", 0.6), ("weighted-best", 0.7), ("weighted-last", 0.7),
        ("weighted-best-10", 0.65), ("trained-best", 0.6), ("global-best", 0.4), ("global-last", 0.3),
        ("gigabytes", 2.0), ("megabytes", 2000.0), ("worst-tenth-last", 0.5), ("seconds", 8.0),
        ("train-loss-last", 0.25), ("detail:drift", 20.0), ("detail:other", None),
    ],
)  # fmt: skip
def test_a_metric(name: str, value: float | None) -> None:
    assert run_numbers.find(name).value(History(LINES)) == (None if value is None else pytest.approx(value))


def test_the_best_ten_rounds_are_consecutive() -> None:
    lines = [line(i, 0, w) for i, w in enumerate([0.9] + [0.1] * 9 + [0.5] * 10 + [0.9], 1)]
    assert run_numbers.find("weighted-best-10").value(History(lines)) == pytest.approx((9 * 0.5 + 0.9) / 10)


def test_the_best_ten_rounds_are_those_in_which_no_test_is_missing() -> None:
    best = run_numbers.find("weighted-best-10").value
    lines = [line(i, 0, w) for i, w in enumerate([0.9] + [0.1] * 9 + [0.5] * 10, 1)]
    lines[0]["untested"] = [3]
    assert best(History(lines)) == pytest.approx(0.5)
    lines[14]["untested"] = [3]
    assert best(History(lines)) == pytest.approx((6 * 0.1 + 4 * 0.5) / 10)
    for place in (0, 9, 18):
        lines[place] |= {"personalised": None, "untested": [0, 1, 2, 3]}
    assert best(History(lines)) is None
    for one in lines:
        one["untested"] = [3]
    assert best(History(lines[1:9])) == pytest.approx(0.1)


def test_a_cost_is_that_of_a_round_in_which_no_test_is_missing() -> None:
    lines = [{**line(1, 0.9, 0.9), "untested": [2]}, line(2, 0.8, 0.8), line(3, 0.9, 0.9)]
    cost = run_numbers.find("rounds-to:accuracy=0.84").value
    assert cost(History(lines)) == 3
    assert cost(of_clients(History(lines), {0, 1})) == 1, "of these two no test is missing"


def test_samples_for_validation_choose_the_round_and_tests_report_it() -> None:
    lines = [{**line(i, tests, 0.0), "validation": {"accuracy": held}}
             for i, tests, held in ((1, 0.9, 0.2), (2, 0.6, 0.8), (3, 0.7, 0.8), (4, 0.8, 0.5))]  # fmt: skip
    assert run_numbers.find("validation-best").value(History(lines)) == pytest.approx(0.8)
    assert run_numbers.find("personalised-chosen").value(History(lines)) == pytest.approx(0.6), (
        "the first of two that are level"
    )
    lines[1]["global"] = {"accuracy": 0.3}
    assert run_numbers.find("worst-tenth-chosen").value(History(lines)) == pytest.approx(0.5), "of three clients one"
    assert run_numbers.find("worst-tenth-chosen").value(of_clients(History(lines), {1, 2})) == pytest.approx(0.6)
    assert run_numbers.find("global-chosen").value(History(lines)) == pytest.approx(0.3)
    assert run_numbers.find("personalised-chosen").value(History(LINES)) is None
    assert run_numbers.find("validation-best").value(History(LINES)) is None


def test_runs_that_recorded_no_sizes_have_no_number_of_trained_models() -> None:
    assert run_numbers.find("trained-best").value(History([{"round": 1, "trained": {"each": {"0": 0.5}}}])) is None


def test_without_rounds_there_is_nothing() -> None:
    for name in ("personalised-best", "trained-best", "personalised-last", "weighted-best-10", "train-loss-last"):
        assert run_numbers.find(name).value(History([])) is None


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(ConfigError, match="must be one of personalised-best"):
        run_numbers.find("accuracy")
    with pytest.raises(ConfigError, match="must be one of personalised, global, validation, train-loss, detail:NAME"):
        run_numbers.find_curve("accuracy")


def test_the_attack_s_average_and_maximum_and_those_over_columns(tmp_path, monkeypatch) -> None:
    text = FILE.replace('["personalised-best", "gigabytes"]', '["attack:average", "attack:maximum"]')
    text = text.replace(
        '"B" = { dirichlet-alpha = 1.0 }', '"B" = { dirichlet-alpha = 1.0 }\n"both" = { pool = ["A", "B"] }'
    )
    text = text.replace("[rows]", '[analyses]\nattack = { of = "all", clients = 3 }\n[rows]', 1)
    text = text[: text.index("[paper-values]")] + '[paper-values]\nmissing = "none"\n'
    measured = ExperimentGrid(load(write(tmp_path, text)), "smoke", Store(tmp_path / "runs"), seeds=1)
    assert {column for _, column in measured.cells} == {"A", "B"}, "a column that is put together is not run"
    Execution(measured.runs.values(), measured.store, Fake()).run(Silent())

    attack = sys.modules[ANALYSES["attack"].function.__module__]

    def attempts(run: RunFolder, options: Any) -> list[Any]:
        alpha, white = run.config()["dirichlet-alpha"], torch.ones(1, 2, 2)
        return [attack.Attempt(white, white, 10 * alpha + client, 0.0) for client in range(options.clients)]

    monkeypatch.setattr(attack, "attempts_of", attempts)
    average, maximum = (table.rows for table in tables(measured))
    assert [cell.mean for cell in average[0][1:]] == [2, 11, 6.5]
    assert [cell.mean for cell in maximum[0][1:]] == [3, 12, 12]
    assert (average[1][1].mean, average[1][2], average[1][3].mean) == (2, None, 2), "one cell of two is not covered"
    assert "both is of A alone for Local." in tables(measured)[0].note


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("rounds-to:accuracy=0.5", 1), ("rounds-to:accuracy=0.7", 2), ("rounds-to:accuracy=0.95", None),
        ("megabytes-to:accuracy=0.7", 1000.0), ("seconds-to:accuracy=0.7", 4.0), ("rounds-to:weighted=0.65", 2),
    ],
)  # fmt: skip
def test_what_a_target_costs(name, wanted):
    history = History([line(1, 0.5, 0.6), line(2, 0.7, 0.65), line(3, 0.6, 0.8)])
    assert run_numbers.find(name).value(history) == wanted


def test_of_an_error_the_target_is_reached_from_above():
    lines = [{**line(i, 0.5, 0.5), "personalised": {"rmse": rmse}} for i, rmse in ((1, 3.0), (2, 1.0))]
    assert run_numbers.find("rounds-to:rmse=1.5").value(History(lines)) == 2
    for row in lines:
        row["personalised"]["rmse-pooled"] = row["personalised"]["rmse"]
    assert run_numbers.find("rounds-to:rmse-pooled=1.5").value(History(lines)) == 2
    assert run_numbers.find("last:rmse-pooled").lowest_is_best


@pytest.mark.parametrize("name", ["rounds-to:accuracy", "rounds-to:", "rounds-to:accuracy=x", "rounds-to"])
def test_a_target_that_is_none_is_refused(name):
    with pytest.raises(ConfigError, match="METRIC=VALUE"):
        run_numbers.find(name)


@pytest.mark.parametrize("name", ["accuracy=90", "weighted=65", "f1-macro=80", "f1-micro-pooled=80", "mae=-0.1"])
def test_a_target_that_no_run_can_reach_is_refused(name):
    with pytest.raises(ConfigError, match=r"must be at (most 1, as a share is|least 0): .* never is"):
        run_numbers.find(f"rounds-to:{name}")


def test_r2_is_a_number_and_no_percentage():
    history = History([line(1, -1.5, 0.0)])
    metric = run_numbers.find("personalised-last", "mse")
    assert (
        metric.title == "personalised R², mean over clients, last round"
        and metric.short_title == "R², mean over clients"
    )
    assert metric.spread([metric.value(history)]).mean == -1.5 and metric.digits == 4
    assert run_numbers.find("personalised-last").spread([0.5]).mean == 50
    assert run_numbers.find("gigabytes", "mse") == run_numbers.find("gigabytes")
    weighted = run_numbers.find("weighted-last", "mse").title
    assert weighted == "personalised R², mean over clients weighted by test samples, last round"
