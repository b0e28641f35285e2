"""Whole federations in one process: resume, order of arrival, what leaves a client, failures."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import FEW_SAMPLES, Clock, LocalGrid, arrays, each_method, federation, quick, run_federation, simulate
from waiting import HANG_SECONDS

import fedpfl
from fedpfl.core.errors import ConfigError, FedpflError, LayoutError, StateError
from fedpfl.core.payload import Payload
from fedpfl.results.round_line import in_words
from fedpfl.results.summary import OUTCOME_KEYS, outcome

FEW = {**FEW_SAMPLES, "method": "fedavg", "model": "mlp", "num_server_rounds": 1, "local_epochs": 1}


def values_of(tmp_path, clients=4, **more):
    """Return the run config of a round of FedAvg on few samples, unless more is said."""
    return federation(tmp_path, clients, **{**FEW, **more})


def small(tmp_path, clients, grid=None, **more):
    """Run one; return its folder."""
    return simulate(tmp_path, clients, grid, **{**FEW, **more})


def test_what_clients_say_of_their_data_is_noted(tmp_path):
    x, owner = np.random.default_rng(0).random((90, 4), np.float32), np.repeat([0, 1, 2], 30)
    np.savez(tmp_path / "p.npz", x=x, y=np.array([0, 1, 3])[np.arange(90) % 3], client=owner)
    data = {"dataset": "npz", "data": str(tmp_path / "p.npz"), "model": "mlp"}
    run = simulate(tmp_path, 2, method="fedavg", num_server_rounds=1, local_epochs=1, **data)
    assert run.task()["remarks"] == [
        "p: no sample has label 2: the models tell 4 classes apart", "p: 2 of 3 natural clients take part (num-clients)"
    ]  # fmt: skip


def test_settings_of_other_methods_are_noted(tmp_path):
    values = {**values_of(tmp_path, 2), "ditto-pull": 3.0}
    (said,) = run_federation(LocalGrid(2, values), values).task()["remarks"]
    assert said.endswith("which fedavg does not use: ditto-pull of ditto")


def assert_identical(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


# A process that is killed in round 3, when the second client's personal arrays are written but not yet in their place.
KILLED = """
import os, pathlib, signal, sys
import torch  # before the patch
from support import LocalGrid, federation
from support import run_federation
trained, replace = [], pathlib.Path.replace
def intercept(kind, client, payload):
    trained.extend([payload.config["round"]] if kind == "train" else [])
def dying(self, target):
    if trained.count(3) == 2 and "state" in self.parts:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
