"""Which differences are significant, against SciPy and numbers worked out by hand."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from scipy import stats

from fedpfl.results.run_folder import RunFolder
from fedpfl.study.analysis import ANALYSES, NotRecorded
from fedpfl.study.analysis.significance import (
    ClientOfSeed,
    Pair,
    accuracies_of,
    against,
    compared,
    conclusion,
    holm,
    interval,
    wilcoxon,
)


def test_holm_multiplies_by_what_is_left_and_never_decreases():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5, 0.02]) == pytest.approx([1, 1, 0.06])
    assert holm([]) == []


def test_wilcoxon_is_scipy_s_and_equal_clients_are_no_difference():
    assert wilcoxon([0.0, 0.0]) == 1
    assert wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 2**5)
    # The last bits make no ranks: 0.3 − 0.2 is 0.2 − 0.1.
    assert wilcoxon([0.3 - 0.2, -(0.2 - 0.1)]) == wilcoxon([0.1, -0.1])


def test_the_interval_is_student_s():
    values = [50.0, 52.0, 57.0]
    low, high = interval(values)
    expected = stats.t.interval(0.95, 2, loc=fmean(values), scale=stats.sem(values))
    assert (low, high) == pytest.approx(expected)
    assert interval([50.0]) is None
    assert interval([97.0, 99.0], 0, 100) == (pytest.approx(98 - stats.t.ppf(0.975, 1)), 100)


def test_pairs_are_of_the_clients_that_both_have():
    first = {client: 50.0 + client for client in range(8)}
    second = {client: 40.0 + client - client / 10 for client in range(1, 9)}
    (pair,) = compared({"b": second, "a": first})
    assert pair[:5] == ("a", "b", pytest.approx(10 + fmean(range(1, 8)) / 10), 7, 7)
    assert pair.p == pair.corrected == pytest.approx(2 / 2**7)
    assert pair.is_significant
    many = compared({str(kind): {client: kind + client % 3 for client in range(6)} for kind in range(13)})
    assert len(many) == 12 and {pair.first for pair in many} == {"12"}


def test_a_mean_that_few_clients_make_is_not_called_higher():
    """Wilcoxon's test is of ranks: here 29 of 30 clients are better with b, and a has the higher mean."""
    kinds = {
        "a": {client: 50.0 + 50 * (client == 0) for client in range(30)},
        "b": {client: 51.0 - (client == 0) for client in range(30)},
    }
    (pair,) = compared(kinds)
    assert (pair.first, pair.better, pair.mixed, pair.is_significant) == ("a", 1, True, False)
    assert pair.difference > 0
    assert pair.corrected < 0.05
    assert conclusion([pair]).endswith("correction). Not significant: a and b (mean and ranks disagree).")
    assert against(kinds, "a").endswith("1 other does not differ significantly (of 1 mean and ranks disagree).")
    sure = Pair("a", "c", 1.0, 30, 30, 0, 0.01, 0.01)
    assert conclusion([pair, sure]).endswith("Not significant: a and b (mean and ranks disagree).")


@pytest.mark.parametrize("equal", [0, 200])
def test_clients_without_a_difference_have_no_rank(equal):
    """Wilcoxon leaves them out; were they ranked, they would move the sum of ranks towards a count of heads."""
    lower, higher = [-(client + 1) / 100 for client in range(60)], [1 + client / 100 for client in range(40)]
    differences = [*lower, *higher, *([0.0] * equal)]
    (pair,) = compared(
        {"a": {client: 50 + of for client, of in enumerate(differences)}, "b": dict.fromkeys(range(300), 50.0)}
    )
    assert (pair.first, pair.better, pair.equal, pair.mixed) == ("a", 40, equal, False)
    assert pair.is_significant


@pytest.mark.parametrize("same_clients", [True, False])
def test_seeds_that_one_kind_lacks_do_not_count(same_clients):
    def values(seed, base):
        return {
            ClientOfSeed(client, seed) if same_clients else (seed, client): base + client / 10 for client in range(9)
        }

    kinds = {"a": {**values(1, 50), **values(2, 90), **values(3, 90)}, "b": values(1, 60)}
    (pair,) = compared(kinds)
    assert (pair.first, pair.second, pair.clients, pair.better) == ("b", "a", 9, 9)
    assert pair.difference == pytest.approx(10)


