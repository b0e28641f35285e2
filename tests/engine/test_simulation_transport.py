"""A simulation: the same bits whoever plays the clients, and what happens when one of them goes wrong."""

import logging
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import FEW_SAMPLES, federation, run_federation
from torch import nn
from waiting import wait_until

from fedpfl.client import engine as client_engine
from fedpfl.client.engine import HANDLERS
from fedpfl.core.errors import FedpflError
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client
from fedpfl.core.sharing import Sharing
from fedpfl.engine import slots, worker, worker_pool, worker_schedule
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.engine.transport import Request, count_bytes
from fedpfl.engine.worker import ArrayCache, ArrayHeader, Head
from fedpfl.engine.worker_pool import WorkerAnswer
from fedpfl.flower.messages import to_content
from fedpfl.rules import Rule, running_mean
from fedpfl.setup.config import Config

CLIENTS = 4
FEW = {**FEW_SAMPLES, "model": "mlp", "num_server_rounds": 2, "local_epochs": 1, "threads": 1}


def settings(tmp_path, name, **options):
    return federation(tmp_path / name, CLIENTS, **{**FEW, "method": "fedavg", "num_clients": CLIENTS, **options})


def run(tmp_path, name, workers=2, printed=None, start=None, **options):
    values = settings(tmp_path, name, **options)
    traces = tmp_path / name / "tracebacks"
    with SimulationTransport(Config.parse(values), workers, printed or (lambda *_: None), traces, start) as transport:
        return run_federation(transport, values)


def in_bytes(arrays):
    return {name: array.tobytes() for name, array in arrays.items()}


def result(folder):
    """Return all that does not depend on the clock: the server's state, and the rounds without their seconds."""
    rounds = [{k: v for k, v in line.items() if not k.startswith("seconds")} for line in folder.metrics()]
    return in_bytes(folder.checkpoint()[1]), rounds


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return result(run(tmp_path_factory.mktemp("undisturbed"), "run", 0))


@pytest.fixture
def small_groups(monkeypatch):
    """Have rounds of few clients added up in groups, as those of many are: of two of four clients, three of seven."""
    monkeypatch.setattr(running_mean, "MIN_GROUPS", 2)


@pytest.fixture
def train(monkeypatch):
    """Put something before the clients' training, in the workers, too: they are forked after this."""

    def before(does):
        real = HANDLERS["train"]

        def handler(engine, client, message):
            does(client, message.config["round"])
            return real(engine, client, message)

        monkeypatch.setitem(HANDLERS, "train", handler)

    return before


def test_workers_that_start_from_nothing_give_the_same_bits(tmp_path, undisturbed):
    assert result(run(tmp_path, "run", 1, start="spawn")) == undisturbed


def test_clients_that_are_tested_in_turn_load_a_plain_model_once(tmp_path, monkeypatch):
    loads, real = [], Sharing.set_shared
    monkeypatch.setattr(Sharing, "set_shared", lambda self, flat: loads.append(1) or real(self, flat))
    once = result(run(tmp_path, "once", 0, num_server_rounds=1))
    assert len(loads) == CLIENTS + 1
    monkeypatch.setattr(client_engine, "is_plain", lambda model: False)
    assert result(run(tmp_path, "each", 0, num_server_rounds=1)) == once
    assert len(loads) == CLIENTS + 1 + 2 * CLIENTS


def test_a_layer_of_a_user_s_is_not_plain():
    mine = type("Mine", (nn.Linear,), {})
    assert [client_engine.is_plain(nn.Sequential(layer(1, 1))) for layer in (nn.Linear, mine)] == [True, False]


def test_float16_and_sparse_arrays_travel_alike(tmp_path):
    options = {"method": "factorized-fl-plus", "wire_dtype": "float16", "learning_rate": 0.01}
    assert result(run(tmp_path, "here", 0, **options)) == result(run(tmp_path, "workers", 2, **options))


value = st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(min_size=1, max_size=40)
array = hnp.arrays(
    st.sampled_from([np.float32, np.float16, np.uint8, np.int64]),
    hnp.array_shapes(min_dims=1, max_side=40, max_dims=2),
)


@given(
    st.dictionaries(st.text(max_size=9), value, max_size=4),
    st.dictionaries(st.text(max_size=9), st.integers(0, 9) | st.floats(0, 1), max_size=4),
    st.dictionaries(st.text(max_size=9), array, max_size=3),
)
def test_bytes_are_counted_as_flower_s_records_count_them(config, metrics, arrays):
    payload = Payload(config, metrics, arrays)
    assert count_bytes(payload) == sum(record.count_bytes() for record in to_content(payload).values())


@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_of_a_client_says_where_it_was_and_leaves_its_traceback(tmp_path, train, workers):
    def fail(client, number):
        if client == 3:
            raise ValueError("no such\nthing")

    train(fail)
    for line in run(tmp_path, "run", workers).metrics():
        assert line["clients"] == [0, 1, 2]
        reason, folder = line["failed"]["3"].split("; tracebacks: ")
        place = f"(test_simulation_transport.py, line {fail.__code__.co_firstlineno + 2})"
        assert reason == f"ValueError: no such thing {place}"
        text = (Path(folder) / "client-00003.txt").read_text()
        assert "Traceback" in text and "in fail" in text