pathlib.Path.replace = dying
values = federation(pathlib.Path(sys.argv[1]), 3, **eval(sys.argv[2]))
run_federation(LocalGrid(3, values, intercept=intercept), values)
"""


def test_a_process_that_is_killed_for_real_leaves_what_a_resumed_run_needs(tmp_path):
    settings = {**FEW, "method": "feddecomp", "threads": 1, "local_epochs": 2, "feddecomp_lora_epochs": 1}
    settings["num_server_rounds"] = 4
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    killed = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "killed", repr(settings)], env={**os.environ, "PYTHONPATH": path}
    )
    whole = simulate(tmp_path / "whole", 3, **settings)
    assert killed.wait(HANG_SECONDS) == -signal.SIGKILL
    assert list((tmp_path / "killed" / "state").rglob("*.part"))
    resumed = simulate(tmp_path / "killed", 3, **settings, resume=True)
    assert_identical(arrays(whole, tmp_path / "whole"), arrays(resumed, tmp_path / "killed"))
    assert (whole.path / "global.safetensors").read_bytes() == (resumed.path / "global.safetensors").read_bytes()


@pytest.mark.parametrize("method", each_method())
def test_every_method_learns_and_personalised_clients_do_better_than_guessing(tmp_path, method):
    # An MLP learns so fast that a part of the loss which begins after round 1 outweighs it; pfedhn makes slow progress.
    model = "small-cnn" if method in ("feddistill", "fedkd", "fedphp", "pfedhn") else "mlp"
    settings = {"num_server_rounds": 3, "local_epochs": 5, "model": model, **quick(method)}
    rounds = simulate(tmp_path, 4, method=method, **settings).metrics()
    # Over seeds and methods the training loss fell to 0.68 of the first at most; guessing has a test loss of ln 10.
    assert rounds[-1]["train_loss"] < 0.85 * rounds[0]["train_loss"]
    assert rounds[-1]["personalised"]["loss"] < 0.85 * math.log(10)


def test_bytes_are_those_of_the_messages(tmp_path):
    vector, settings = 4 * 13706, {"evaluate_every": 0, "model": "small-cnn"}
    for of_method, up, down in (
        ({"method": "fedavg"}, 3 * vector, 6 * vector),  # training and the evaluation after the last round
        ({"method": "fedavg", "wire_dtype": "float16"}, 1.5 * vector, 3 * vector),
        ({"method": "local"}, 0, 0),
    ):
        run = small(tmp_path / "-".join(of_method.values()), 3, **settings, **of_method)
        assert up <= outcome(run)["bytes_up"] <= 1.02 * up + 5000
        assert down <= outcome(run)["bytes_down"] <= 1.02 * down + 5000
        assert ("global" in run.metrics()[0]) == (of_method["method"] == "fedavg")
        assert tuple(outcome(run)) == OUTCOME_KEYS


@pytest.mark.parametrize(("every", "rounds"), [(1, [1, 2, 3]), (2, [2, 3]), (0, [3])])
def test_clients_are_tested_when_asked_and_after_the_last_round(tmp_path, every, rounds):
    run = small(tmp_path, 2, num_server_rounds=3, evaluate_every=every)
    assert [line["round"] for line in run.metrics() if "personalised" in line] == rounds


def test_the_model_that_a_client_has_just_trained_is_tested_when_asked(tmp_path):
    settings = {"num_server_rounds": 2, "fraction_train": 0.5, "evaluate_trained": True}
    alone = small(tmp_path / "local", 4, method="local", **settings).metrics()
    for line in alone:  # nothing happens to these models between training and the test of all
        assert line["trained"]["each"] == {str(i): line["personalised"]["each"][str(i)] for i in line["clients"]}
    mixed = small(tmp_path / "fedavg", 4, **settings)
    assert all(line["trained"]["each"].keys() == {str(i) for i in line["clients"]} for line in mixed.metrics())
    assert any(line["trained"]["each"][i] != line["personalised"]["each"][i]
               for line in mixed.metrics() for i in line["trained"]["each"])  # fmt: skip
    without = small(tmp_path / "without", 4, **{**settings, "evaluate_trained": False})
    assert not any("trained" in line for line in without.metrics())
    assert (without.path / "global.safetensors").read_bytes() == (mixed.path / "global.safetensors").read_bytes()


def test_a_model_that_is_adapted_for_its_test_is_so_right_after_training(tmp_path):
    # With a single client the mean is what it has trained.
    settings = {"evaluate_trained": True}
    (line,) = small(tmp_path / "a", 1, method="fedbabu", **settings).metrics()
    assert line["trained"] == line["personalised"]
    (without,) = small(tmp_path / "b", 1, method="fedbabu", fedbabu_tuning_epochs=0, **settings).metrics()
    assert without["trained"]["loss"] > line["trained"]["loss"]


def test_a_run_is_neither_overwritten_nor_resumed_as_another(tmp_path):
    run = small(tmp_path, 3)
    longer = {"num_server_rounds": 2, "resume": True}
    for clients, changes, message in (
        (3, {"resume": False}, "run-name = 'run': a run of this name is in"),
        (3, {"learning_rate": 0.5}, "learning-rate = 0.5: the run to resume used"),
        (2, {}, "clients = 2: the run to resume had 3"),
    ):
        with pytest.raises(ConfigError, match=message):
            small(tmp_path, clients, **{**longer, **changes})
    small(tmp_path, 3, **longer)
    assert run.config()["num-server-rounds"] == 2


def test_a_deleted_run_s_personal_arrays_do_not_come_back(tmp_path):
    import shutil

    first = small(tmp_path, 2, method="local", num_server_rounds=3)
    shutil.rmtree(first.path)
    again = small(tmp_path, 2, method="local")
    fresh = small(tmp_path / "fresh", 2, method="local")
    assert again.metrics()[0]["personalised"] == fresh.metrics()[0]["personalised"]


def test_resume_refuses_data_that_are_divided_otherwise(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        x = rng.integers(0, 255, (120, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", x=x, y=rng.permutation(np.arange(120) % 3))
    settings = {"method": "fedavg", "local_epochs": 1, "dataset": "npz"}
    simulate(tmp_path, 2, data=str(tmp_path / "a.npz"), num_server_rounds=1, **settings)
    with pytest.raises(
        ConfigError, match=r"division = \d+: the run to resume had \d+: clients would get other samples"
    ):
        simulate(tmp_path, 2, data=str(tmp_path / "b.npz"), num_server_rounds=2, resume=True, **settings)
    simulate(tmp_path, 2, data=str(tmp_path / "a.npz"), num_server_rounds=2, resume=True, **settings)


def test_a_run_that_goes_on_is_not_resumed_beside(tmp_path):
    seen = []
    values = values_of(tmp_path, 2, num_server_rounds=2)

    def resume(kind, client, payload):
        if kind == "train" and payload.config["round"] == 2:
            with pytest.raises(StateError, match="runs/run: the run is active in another process"):
                small(tmp_path, 2, num_server_rounds=2, resume=True)
            seen.append(client)

    folder = run_federation(LocalGrid(2, values, intercept=resume), values)
    assert sorted(seen) == [0, 1]
    assert [line["round"] for line in folder.metrics()] == [1, 2]
    with folder.exclusive():  # after its end anybody may
        pass


def test_a_round_s_line_is_on_the_disk_before_its_checkpoint(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").readlink()))
    small(tmp_path, 2)
    names = [path.name for path in synced]
    line = names.index("metrics.jsonl")
    assert names[line + 1].startswith(".round-000001.safetensors")


def test_a_finished_run_can_be_made_longer(tmp_path):
    settings = {"method": "feddecomp", "local_epochs": 2, "feddecomp_lora_epochs": 1}
    small(tmp_path / "a", 2, num_server_rounds=2, **settings)
    longer = small(tmp_path / "a", 2, num_server_rounds=4, resume=True, **settings)
    whole = small(tmp_path / "b", 2, num_server_rounds=4, **settings)
    assert_identical(arrays(longer, tmp_path / "a"), arrays(whole, tmp_path / "b"))


def test_lost_personal_state_is_an_error_not_a_fresh_start(tmp_path):
    small(tmp_path, 2, method="local")
    for path in (tmp_path / "state").rglob("client-00001/*"):
        path.unlink()
    run = small(tmp_path, 2, method="local", num_server_rounds=2, resume=True)
    assert "round-000001.safetensors: cannot be read" in run.metrics()[1]["failed"]["1"]


def test_a_failing_client_is_recorded_and_the_others_go_on(tmp_path):
    values = values_of(tmp_path, 3, num_server_rounds=2)

    def fail(kind, client, payload):
        if kind == "train" and client == 1 and payload.config["round"] == 1:
            raise StateError("the disk of client 1 is full")

    first, second = run_federation(LocalGrid(3, values, intercept=fail), values).metrics()
    assert (first["failed"], first["clients"]) == ({"1": "the disk of client 1 is full"}, [0, 2])
    assert (second.get("failed"), second["clients"]) == (None, [0, 1, 2])


def test_a_round_without_any_reply_ends_the_run_with_the_clients_words(tmp_path):
    values = values_of(tmp_path, 2)

    def fail(kind, client, payload):
        if kind == "train":
            raise StateError("no space left")

    with pytest.raises(FedpflError, match=r"round 1: no client trained; clients 0, 1: no space left") as failed:
        run_federation(LocalGrid(2, values, intercept=fail), values)
    assert (tmp_path / "runs" / "run" / "failed.txt").read_text() == f"{failed.value}\n"


@pytest.mark.parametrize("silent", [{"train", "evaluate"}, {"evaluate"}])
def test_both_halves_of_a_round_share_the_timeout(tmp_path, silent, monkeypatch):
    Clock.of_the_server(monkeypatch)
    values = values_of(tmp_path, 2, round_timeout=0.6)

    class Dead(LocalGrid):
        def arriving(self, kind, client, reply):
            return None if client == 1 and kind in silent else reply

    line = run_federation(Dead(2, values), values).metrics()[0]
    assert line["clients"] == ([0] if "train" in silent else [0, 1])
    waited = float(line["failed"]["1"].removeprefix("no reply within ").removesuffix(" s"))
    assert waited == pytest.approx(max(0.6 - line["seconds_train"], 0.15), abs=0.06)
    assert line["seconds_train"] >= 0.45 if "train" in silent else line["seconds_evaluate"] >= waited - 0.06


def test_an_error_that_the_superlink_makes_for_a_dead_node_is_the_client_s(tmp_path):
    from flwr.app import Error, Message

    values = values_of(tmp_path, 3, num_server_rounds=2)

    class Dead(LocalGrid):
        def arriving(self, kind, client, reply):
            if (kind, client) == ("train", 1):
                answered = reply.metadata.reply_to_message_id
                reply = Message(Error(5, "Node Unavailable"), reply_to=reply)
                reply.metadata.__dict__.update(_src_node_id=1, _reply_to_message_id=answered)  # the SuperLink's own
            return reply

    for line in run_federation(Dead(3, values), values).metrics():
        assert line["failed"] == {"1": "Node Unavailable"}
        assert line["clients"] == [0, 2]


def test_messages_that_cannot_be_sent_are_failures_at_once(tmp_path):
    values = values_of(tmp_path, 2)

    class Full(LocalGrid):
        def push_messages(self, messages):
            pushed = list(messages)
            ids = super().push_messages(pushed)
            lost = [m.metadata.message_type == "train" and m.metadata.dst_node_id == 101 for m in pushed]
            return [None if gone else message_id for message_id, gone in zip(ids, lost, strict=True)]

    assert run_federation(Full(2, values), values).metrics()[0]["failed"] == {"1": "its message could not be sent"}


def spoiling(kind, spoil):
    """Return a grid on which something happens to client 1's replies to messages of a kind."""

    class Odd(LocalGrid):
        def arriving(self, asked, client, reply):
            if (asked, client) == (kind, 1):
                spoil(reply.content)
            return reply

    return Odd


