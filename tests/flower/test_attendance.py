"""Boards that are slow, or come late."""

from __future__ import annotations

import pytest
from support import FEW_SAMPLES, Clock, federation, run_federation
from test_half_round import Bench

from fedpfl.core.errors import FedpflError
from fedpfl.flower.messages import from_content

GIVEN = {"method": "fedper", "model": "mlp", "local_epochs": 1, "num_server_rounds": 3, "check_after": 1000.0}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    Clock.of_the_server(monkeypatch)


class Slow(Bench):
    """Client 1 is too slow for any round."""

    def arriving(self, kind, client, reply):
        return None if client == 1 and kind != "query" else reply


def run(tmp_path, grid, **settings):
    values = federation(tmp_path, 4, **{**GIVEN, **FEW_SAMPLES, "num_clients": 4, **settings})
    return run_federation(grid(4, values), values)


def column(folder, name):
    return [line.get(name) for line in folder.metrics()]


def in_tests(folder):
    return [sorted(map(int, line["personalised"]["each"])) for line in folder.metrics()]


def test_who_is_too_slow_has_failed_in_the_round(tmp_path):
    folder = run(tmp_path, Slow, round_timeout=8.0, min_replies=3)
    assert column(folder, "clients") == [[0, 2, 3]] * 3
    assert all(6 <= seconds < 8 for seconds in column(folder, "seconds_train"))


def test_too_few_replies_in_time_end_the_run(tmp_path):
    with pytest.raises(FedpflError, match=r"round 1: 3 of at least 4 clients trained; client 1: no reply within 6 s"):
        run(tmp_path, Slow, round_timeout=8.0, min_replies=4)


class Late(Bench):
    """Client 2 connects during round 2."""

    def get_node_ids(self):
        rounds = [from_content(message).config.get("round", 0) for kind, _, message, _ in self.log if kind == "train"]
        return [node for node in super().get_node_ids() if node != 102 or max(rounds, default=0) >= 2]


def test_a_client_that_comes_late_joins_the_next_round(tmp_path):
    late = {"min_clients": 3, "node_timeout": 10.0, "new_nodes": "join", "num_server_rounds": 4}
    folder = run(tmp_path, Late, **late)
    assert column(folder, "clients") == [[0, 1, 3]] * 2 + [[0, 1, 2, 3]] * 2
    assert column(folder, "joined") == [None, None, [2], None]
    assert in_tests(folder)[2:] == [[0, 1, 2, 3]] * 2
    assert min(folder.task()["samples"][2]) > 0


def test_a_client_that_comes_late_is_ignored_unless_it_may_join(tmp_path):
    folder = run(tmp_path, Late, min_clients=3, node_timeout=10.0)
    assert column(folder, "clients") == [[0, 1, 3]] * 3


def test_a_late_client_with_another_task_stays_out(tmp_path):
    class Other(Late):
        def answer(self, kind, payload, node_config):
            reply = super().answer(kind, payload, node_config)
            if kind == "query" and node_config["partition-id"] == 2:
                reply.config["input-shape"] = "3x9x9"
            return reply

    folder = run(tmp_path, Other, min_clients=3, node_timeout=10.0, new_nodes="join")
    assert column(folder, "clients") == [[0, 1, 3]] * 3
