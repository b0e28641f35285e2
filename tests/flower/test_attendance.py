"""Boards that are slow, or come late."""

from __future__ import annotations

from typing import ClassVar

import pytest
from support import FEW_SAMPLES, Clock, federation, run_federation
from test_half_round import Bench

from fedpfl.core.errors import FedpflError
from fedpfl.flower.messages import from_content

GIVEN = {"method": "fedper", "local_epochs": 1, "num_server_rounds": 3, "check_after": 1000.0, "threads": 1}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    return Clock.of_the_server(monkeypatch)


class Boards(Bench):
    """Boards that need time for each message, one after the other; client 1 is slow."""

    seconds: ClassVar[dict[int, float]] = {1: 100.0}
    clock: Clock

    def __init__(self, *args):
        super().__init__(*args)
        self.ready: dict[str, float] = {}
        self.busy: dict[int, float] = {}

    def needs(self, client, kind, payload):
        """Return how many seconds a message takes; None: it gets no answer."""
        return 0.0 if kind == "query" else self.seconds.get(client, 1.0)

    def push_messages(self, messages):
        messages = list(messages)
        ids = list(super().push_messages(messages))
        for message, message_id in zip(messages, ids, strict=True):
            client, kind = message.metadata.dst_node_id - 100, message.metadata.message_type
            needed = self.needs(client, kind, from_content(message.content))
            if needed is None:
                del self.replies[message_id]
                continue
            self.busy[client] = max(self.clock.now, self.busy.get(client, 0.0)) + needed
            self.ready[message_id] = self.busy[client]
        return ids

    def pull_messages(self, message_ids):
        return super().pull_messages([i for i in message_ids if self.ready.get(i, 0.0) <= self.clock.now])

    def rounds_begun(self):
        return max((from_content(m).config.get("round", 0) for kind, _, m, _ in self.log if kind == "train"), default=0)


def run(tmp_path, clock, grid=Boards, nodes=4, **settings):
    values = federation(tmp_path, nodes, **{**GIVEN, **FEW_SAMPLES, "num_clients": nodes, **settings})
    made = grid(nodes, values)
    made.clock = clock
    return run_federation(made, values)


def column(folder, name):
    return [line.get(name) for line in folder.metrics()]


def in_tests(folder):
    return [sorted(map(int, line["personalised"]["each"])) for line in folder.metrics()]


def test_who_is_too_slow_has_failed_in_the_round(tmp_path, clock):
    folder = run(tmp_path, clock, round_timeout=8.0, min_replies=3)
    assert column(folder, "clients") == [[0, 2, 3]] * 3
    assert all(6 <= seconds < 8 for seconds in column(folder, "seconds_train"))


def test_too_few_replies_in_time_end_the_run(tmp_path, clock):
    with pytest.raises(FedpflError, match=r"round 1: 3 of at least 4 clients trained; client 1: no reply within 6 s"):
        run(tmp_path, clock, round_timeout=8.0, min_replies=4)


class Late(Boards):
    """Client 2 connects during round 2."""

    seconds: ClassVar[dict[int, float]] = {}

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node != 102 or self.rounds_begun() >= 2]


def test_a_client_that_comes_late_joins_the_next_round(tmp_path, clock):
    late = {"min_clients": 3, "node_timeout": 10.0, "new_nodes": "join", "num_server_rounds": 4}
    folder = run(tmp_path, clock, Late, **late)
    assert column(folder, "clients") == [[0, 1, 3]] * 2 + [[0, 1, 2, 3]] * 2
    assert column(folder, "joined") == [None, None, [2], None]
    assert in_tests(folder)[2:] == [[0, 1, 2, 3]] * 2
    assert min(folder.task()["samples"][2]) > 0


def test_a_client_that_comes_late_is_ignored_unless_it_may_join(tmp_path, clock):
    folder = run(tmp_path, clock, Late, min_clients=3, node_timeout=10.0)
    assert column(folder, "clients") == [[0, 1, 3]] * 3


def test_a_late_client_with_another_task_stays_out(tmp_path, clock):
    class Other(Late):
        def answer(self, kind, payload, node_config):
            reply = super().answer(kind, payload, node_config)
            if kind == "query" and node_config["partition-id"] == 2:
                reply.config["input-shape"] = "3x9x9"
            return reply

    folder = run(tmp_path, clock, Other, min_clients=3, node_timeout=10.0, new_nodes="join")
    assert column(folder, "clients") == [[0, 1, 3]] * 3