def number(key, value):
    """Put a number, or an odd one, into a reply; None takes it away."""

    def spoil(content):
        metrics = content.metric_records["metrics"]
        metrics[key] = value if value is not None else 0
        if value is None:
            del metrics[key]

    return spoil


NOT_AN_ARRAY = b"\x93NUMPY\x01\x00"
ODD_NUMBERS = {
    "train": [
        ("train-loss", [1.0, 2.0]), ("train-samples", 3.5),
    ],
    "evaluate": [
        ("personalised-correct", 10**6), ("personalised-samples", -1), ("personalised-loss-sum", float("nan")),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "key", "value"), [(kind, *odd) for kind, numbers in ODD_NUMBERS.items() for odd in numbers]
)
def test_a_reply_with_odd_numbers_is_the_client_s_failure(tmp_path, kind, key, value):
    values = values_of(tmp_path, 2)
    line = run_federation(spoiling(kind, number(key, value))(2, values), values).metrics()[0]
    assert line["failed"]["1"].startswith(f"its reply says {key} = ")
    assert line["clients"] == ([0] if kind == "train" else [0, 1])
    assert math.isfinite(line["global"]["loss"])


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("train", "anything", float("nan")), ("train", "trained-samples", 3), ("train", "anything", [1]),
        ("evaluate", "global-correct", None), ("evaluate", "global-loss-sum", float("inf")),
        ("evaluate", "global-samples", [3, 4]), ("evaluate", "global-correct", 10**6),
    ],
)  # fmt: skip
def test_odd_numbers_that_a_reply_need_not_have_are_left_out_and_the_rest_counts(tmp_path, caplog, kind, key, value):
    values = values_of(tmp_path, 2)
    line = run_federation(spoiling(kind, number(key, value))(2, values), values).metrics()[0]
    assert "failed" not in line
    assert (line["clients"], list(line["personalised"]["each"])) == ([0, 1], ["0", "1"])
    assert math.isfinite(line["global"]["loss"])
    assert line["global"]["accuracy"] <= 1
    assert not {"trained", "details"} & line.keys()
    left_out = ("trained-correct", "trained-loss-sum") if key == "trained-samples" else (key,)
    for name in left_out:
        assert re.search(rf"round 1: client 1: {name} = .*; left out", caplog.text)