def test_what_clients_print_and_log_comes_with_their_numbers(tmp_path, train, undisturbed):
    said, size, logger = [], 1_000_000, logging.getLogger("mine")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)

    def speak(client, number):
        if number == 1:
            print(f"I am {client}")
            print("to standard error", file=sys.stderr)
            logger.warning("logged by %d", client)
            print("without an end", end="")
            if client == 0:
                print("\n" + "x" * size)

    train(speak)
    assert result(run(tmp_path, "run", printed=lambda client, text: said.append((client, text)))) == undisturbed
    logger.removeHandler(handler)
    for client in range(CLIENTS):
        text = "".join(part for number, part in said if number == client)
        assert text.startswith(f"I am {client}\nto standard error\n")
        assert f"logged by {client}" in text
        assert text.count("without an end") == 1
        assert text.count("x") == (size if client == 0 else 0)


def test_closing_ends_workers_in_the_middle_of_their_work(tmp_path, train):
    pids = tmp_path / "pids"

    def hang(client, number):
        with pids.open("a") as file:
            file.write(f"{os.getpid()} ")
        threading.Event().wait()

    train(hang)
    values = settings(tmp_path, "run")
    transport = SimulationTransport(Config.parse(values), 2)
    transport.find_clients(Config.parse(values))

    class Enough(Exception):
        pass

    def look(self):
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        raise Enough

    monkey = pytest.MonkeyPatch()
    monkey.setattr(worker_schedule.WorkerPool, "look", look)
    with monkey.context(), pytest.raises(Enough), transport:
        run_federation(transport, values)
    monkey.undo()
    for pid in map(int, pids.read_text().split()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


class Order:
    """Stands for the workers: whoever is asked last answers first."""

    def __init__(self, workers, *_):
        self.asked, self.most = [], 0

    def forget(self):
        pass

    def free(self):
        return 0

    def ask(self, number, clients, kind, messages):
        self.asked += [client.id for client in clients]
        return len(self.asked) < 1000

    def look(self):
        yield WorkerAnswer([Head(self.asked.pop(), {}, {})], {"shared": np.zeros(1000, np.float32)})

    def close(self):
        pass


@pytest.mark.parametrize("limit", [8_000, 80_000])
def test_replies_that_wait_for_their_turn_are_few(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(worker_schedule, "group_size", lambda clients: 1)
    monkeypatch.setattr(worker_schedule, "WorkerPool", Order)
    monkeypatch.setattr(worker_schedule, "WAITING_BYTES", limit)
    values = settings(tmp_path, "run")
    made, done = [], []

    def request(client):
        def make():
            made.append(client)
            return Payload()

        return Request(Client(client, 1, 1), "train", make)

    requests, ahead = [request(client) for client in reversed(range(500))], []
    with SimulationTransport(Config.parse(values), 1) as transport:
        for group in transport.replies(requests, 1.0, lambda *_: pytest.fail("a reply is missing")):
            done += [client.id for client, *_ in group]
            ahead.append(len(made) - len(done))
    assert done == list(range(500))
    assert max(ahead) <= max(4, limit / 4000)


def test_both_shelves_hold_the_same_arrays(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "KEPT_BYTES", 4000)
    rng = np.random.default_rng(0)
    here, there = ArrayCache(), ArrayCache()
    arrays = [np.full(int(rng.integers(1, 300)), i, np.float32) for i in range(40)]
    for _ in range(500):
        chosen = {f"a{i}": arrays[rng.integers(len(arrays))] for i in range(rng.integers(1, 4))}
        listed = [ArrayHeader(n, id(a), a.dtype.str, a.shape, id(a) not in here) for n, a in chosen.items()]
        assert [note.number in there for note in listed] == [not note.follows for note in listed]
        here.take(listed, lambda note, chosen=chosen: chosen[note.name])
        taken = there.take(listed, lambda note, chosen=chosen: chosen[note.name].copy())
        assert all(np.array_equal(taken[name], array) for name, array in chosen.items())
        assert sum(array.nbytes for array in here._held.values()) <= 4000 or len(here._held) <= len(chosen)


MANY = 7


def of_many(folder, **options):
    return federation(folder, MANY, **{**FEW, "num_clients": MANY, **options})


def many(tmp_path, name, workers=2, **options):
    values = of_many(tmp_path / name, **options)
    with SimulationTransport(Config.parse(values), workers) as transport:
        return run_federation(transport, values)


@pytest.fixture
def added(monkeypatch):
    """Return the clients of each group that a rule gets."""
    seen, real = [], Rule.add_rows

    def add_rows(self, clients, *others):
        seen.append([client.id for client in clients])
        real(self, clients, *others)

    monkeypatch.setattr(Rule, "add_rows", add_rows)
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedavg"},
        {"method": "fedper", "wire_dtype": "float16"},
        {"method": "feddyn", "max_weight_share": 0.15},
        {"method": "fedavg", "server_optimizer": "adam", "server_learning_rate": 0.01},
        {"method": "fedavg", "model": "small-bn", "dp_noise_multiplier": 0.1, "dp_reproducible": True},
        {"method": "fedavg", "robust_aggregation": "median"},
        {"method": "fedavg", "diagnostics": True},
    ],
)
def test_clients_that_a_worker_runs_as_a_group_reply_as_those_here_to_the_bit(
    tmp_path, small_groups, small_bn, added, options
):
    here = result(many(tmp_path, "here", 0, **options))
    assert {len(clients) for clients in added} == {1}
    added.clear()
    assert result(many(tmp_path, "workers", 2, **options)) == here
    assert {len(clients) for clients in added} <= {1, 3} and [0, 1, 2] in added