def test_the_best_of_many_was_not_named_in_advance():
    kinds = {str(kind): {client: kind + client % 3 for client in range(6)} for kind in range(4)}
    named, chosen = compared(kinds, "3"), compared(kinds, "3", in_advance=False)
    assert [pair[:7] for pair in named] == [pair[:7] for pair in chosen]
    assert [pair.corrected for pair in named] == pytest.approx([3 * 2 / 2**6] * 3)
    assert [pair.corrected for pair in chosen] == pytest.approx([6 * 2 / 2**6] * 3)


def test_columns_on_the_same_data_stay_apart(make_run, tested):
    runs = [
        RunFolder(make_run(method, [tested(*[accuracy] * 9)], local_epochs=epochs).path, method, f"E {epochs}")
        for epochs, of in ((1, {"local": 0.5, "fedper": 0.6}), (5, {"local": 0.9, "fedper": 0.5}))
        for method, accuracy in of.items()
    ]
    first, second = ANALYSES["significance"].make(runs).tables
    assert first.title.endswith("E 1") and first.rows[0][:3] == ["fedper", "local", pytest.approx(10)]
    assert second.title.endswith("E 5") and second.rows[0][:3] == ["local", "fedper", pytest.approx(40)]


def test_a_sentence_says_what_is_sure_and_what_is_not():
    def pair(first, second, p, clients=10):
        return Pair(first, second, 1.0, clients, 8, 1, p, p)

    assert (
        conclusion([pair("a", "b", 0.2)])
        == "No difference is statistically significant (p < 0.05 after Holm's correction)."
    )
    few = conclusion([pair("a", "b", 0.2, clients=5)])
    assert few.endswith("correction). 5 clients are too few for a significant difference: 1 pair needs at least 6.")
    best_of_13 = conclusion([pair("a", str(other), 0.2) for other in range(12)], tests=78)
    assert best_of_13.endswith("10 clients are too few for a significant difference: 78 pairs need at least 12.")
    assert wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0]) > 0.05 > wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert conclusion([pair("a", "b", 0.2), pair("a", "c", 0.01), pair("a", "d", 0.01), pair("b", "c", 0.01)]) == (
        "Statistically significant (p < 0.05 after Holm's correction): a is higher than c and d; b is higher than c. "
        "Not significant: a and b."
    )


def test_one_kind_is_compared_with_all_others():
    clients = range(8)
    kinds = {
        "best": {client: 60.0 + client for client in clients}, "base": {client: 50.0 + client for client in clients},
        "near": {client: 50.0 + client + (-1) ** client * (client + 1) for client in clients},
        "worst": {client: 40.0 + client for client in clients},
    }  # fmt: skip
    pairs = compared(kinds, "base")
    assert {(pair.first, pair.second) for pair in pairs} == {("best", "base"), ("base", "near"), ("base", "worst")}
    assert against(kinds, "base") == (
        "Compared with base (Wilcoxon over clients, p < 0.05 after Holm's correction): best is higher; worst is lower; "
        "1 other does not differ significantly."
    )
    assert "best, near are higher" not in against(kinds, "worst") and against(kinds, "best").count("lower") == 1


def test_clients_of_each_seed_count_but_a_person_once(make_run, tested):
    def runs(**settings):
        return [
            make_run(method, [tested(*(base + seed / 100 + client / 50 for client in range(4)))], seed=seed, **settings)
            for method, base in (("local", 0.5), ("fedper", 0.6)) for seed in (1, 2)
        ]  # fmt: skip

    (table,) = ANALYSES["significance"].make(runs()).tables
    higher, lower, difference, clients, better, _, p, corrected, sure = table.rows[0]
    assert (higher, lower, clients, better, sure) == ("fedper", "local", 8, 8, "yes")
    assert difference == pytest.approx(10) and p == corrected
    assert "fedper is higher than local" in table.note
    (table,) = ANALYSES["significance"].make(runs(partition_seed=7)).tables
    assert table.rows[0][3] == 4 and table.rows[0][-1] == "no"