def test_who_has_only_flower_s_log_sees_the_accuracies_of_every_round(tmp_path, caplog):
    caplog.set_level("INFO", logger="flwr")
    folder = small(tmp_path, 2, grid=LocalGrid, num_server_rounds=2)
    assert [message for message in caplog.messages if message.startswith("fedpfl: round ")] == [
        f"fedpfl: round {line['round']} of 2: {in_words(line)}" for line in folder.metrics()
    ]


@pytest.mark.parametrize("data", [NOT_AN_ARRAY, b"", b"PK\x05\x06" + bytes(18)])
def test_a_reply_whose_arrays_cannot_be_read_is_the_client_s_failure(tmp_path, data):
    values = values_of(tmp_path, 2)

    def spoil(content):
        content.array_records["arrays"]["shared"].data = data

    line = run_federation(spoiling("train", spoil)(2, values), values).metrics()[0]
    assert line["failed"]["1"].startswith("its array 'shared' ")
    assert line["clients"] == [0]


def test_diverged_training_is_neither_sent_nor_kept(tmp_path):
    with pytest.raises(FedpflError, match=r"the training diverged in round 1; a smaller learning-rate may help"):
        small(tmp_path, 2, method="local", learning_rate=1e30)
    assert list((tmp_path / "state").rglob("*.safetensors")) == []

    class Hopeless(fedpfl.Method):
        def schedule(self, local):
            return [fedpfl.Phase(lambda name: True, 1, loss=lambda model, batch: model(batch.x).mean() * torch.nan)]

    Hopeless.name = "hopeless"
    with pytest.raises(FedpflError, match="may help, or the method's own loss or penalty is not finite for some batch"):
        fedpfl.run(Hopeless, dataset="digits", num_clients=2, model="mlp", quiet=True, output_dir=str(tmp_path / "own"))