def test_the_first_replies_go_through_no_pipe(tmp_path, monkeypatch):
    received, real = [], worker_pool.receive_array
    monkeypatch.setattr(worker_pool, "receive_array", lambda *arguments: received.append(1) or real(*arguments))
    many(tmp_path, "alone")
    monkeypatch.setattr(running_mean, "MIN_GROUPS", 2)
    many(tmp_path, "in groups")
    assert not received
    monkeypatch.setattr(slots, "MAX_BYTES", 0)
    assert result(many(tmp_path, "through the pipe")) == result(many(tmp_path, "here", 0))
    assert received


@pytest.mark.parametrize(("before", "after"), [(2, 5), (0, 2), (2, 0)])
def test_a_resumed_run_adds_the_same_groups(tmp_path, small_groups, before, after):
    many(tmp_path, "parts", before, num_server_rounds=1)
    assert result(many(tmp_path, "parts", after, resume=True)) == result(many(tmp_path, "whole", 0))


def test_a_reply_that_is_refused_or_missing_is_in_no_sum(tmp_path, small_groups, added, train, monkeypatch):
    def some_fail(client, number):
        if client == 1:
            raise FedpflError("out of order")

    train(some_fail)
    real = HANDLERS["train"]

    def spoilt(engine, client, message):
        reply = real(engine, client, message)
        if client == 3:
            reply.arrays["shared"] = reply.arrays["shared"] * np.float32(1e6)
        if client == 4:
            reply.metrics["train-loss"] = float("nan")
        if client == 5:
            reply.config["layout"] = "[]"
        return reply

    monkeypatch.setitem(HANDLERS, "train", spoilt)
    run_of_workers = many(tmp_path, "workers")
    line = run_of_workers.metrics()[0]
    assert line["clients"] == [0, 2, 6]
    assert added == [[0, 2], [6]] * 2
    reasons = {"1": "out of order", "3": "update-norm-limit", "4": "train-loss", "5": "is missing"}
    assert all(text in line["failed"][client] for client, text in reasons.items())
    assert result(run_of_workers) == result(many(tmp_path, "here", 0))


def test_a_worker_that_is_killed_with_a_part_of_a_group_loses_and_doubles_nothing(tmp_path, small_groups, added, train):
    undisturbed, killed = result(many(tmp_path, "here", 0)), tmp_path / "killed"

    def kill_once(client, number):
        if (client, number) == (4, 1) and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    train(kill_once)
    added.clear()
    assert result(many(tmp_path, "run")) == undisturbed
    assert killed.exists()
    assert added == [[0, 1, 2], [3, 4, 5], [6]] * 2


@pytest.mark.parametrize(
    ("does", "message"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL, as the system does when memory runs out"),
        (lambda: os._exit(7), "ended with exit code 7"),
    ],
)
def test_of_a_group_only_the_client_is_left_out_whose_worker_dies_each_time(
    tmp_path, small_groups, train, does, message
):
    attempts = tmp_path / "attempts"

    def die(client, number):
        if (client, number) == (4, 1):
            with attempts.open("a") as file:
                file.write("x")
            does()

    train(die)
    first, second = many(tmp_path, "run").metrics()
    assert (first["clients"], second["clients"]) == ([0, 1, 2, 3, 5, 6], [*range(MANY)])
    assert f"{message}, 3 times" in first["failed"]["4"]
    assert attempts.read_text().count("x") >= 3


def test_hundreds_of_clients_take_part_in_a_round(tmp_path, added):
    clients, rng = 640, np.random.default_rng(0)
    x, y = rng.normal(size=(4 * clients, 4)).astype(np.float32), np.arange(4 * clients) % 2
    np.savez(tmp_path / "table.npz", x=x, y=y)
    values = federation(
        tmp_path, clients, method="fedavg", model="mlp", dataset="npz", data=str(tmp_path / "table.npz"),
        partitioner="iid", min_samples=4, num_clients=clients, num_server_rounds=1, local_epochs=1, last_batch="keep",
    )  # fmt: skip
    with SimulationTransport(Config.parse(values), 2) as transport:
        (line,) = run_federation(transport, values).metrics()
    assert len(line["clients"]) == len(line["personalised"]["each"]) == clients
    assert sum(map(len, added)) == clients == 5 * len(added)