def test_the_round_is_that_of_validation(make_run, tested):
    lines = [
        {**tested(0.9, 0.9), "validation": {"accuracy": 0.8}},
        {**tested(0.1, 0.1), "validation": {"accuracy": 0.7}},
    ]
    runs = [make_run("local", lines), make_run("fedper", [{**line, **tested(0.5, 0.5)} for line in lines])]
    (table,) = ANALYSES["significance"].make(runs).tables
    assert table.rows[0][:3] == ["local", "fedper", pytest.approx(40)]
    assert table.note.endswith("over the clients, in the round with the best validation score.")


def with_metric(line, name, values):
    """Return a line of metrics in which clients have another metric as well; None where it is not defined."""
    each = {str(i): value for i, value in enumerate(values) if value is not None}
    return {**line, "personalised": {**line["personalised"], name: fmean(each.values()), f"each-{name}": each}}


@pytest.mark.parametrize(
    ("metric", "loss", "other", "difference", "word", "column"),
    [
        ("auroc", "cross-entropy", 0.25, 25, "higher", "mean difference, points"),
        ("mae", "mse", 7.5, -7.0, "lower", "mean difference"),
        ("r2", "mse", -0.5, 1.0, "higher", "mean difference"),
    ],
)
def test_runs_are_compared_by_the_metric_that_they_are_chosen_by(
    make_run, tested, metric, loss, other, difference, word, column
):
    settings = {"metrics": metric, "choose_by": metric, "loss": loss}
    # By accuracy the other one is better; for the last client the metric is not defined.
    good = with_metric(tested(*[0.5] * 9), metric, [*[0.5] * 8, None])
    bad = with_metric(tested(*[0.9] * 9), metric, [*[other] * 8, None])
    runs = [make_run("local", [bad], 9, **settings), make_run("ditto", [good], 9, **settings)]
    (table,) = ANALYSES["significance"].make(runs).tables
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert [*row.values()][:2] == ["ditto", "local"] and f"ditto is {word} than local" in table.note
    assert row[column] == pytest.approx(difference) and row["clients"] == 8
    assert f"Differences in {metric}" in table.title
    accuracy = [make_run("local", [bad], 9), make_run("ditto", [good], 9)]
    (table,) = ANALYSES["significance"].make(accuracy).tables
    assert table.rows[0][:2] == ["local", "ditto"]


def test_runs_with_other_clients_are_not_compared(make_run, tested):
    runs = [make_run("local", [tested(0.5, 0.6)]), make_run("fedper", [tested(0.1, 0.1)], dirichlet_alpha=0.9)]
    with pytest.raises(NotRecorded, match="none of the runs has others to be compared with"):
        ANALYSES["significance"].make(runs)


def test_a_run_of_many_clients_is_read_as_often_as_one_of_few(make_run, tested, monkeypatch):
    reads, real = [], RunFolder.task
    monkeypatch.setattr(RunFolder, "task", lambda run: reads.append(run) or real(run))
    few, many = (make_run("local", [tested(*[0.5] * clients)]) for clients in (2, 50))
    assert len(accuracies_of([few])) == 2
    before = len(reads)
    assert len(accuracies_of([many])) == 50
    assert len(reads) == 2 * before


def test_ranks_over_data_sets_are_demsar_s(make_run, tested):
    accuracies = {
        "local": (0.5, 0.4, 0.6, 0.3), "fedper": (0.7, 0.5, 0.8, 0.6), "fedavg": (0.6, 0.3, 0.7, 0.5)
    }  # fmt: skip
    runs = [
        make_run(method, [tested(accuracy, accuracy)], dirichlet_alpha=0.1 * (place + 1))
        for method, of in accuracies.items() for place, accuracy in enumerate(of)
    ]  # fmt: skip
    *_, ranks = ANALYSES["significance"].make(runs).tables
    assert [list(row) for row in ranks.rows] == [["fedper", 1.0], ["fedavg", 2.25], ["local", 2.75]]
    friedman = stats.friedmanchisquare(*([*of] for of in accuracies.values())).pvalue
    # q of Demšar's table 5 for three classifiers: 2.343.
    critical = 2.343 * math.sqrt(3 * 4 / (6 * 4))
    assert f"p = {friedman:.3g}" in ranks.note
    assert f"is {critical:.2f}; ranks that differ by more: fedper and local" in ranks.note