def test_a_server_that_diverges_ends_the_run_before_clients_are_named(tmp_path):
    said = "round 1: the rule GeneratedModels has made values of .* that are not finite from finite replies"
    with pytest.raises(FedpflError, match=said):
        small(tmp_path, 2, method="pfedhn", pfedhn_learning_rate=1e30)
    assert list((tmp_path / "runs").rglob("checkpoint*/*.safetensors")) == []


def test_another_number_of_nodes_than_clients_is_one_clear_line(tmp_path):
    with pytest.raises(FedpflError, match=r"num-clients = 5: this federation has 2 nodes; use 2 or 0"):
        small(tmp_path, 2, LocalGrid, num_clients=5)


def test_two_nodes_with_one_partition_are_refused(tmp_path):
    values = values_of(tmp_path, 2)
    with pytest.raises(FedpflError, match=r"1 of 2 .*node 101: partition-id = 0: node 100 has it"):
        run_federation(LocalGrid(2, values, node_config={1: {"partition-id": 0}}), values)


def test_missing_clients_are_counted_when_the_wait_is_over(tmp_path, monkeypatch):
    Clock.of_the_server(monkeypatch)
    values = values_of(tmp_path, 2, node_timeout=2.0)
    nodes = {i: {"num-partitions": 5} for i in range(3)}
    message = (
        r"2 of 5 clients connected within node-timeout = 2 s, at least 3 are needed \(min-clients\); missing: 2, 3, 4"
    )
    with pytest.raises(FedpflError, match=message):
        run_federation(LocalGrid(2, values, node_config=nodes), values)
    # More than half are enough unless somebody says otherwise, and who is missing is told.
    values = values_of(tmp_path / "more", 2, node_timeout=2.0)
    (tmp_path / "boards.json").write_text('{"nano-1": [0, 1, 2, 3], "nano-2": [4]}')
    monkeypatch.setenv("FEDPFL_BOARDS", str(tmp_path / "boards.json"))
    folder = run_federation(LocalGrid(3, values, node_config=nodes), values)
    assert folder.task()["remarks"][-1] == "3 of 5 clients take part in this run; missing: 3 (nano-1), 4 (nano-2)"
    assert folder.task()["boards"] == {"nano-1": [0, 1, 2, 3], "nano-2": [4]}
    assert folder.metrics()[-1]["untested"] == [3, 4]
    assert "3 of 5 clients, without 3 (nano-1), 4 (nano-2)" in (folder.path / "summary.md").read_text()


@pytest.mark.parametrize("clients", [2, 3])
def test_a_client_with_another_model_is_named_before_round_1_and_left_out_where_enough_remain(tmp_path, clients):
    values = values_of(tmp_path, clients)

    def other(content):
        config = content.config_records["config"]
        config["layout"] = config["layout"].replace("base.fc1.weight", "base.fc9.weight")

    grid = spoiling("query", other)(clients, values)
    if clients == 2:
        with pytest.raises(LayoutError, match=r"client 1: has another model: array 'base.fc9.weight'"):
            run_federation(grid, values)
        return
    folder = run_federation(grid, values)
    assert folder.metrics()[0]["clients"] == [0, 2]
    assert folder.task()["remarks"][-1] == "2 of 3 clients take part in this run; missing: 1"


