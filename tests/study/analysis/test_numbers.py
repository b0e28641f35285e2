"""Analyses of recorded numbers, against numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import stdev
from types import SimpleNamespace

import pytest

from fedpfl.core.errors import ConfigError
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Spread
from fedpfl.study.analysis import ANALYSES, NotRecorded
from fedpfl.study.analysis.repetitions import grouped, other_code

# Beside the tables that need them.
product = ANALYSES["overall"].function.__globals__["product"]
ratio = ANALYSES["overall"].function.__globals__["ratio"]
lowest = ANALYSES["participation"].function.__globals__["lowest"]


def rows(result, table=0):
    return [list(row) for row in result.tables[table].rows]


def test_every_analysis_says_in_one_line_what_it_shows():
    for name, analysis in ANALYSES.items():
        assert analysis.name == name
        assert "\n" not in analysis.shows
        assert len(analysis.shows) > 20


def test_every_analysis_is_in_the_documentation_with_a_star_if_it_computes():
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "analyses.md").read_text()
    for name, analysis in ANALYSES.items():
        assert f"| `{name}`{' *' if analysis.computes else ''} |" in page


def test_no_runs_unknown_options_and_wrong_types_are_named(make_run, tested):
    with pytest.raises(ConfigError, match="needs at least one run"):
        ANALYSES["fairness"].make([])
    with pytest.raises(ConfigError, match=r"colour.*not an option of this analysis"):
        ANALYSES["fairness"].make([make_run("local", [tested(0.5)])], colour=1)


@pytest.mark.parametrize(
    "name", ["fairness", "overall", "participation", "per-client", "robustness", "scalability", "training-time"]
)
def test_a_run_without_a_round_has_nothing_to_show(make_run, name):
    with pytest.raises(NotRecorded, match="none of the runs has"):
        ANALYSES[name].make([make_run("local", [])])


def test_fairness_of_the_last_test(make_run, tested):
    runs = [make_run("local", [tested(0.0, 0.0, 0.0, 0.0), tested(0.2, 0.4, 0.6, 0.8), {}])]
    (row,) = rows(ANALYSES["fairness"].make(runs))
    assert row[0] == "local"
    assert [cell.mean for cell in row[1:]] == pytest.approx([50, 100 * math.sqrt(0.05), 20, 80, 20, 50])


def test_the_worst_tenth_of_twenty_clients_are_two(make_run, tested):
    run = make_run("local", [tested(*(i / 20 for i in range(20)))], clients=20)
    (row,) = rows(ANALYSES["fairness"].make([run]))
    assert row[3].mean == pytest.approx(100 * (0 + 0.05) / 2)
    assert row[4].mean == pytest.approx(100 * (0.9 + 0.95) / 2)


def test_seeds_of_one_setting_are_one_row_and_other_settings_another(make_run, tested):
    runs = [
        make_run("fedprox", [tested(0.5, 0.5)], seed=1, fedprox_mu=0.1),
        make_run("fedprox", [tested(0.6, 0.6)], seed=2, fedprox_mu=0.1, threads=1),
        make_run("fedprox", [tested(0.9, 0.9)], seed=1, fedprox_mu=1.0),
        make_run("local", [tested(0.1, 0.1)], learning_rate=0.5),
    ]
    first, second, third = rows(ANALYSES["fairness"].make(runs))
    assert [first[0], second[0], third[0]] == ["fedprox, fedprox-mu 0.1", "fedprox, fedprox-mu 1.0", "local"]
    assert (first[1].mean, first[1].std, first[1].n) == pytest.approx((55, stdev([50, 60]), 2))
    assert second[1] == Spread(90, None, 1)


def test_who_loses_against_training_alone(make_run, tested):
    runs = [
        make_run("local", [tested(0.5, 0.6, 0.7, 0.8)]),
        make_run("feddecomp", [tested(0.7, 0.5, 0.7, 0.9)], data_dir="/elsewhere"),
        make_run("feddecomp", [tested(0.0, 0.0, 0.0, 0.0)], seed=2),  # Local has no such division
    ]
    result = ANALYSES["per-client"].make(runs)
    same, others, _ = result.tables
    assert same.columns == ["client", "local", "feddecomp, seed 1"]
    assert others.columns == ["client", "feddecomp, seed 2"]
    assert "their clients are not the same" in same.note
    assert rows(result)[0] == [0, *(pytest.approx(a) for a in (50, 70))]
    ((label, against, *counts, worst, mean),) = rows(result, 2)
    assert (label, against, *counts) == ("feddecomp", "local", 4, 2, 1, 1)  # clients; gain, tie, lose
    assert (worst, mean) == pytest.approx((-10, 5))
    distributions, points = result.figures
    counts_by_median = [(name, len(values)) for name, values in distributions.groups.items()]
    assert counts_by_median == [("feddecomp", 8), ("local", 4)]
    assert points.series["feddecomp"][0] == pytest.approx([50, 60, 70, 80])


def test_the_same_clients_have_a_mean_over_seeds(make_run, tested):
    task = {"dataset": "table", "data": "/people.csv", "partitioner": "natural"}
    runs = [make_run("local", [tested(first, 0.5)], seed=seed, **task) for seed, first in ((1, 0.2), (2, 0.4))]
    table = ANALYSES["per-client"].make([*runs, make_run("fedper", [tested(0.9, 0.8)], **task)]).tables[0]
    assert table.columns == ["client", "local", "fedper"]
    assert table.rows[0][1] == Spread.of([20, 40]) and table.rows[0][2] == pytest.approx(90)
    assert table.csv().splitlines()[0] == "client,local,local std,local n,fedper"


def test_a_setting_younger_than_a_run_counts_as_its_default(make_run, tested):
    runs = [make_run("local", [tested(0.5)], seed=seed) for seed in (1, 2)]
    config = runs[0].path / "config.toml"
    config.write_text("".join(line for line in config.open() if not line.startswith("initial-weights")))
    ((label, mean, *_),) = rows(ANALYSES["fairness"].make(runs))
    assert (label, mean.n) == ("local", 2)


def test_clients_of_another_division_are_not_compared(make_run, tested):
    runs = [make_run("local", [tested(0.5, 0.6)]), make_run("fedper", [tested(0.1, 0.1)], dirichlet_alpha=0.9)]
    columns = [table.columns for table in ANALYSES["per-client"].make(runs).tables]
    assert columns == [["client", "local"], ["client", "fedper"]]


def test_training_time_leaves_out_the_first_round(make_run):
    runs = [
        make_run("feddecomp", [{"seconds_train": s} for s in (50.0, 3.0, 4.0, 5.0)]),
        make_run("fedavg", [{"seconds_train": s} for s in (90.0, 2.0)]),
    ]
    result = ANALYSES["training-time"].make(runs)
    assert [[row[0], row[1].mean, row[2]] for row in rows(result)] == [["feddecomp", 4, 2], ["fedavg", 2, 1]]
    alone = ANALYSES["training-time"].make(runs[:1])
    assert rows(alone)[0][2] is None
    assert "Runs without a ratio" in alone.tables[0].note
    assert alone.figures == []


def test_training_time_is_related_to_fedavg_on_the_same_data(make_run):
    times = (
        ("fedavg", "cifar10", 2.0),
        ("fedper", "cifar10", 3.0),
        ("fedavg", "digits", 10.0),
        ("fedper", "digits", 5.0),
    )
    runs = [make_run(method, [{"seconds_train": seconds}], dataset=data) for method, data, seconds in times]
    result = ANALYSES["training-time"].make([*runs, make_run("local", [{"seconds_train": 1.0}], dataset="mnist")])
    assert [row[2] for row in rows(result)] == [1, 1.5, 1, 0.5, None]
    named = [RunFolder(run.path, "row", column) for run, column in zip(runs, "AABB", strict=True)]
    assert [group.label for group in grouped(named)] == ["row, A", "row, B"]


def test_the_rows_of_an_experiment_are_one_curve_over_its_columns(make_run, tested):
    runs = [make_run("fedavg", [tested(0.1, weighted=w)], clients=n) for n, w in ((30, 0.8), (50, 0.6))]
    named = [RunFolder(run.path, "Mean", f"{n} clients") for run, n in zip(runs, (30, 50), strict=True)]
    assert ANALYSES["scalability"].make(named).figures[0].series == {"Mean": ([30, 50], [80, 60])}
    # Two columns with as many clients would be one point of one curve: settings tell them apart then.
    other = make_run("fedavg", [tested(0.1, weighted=0.5)], clients=50, dataset="cifar10")
    series = ANALYSES["scalability"].make([*named, RunFolder(other.path, "Mean", "C")]).figures[0].series
    assert sorted(map(len, (xs for xs, _ in series.values()))) == [1, 2]


def test_accuracy_over_the_number_of_clients(make_run, tested):
    runs = [
        make_run("fedavg", [tested(0.1, weighted=0.8, shared=0.7), tested(0.1, weighted=0.6, shared=0.75)], clients=30),
        make_run("fedavg", [tested(0.1, weighted=0.5, shared=0.5)], clients=50),
        make_run("fedper", [tested(0.1, weighted=0.9)], clients=50),
    ]
    result = ANALYSES["scalability"].make(runs)
    shared, personal = result.tables
    assert shared.columns == ["run", "clients = 30", "clients = 50"]
    assert [[row[0], *(cell and cell.mean for cell in row[1:])] for row in shared.rows] == [["fedavg", 75, 50]]
    assert [cell and cell.mean for cell in personal.rows[1][1:]] == [None, 90]
    assert result.figures[1].series == {"fedavg": ([30, 50], [80, 50]), "fedper": ([50], [90])}


def test_what_unlike_clients_cost(make_run, tested):
    runs = [
        make_run("fedavg", [tested(0.1, weighted=w, shared=g)], dirichlet_alpha=a)
        for a, w, g in ((0.5, 0.8, 0.6), (0.1, 0.9, 0.5))
    ]
    shared, personal = ANALYSES["robustness"].make(runs).tables
    assert shared.columns[-1] == "lost, points"
    assert shared.rows[0][-1] == pytest.approx(10)
    assert personal.rows[0][-1] == pytest.approx(-10)


def test_accuracy_by_how_often_a_client_has_trained(make_run, tested):
    lines = [tested(0.2, 0.6) | {"clients": [1]}, {"clients": [1]}, tested(0.4, 0.8) | {"clients": [0, 1]}]
    runs = [make_run("fedreg", lines, clients=2), make_run("fedreg", lines, clients=2, seed=2)]
    result = ANALYSES["participation"].make([*runs, make_run("local", lines[:2], clients=2)])
    assert result.tables[0].columns == ["run", "0", "1", "3 to 4"]
    first, second = rows(result)
    # Client 0 before and after its only round: 20 and 40; client 1 after one and after three: 60 and 80.
    assert [cell.mean for cell in first[1:]] == pytest.approx([20, 50, 80])
    assert [cell.n for cell in first[1:]] == [2, 2, 2]
    assert [second[0], second[1].mean, second[2].mean, second[3]] == ["local", 20, 60, None]
    assert result.figures[0].series["local"] == ([0, 1], [20, 60])


def test_tests_at_a_round_s_start_are_before_its_training(make_run, tested):
    lines = [tested(0.2, 0.6) | {"clients": [1]}, tested(0.4, 0.8) | {"clients": [0, 1]}]
    result = ANALYSES["participation"].make([make_run("fedreg", lines, clients=2, test_at="start")])
    # Round 1 tests what nobody has trained; in round 2 only client 1 has.
    assert result.figures[0].series["fedreg"] == ([0, 1], [pytest.approx(40), 80])


@pytest.mark.parametrize(
    ("rounds", "together"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 5), (8, 5), (9, 9), (16, 9)]
)
def test_which_numbers_of_rounds_count_together(rounds, together):
    assert lowest(rounds) == together


def test_the_overall_metric(make_run, tested):
    lines = [tested(0.1, weighted=0.8, shared=0.2), tested(0.1, weighted=0.4, shared=0.4)]
    result = ANALYSES["overall"].make([make_run("fedrod", lines), make_run("fedper", [tested(0.1)])])
    ((label, clients, g, p, value, other),) = rows(result)
    assert (label, clients) == ("fedrod", 4)
    assert [cell.mean for cell in (g, p, value, other)] == pytest.approx([40, 80, math.log10(0.5), math.log10(0.32)])


# FedReG, table 3: (global, personal) accuracy over the number of clients.
PAPER = {
    "fedavg": ((54.91, 54.91), (56.67, 56.67), (49.50, 49.50), (53.97, 52.87), (53.46, 53.46)),
    "fedrod": ((60.14, 87.99), (57.65, 87.32), (49.85, 88.38), (51.61, 88.84), (40.94, 86.23)),
    "ditto": ((56.32, 85.85), (55.89, 84.27), (49.39, 84.68), (52.23, 84.01), (43.68, 80.83)),
    "fedreg": ((60.50, 88.45), (58.12, 87.59), (57.70, 89.20), (55.91, 88.90), (54.42, 87.77)),
}


def test_the_quotient_orders_the_paper_s_table_as_the_paper_does():
    for place in range(5):
        of = {name: ratio(*values[place]) for name, values in PAPER.items()}
        assert of["fedreg"] > max(of["fedrod"], of["ditto"])  # "consistently outperforms the PFL baselines"
        assert of["fedavg"] > of["fedreg"]  # "apart from the traditional FL algorithm"
        also = {name: product(*values[place]) for name, values in PAPER.items()}
        assert also["fedreg"] == max(also.values())  # which the product would contradict


def test_runs_that_differ_in_much_are_called_by_their_names(make_run, tested):
    few = [make_run("fedavg", [tested(0.5)], learning_rate=rate) for rate in (0.1, 0.2)]
    assert [group.label for group in grouped(few)] == ["fedavg, learning-rate 0.1", "fedavg, learning-rate 0.2"]
    much = {"learning_rate": 0.3, "batch_size": 7, "local_epochs": 9, "model": "mlp"}
    every = [few[0], make_run("fedavg", [tested(0.5)], **much)]
    assert [group.label for group in grouped(every)] == [f"fedavg, {run.path.name}" for run in every]
    assert "batch-size 7" in grouped(every, "clients")[1].label, "one label for all of a curve"


def test_a_note_on_code_names_each_run_with_its_data_and_seed():
    def run(column, code):
        return SimpleNamespace(
            row="local",
            column=column,
            config=lambda: {"seed": 2},
            task=lambda: {"written_by": {"fedpfl": "1", "code": code}},
        )

    (note,) = other_code([run("digits", "aaaaaaaa"), run("", "aaaaaaaa"), run("cancer", "bbbbbbbb")])
    assert note.endswith(" 1 (aaaaaa): local, digits, seed 2; local, seed 2. 1 (bbbbbb): local, cancer, seed 2.")
