"""The one reader of what a run recorded."""

from __future__ import annotations

import pytest

from fedpfl.results.history import History, of_clients, traffic

LINES = [
    {"round": 1, "bytes_up": 2, "bytes_down": 1, "train_loss": 0.5, "failed": {"3": "no memory"}},
    {"round": 2, "bytes_up": 2, "bytes_down": 2, "train_loss": None, "details": {"drift": 4.0},
     "personalised": {"accuracy": 0.6, "each": {str(i): i / 10 for i in range(20)}}},
    {"round": 4, "bytes_up": 2, "bytes_down": 0, "personalised": {"accuracy": 0.5, "each": {"0": 0.4, "1": 0.6}}},
]  # fmt: skip


def test_a_number_is_read_where_a_round_has_it() -> None:
    history = History(LINES)
    assert history.curve("train_loss") == {1: 0.5}
    assert history.curve("details.drift") == {2: 4.0}
    assert history.curve("personalised.accuracy") == {2: 0.6, 4: 0.5}
    assert (history.best("personalised.accuracy"), history.last("personalised.accuracy")) == (0.6, 0.5)
    assert (history.last_round, history.total("bytes_up"), traffic(history)) == (4, 6, {1: 3, 2: 7, 4: 9})
    assert history.last_test() == {"0": 0.4, "1": 0.6}
    assert list(history.failures()) == [(1, 3, "no memory")]


def test_the_worst_tenth_is_a_number_as_others_are() -> None:
    assert History(LINES).curve("personalised.worst-tenth") == {2: pytest.approx(0.05), 4: pytest.approx(0.4)}


def test_some_clients_alone() -> None:
    history = of_clients(History(LINES), {1})
    assert history.curve("personalised.accuracy") == {2: pytest.approx(0.1), 4: pytest.approx(0.6)}
    assert history.last_test() == {"1": 0.6}
    assert of_clients(History(LINES), {99}).last("personalised.accuracy") is None, "none of them was tested"


@pytest.mark.parametrize("test", ["personalised", "trained"])
def test_all_numbers_of_a_test_are_those_of_the_clients_that_are_asked_for(test: str) -> None:
    scores = {
        "accuracy": 0.5, "weighted": 0.5, "loss": 1.0, "mae": 4.0, "each": {"0": 0.2, "1": 0.4, "2": 0.9},
        "samples": {"0": 10, "1": 30, "2": 5}, "each-mae": {"0": 1.0, "1": 2.0, "2": 9.0},
    }  # fmt: skip
    (line,) = of_clients(History([{"round": 1, test: scores}]), {0, 1}).lines
    assert line[test] == {
        "accuracy": pytest.approx(0.3), "weighted": pytest.approx(0.35), "mae": 1.5, "each": {"0": 0.2, "1": 0.4},
        "samples": {"0": 10, "1": 30}, "each-mae": {"0": 1.0, "1": 2.0},
    }  # fmt: skip


def test_before_the_first_round_there_is_nothing() -> None:
    history = History([])
    assert (history.last_round, history.curve("train_loss"), history.last_test()) == (0, {}, {})
    assert (history.best("global.accuracy"), history.last("personalised.worst-tenth")) == (None, None)
    assert (history.best_validated(), history.stalled(3)) == (None, False)