def test_a_node_with_its_number_alone_serves_runs_of_any_number_of_clients(tmp_path):
    """So a bench that grows by a board goes on with the runs that it has begun."""
    from fedpfl.client.message_handler import handle

    for clients in (2, 3):
        values = {**values_of(tmp_path), "num-clients": clients}
        answer = handle("query", Payload({"state-key": "a-1"}), values, {"partition-id": 1})
        assert (answer.config["num-clients"], answer.config["client"]) == (clients, 1)
    with pytest.raises(ConfigError, match="partition-id = 2: must be below num-clients = 2"):
        handle("query", Payload({"state-key": "a-1"}), {**values, "num-clients": 2}, {"partition-id": 2})


@pytest.mark.parametrize(
    ("node_config", "message"),
    [
        ({"partition-id": 0}, "num-clients = 0: must be the number of clients where nodes have no num-partitions"),
        ({}, "must have partition-id"),
        ({"partition-id": -1, "num-partitions": 4}, "partition-id = -1: must be a whole number of at least 0"),
        ({"partition-id": 1.5, "num-partitions": 4}, "partition-id = 1.5: must be a whole number"),
        ({"partition-id": "one", "num-partitions": 4}, "partition-id = 'one': must be a whole number"),
        ({"partition-id": 0, "num-partitions": 0}, "num-partitions = 0: must be a whole number of at least 1"),
        ({"partition-id": 4, "num-partitions": 4}, "partition-id = 4: must be below num-partitions = 4"),
    ],
)
def test_a_node_without_partition_is_told_what_it_needs(tmp_path, node_config, message):
    from fedpfl.client.message_handler import handle

    with pytest.raises(ConfigError, match=message):
        handle("query", Payload(), values_of(tmp_path), node_config)


def test_clients_that_divide_the_data_differently_are_refused(tmp_path):
    values = values_of(tmp_path, 3, min_clients=3)

    def other(content):
        content.config_records["config"]["division"] += 1

    with pytest.raises(FedpflError, match=r"client 1: divides the data differently"):
        run_federation(spoiling("query", other)(3, values), values)


def devices(tmp_path, classes):
    """Give each node data of its own with so many classes."""
    rng = np.random.default_rng(0)
    nodes = {}
    for i, count in enumerate(classes):
        x = rng.integers(0, 255, (60, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / f"own{i}.npz", x=x, y=np.arange(60) % count)
        nodes[i] = {"data": str(tmp_path / f"own{i}.npz")}
    return nodes


@pytest.mark.parametrize("method", ["local", "factorized-fl", "factorized-fl-plus"])
def test_clients_with_different_numbers_of_classes_learn_together_where_the_head_is_personal(tmp_path, method):
    from fedpfl.results.export import export_personal

    nodes = devices(tmp_path, (3, 5, 3))
    values = federation(tmp_path, 3, method=method, num_server_rounds=2)
    grid = LocalGrid(3, values, node_config=nodes)
    folder = run_federation(grid, values)
    assert folder.task()["num_classes"] == 5
    assert folder.task()["classes_of_clients"] == [3, 5, 3]
    assert [line["clients"] for line in folder.metrics()] == [[0, 1, 2]] * 2
    heads = [load_file(path)["head.weight"].shape for path in export_personal(folder)]
    assert heads == [(3, 64), (5, 64), (3, 64)]


def test_a_resumed_run_must_have_the_same_classes(tmp_path):
    nodes = devices(tmp_path, (3, 5))
    values = federation(tmp_path, 2, method="local", num_server_rounds=1)
    run_federation(LocalGrid(2, values, node_config=nodes), values)
    values.update({"resume": True, "num-server-rounds": 2})
    swapped = {0: nodes[1], 1: nodes[0]}
    with pytest.raises(ConfigError, match=r"classes_of_clients = \[5, 3\]: the run to resume had \[3, 5\]"):
        run_federation(LocalGrid(2, values, node_config=swapped), values)


@pytest.mark.parametrize(("settings", "message"), [
    ({"method": "local", "evaluate_global": True}, "evaluate-global = True: clients with different numbers of classes"),
    ({"method": "fedavg"}, "differ from the others': 1x8x8 with 5 classes, most have 1x8x8 with 3"),
])  # fmt: skip
def test_different_numbers_of_classes_are_refused_where_something_is_shared_by_class(tmp_path, settings, message):
    nodes, values = devices(tmp_path, (3, 5)), federation(tmp_path, 2, **settings)
    with pytest.raises(FedpflError, match=message):
        run_federation(LocalGrid(2, values, node_config=nodes), values)
