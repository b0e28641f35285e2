"""What a client says is checked against its bounds: a false answer costs that client, and names it."""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import resource

import numpy as np
import pytest
from support import FEW_SAMPLES, LocalGrid, federation, run_federation
from waiting import HANG_SECONDS

from fedpfl.bench.device import worker
from fedpfl.core.errors import FedpflError, LayoutError, printable
from fedpfl.core.metric_bounds import DESCRIPTION, REPLY, require_description, require_metrics

LIAR = 2
FEW = {**FEW_SAMPLES, "model": "mlp", "num_server_rounds": 2, "local_epochs": 1}


def lying(kind, change):
    """Return a grid on which ``change`` sees client 2's replies to messages of a kind; a text is an error's."""

    def fail(asked, client, payload):
        if (asked, client) == (kind, LIAR):
            raise FedpflError(change)

    class Lying(LocalGrid):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, intercept=fail if isinstance(change, str) else None, **kwargs)

        def arriving(self, asked, client, reply):
            if (asked, client) == (kind, LIAR) and not isinstance(change, str):
                change(reply)
            return reply

    return Lying


def config(**values):
    """Return a change of a reply's settings and, by names that end in samples, of its numbers."""

    def change(reply):
        for key, value in values.items():
            name = key.replace("_", "-")
            record = "metrics" if name.endswith("samples") else "config"
            reply.content[record][name] = value

    return change


def metrics(**values):
    def change(reply):
        for key, value in values.items():
            reply.content["metrics"][key.replace("_", "-")] = value

    return change


def run(tmp_path, grid, method="fedavg", nodes=4, **settings):
    values = federation(tmp_path, nodes, method=method, **{**FEW, **settings})
    return run_federation(grid(nodes, values), values)


FALSE_ANSWERS = {
    "classes": (config(num_classes=12_000_000), "num-classes = 12000000: must be a whole number from 0 to 100000"),
    "many classes": (config(num_classes=20_000), "more than 100 times the median of all clients, 10"),
    "other classes": (config(num_classes=900), "its number of classes contradicts its layout"),
    "no classes": (config(num_classes="10"), "num-classes = '10': must be a whole number"),
    "samples": (config(train_samples=2**62), "train-samples = 4611686018427387904: must be a whole number"),
    "negative": (config(train_samples=-1), "train-samples = -1: must be a whole number"),
    "tests": (config(test_samples=2_000_000), "test-samples = 2000000: must be a whole number from 0 to 1e+06"),
    "shape": (config(input_shape="1x999999x999999"), "has more than 16777216 values"),
    "other shape": (config(input_shape="1x9x9"), "its data differ from the others': 1x9x9, most have 1x8x8"),
    "vocabulary": (config(vocabulary=5), "its data differ from the others': 1x8x8 of 5 tokens, most have 1x8x8"),
    "division": (config(division=1), "divides the data differently"),
    "clients": (config(num_clients=7), "num-clients = 7: the others have 4"),
    "clients of the world": (config(num_clients=2**40), "num-clients = 1099511627776: must be a whole number"),
    "number": (config(client=9), "client = 9: must be below num-clients = 4"),
    "another's number": (config(client=0), "partition-id = 0: node 100 has it"),
    "layout": (config(layout='[["x", 5]]'), "has another model: array 'x' of shape (5,) arrived"),
    "long layout": (config(layout="[" * 2_000_000), "layout = '[[[[[[[[[[[[...[[[[[[[[[[[[[': is not of the form"),
    "remarks": (config(remarks="\x1b[31mred"), "remarks: must be printable"),
    "error": (
        "\x1b[2J\nINFO all is well" + "x" * 10_000,
        " [2J INFO all is well",
    ),
}


# With a personal head clients may have different numbers of classes.
ASKED = [*(("fedavg", what) for what in FALSE_ANSWERS), ("fedper", "classes"), ("fedper", "many classes")]


@pytest.mark.parametrize(("method", "what"), ASKED)
def test_a_false_answer_before_round_1_costs_that_client_alone_and_is_named(tmp_path, caplog, method, what):
    change, why = FALSE_ANSWERS[what]
    folder = run(tmp_path, lying("query", change), method, num_server_rounds=1)
    line = folder.metrics()[0]
    assert line["clients"] == [0, 1, 3]
    assert list(line["personalised"]["each"]) == ["0", "1", "3"]
    assert folder.task()["remarks"][-1] == "3 of 4 clients take part in this run; missing: 2"
    assert (folder.task()["clients"], folder.task()["num_classes"]) == (4, 10)
    named = [record.getMessage() for record in caplog.records if "cannot take part" in record.getMessage()]
    assert len(named) == 1
    assert why in named[0]
    assert re.match(r"fedpfl: (node 102|client 2) cannot take part: ", named[0])
    assert named[0].isprintable()
    assert len(named[0]) < 600


def test_nothing_is_built_from_a_claim_of_many_classes(tmp_path, monkeypatch):
    from fedpfl.engine import agreement as server

    built = []
    assemble = server.assemble
    monkeypatch.setattr(server, "assemble", lambda config, shape, classes, **k: built.append(classes) or assemble(
        config, shape, classes, **k
    ))  # fmt: skip
    run(tmp_path, lying("query", config(num_classes=24_000)), "fedper", num_server_rounds=1)
    assert built == [10]


def most_memory(folder, lies, queue):
    """Put the process's largest resident size into a queue: after honest runs, and after runs with each lie."""
    for method in ("fedavg", "fedper"):
        run(folder / method, LocalGrid, method)
    queue.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    for what, kind in lies:
        change = FALSE_ANSWERS[what][0] if kind == "query" else FALSE_REPLIES[what][1]
        run(folder / f"{what}-{kind}", lying(kind, change), "fedper", num_server_rounds=1)
    queue.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


@pytest.mark.attacks
def test_no_lie_takes_200_mb_more_than_an_honest_run(tmp_path):
    lies = [(what, "query") for what in FALSE_ANSWERS if what != "other classes"]
    lies += [(what, kind) for what, (kind, _, _) in FALSE_REPLIES.items()]
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    process = spawn.Process(target=most_memory, args=(tmp_path, lies, queue))
    process.start()
    honest, with_lies = queue.get(timeout=HANG_SECONDS), queue.get(timeout=HANG_SECONDS)
    process.join()
    kib_of_a_mb = 1e6 / 1024
    assert honest > 50 * kib_of_a_mb
    assert with_lies - honest < 200 * kib_of_a_mb


def test_a_run_whose_nodes_answer_wrongly_ends_at_once_with_each_reason_once(tmp_path):
    values = federation(tmp_path, 3)
    nodes = {i: {"num-partitions": 0} for i in range(3)}
    with pytest.raises(
        FedpflError, match=r"0 of 3 .*nodes 100, 101, 102: num-partitions = 0: must be a whole"
    ) as raised:
        run_federation(LocalGrid(3, values, node_config=nodes), values)
    assert str(raised.value).count("must be a whole number") == 1


def test_too_few_clients_end_the_start_by_the_setting(tmp_path):
    with pytest.raises(
        FedpflError, match=r"3 of 4 clients can take part, at least 4 are needed \(min-clients\); missing: 2"
    ):
        run(tmp_path, lying("query", config(num_clients=7)), min_clients=4)


def half_updated(tmp_path, monkeypatch, **settings):
    """Run on a bench whose server and first devices have a new version, and whose last device has not yet."""
    values = federation(tmp_path, 3, num_server_rounds=1, **settings)
    monkeypatch.setattr(worker, "__version__", "0.0.9")

    def intercept(kind, client, payload):
        if client == 2:
            worker._require_same_code({"code": "feed", "version": "0.1.0"})

    return run_federation(LocalGrid(3, values, intercept), values)


def test_a_run_between_the_updates_of_two_devices_is_refused_in_a_line_that_says_what_to_do(tmp_path, monkeypatch):
    message = r"2 of 3 clients have the app's code; update the others, or set min-clients; missing: 2; node 102: "
    message += (
        r"this device's worker runs other code \(fedpfl 0.0.9, \w+\) than the app \(fedpfl 0.1.0, feed\): install"
    )
    with pytest.raises(FedpflError, match=message) as raised:
        half_updated(tmp_path, monkeypatch)
    assert "\n" not in str(raised.value)
    assert half_updated(tmp_path / "two", monkeypatch, min_clients=2).finished


FALSE_REPLIES = {
    "loss": (
        "train",
        metrics(train_loss=1.7e308),
        "its reply says train-loss = 1.7e+308: must be a number from 0 to 1e+30; a smaller",
    ),
    "no loss": (
        "train",
        metrics(train_loss=math.nan),
        "a number from 0 to 1e+30; the loss itself is no number",
    ),
    "samples": ("train", metrics(train_samples=2**62), "its reply says train-samples = 4611686018427387904: must be"),
    "more samples": ("train", metrics(train_samples=10**6), "its reply says train-samples = 1000000: must be a whole"),
    "tests": ("evaluate", metrics(personalised_samples=10**6), "its reply says personalised-samples = 1000000: must"),
    "names": (
        "train",
        lambda reply: metrics(**{f"m{i}": 1.0 for i in range(40_000)})(reply),
        "metrics; at most 256 are allowed",
    ),
    "a name": ("train", metrics(**{"a\nb": 1.0}), "its reply has a metric called 'a\\nb'"),
    "a long name": ("evaluate", metrics(**{"a" * 10**6: 1.0}), "its reply has a metric called 'aaaaaaaaaaaa..."),
    "error": ("train", "\x1b[2J\n" + "e" * 10**7, " [2J eeee"),
    "array's name": (
        "train",
        lambda reply: reply.content["config"].update({"layout": json.dumps([["\x1b[2J" * 10_000, 3]])}),
        "array '\\x1b[2J",
    ),
}


@pytest.mark.parametrize("what", FALSE_REPLIES)
def test_false_numbers_and_texts_of_a_reply_are_that_clients_failure_in_one_short_line(tmp_path, what):
    kind, change, why = FALSE_REPLIES[what]
    folder = run(tmp_path, lying(kind, change))
    for line in folder.metrics():
        (failed,) = line["failed"].items()
        assert failed[0] == str(LIAR)
        assert why in failed[1]
        assert failed[1].isprintable()
        assert len(failed[1]) <= 300
        assert line["clients"] == ([0, 1, 3] if kind == "train" else [0, 1, 2, 3])
        assert math.isfinite(line["train_loss"])
    text = (folder.path / "metrics.jsonl").read_text()
    assert len(text) < 5_000
    assert not {"Infinity", "NaN"} & set(re.findall(r"Infinity|NaN", text))


def test_every_number_that_the_server_computes_with_has_a_row():
    assert {"client", "num-clients", "num-classes", "vocabulary", "division"} <= DESCRIPTION.keys()
    assert all(claim.lowest <= 0 <= claim.highest or claim.lowest == 1 for claim in DESCRIPTION.values())
    assert all(math.isfinite(claim.highest) for claim in [*DESCRIPTION.values(), *REPLY.values()])


def test_an_honest_answer_passes_and_each_value_that_is_missing_does_not():
    config = {
        "client": 0, "num-clients": 3, "num-classes": 10, "input-shape": "3x32x32", "layout": "[]", "division": 7,
        "remarks": "a remark\nand another",
    }  # fmt: skip
    numbers = {"train-samples": 50, "test-samples": 0}
    require_description(config, numbers, 50)
    for key in ("client", "num-clients", "num-classes", "input-shape", "layout"):
        with pytest.raises(LayoutError, match=f"{key} = None"):
            require_description({k: v for k, v in config.items() if k != key}, numbers, 50)
    with pytest.raises(LayoutError, match="train-samples = 50: must be a whole number from 0 to 49"):
        require_description(config, numbers, 49)
    require_metrics({"a.b/c@1-%": 1.0})
    with pytest.raises(LayoutError):
        require_metrics({"": 1.0})


def test_printable_text_is_one_line_and_short():
    assert printable("a\x1b[31m\nb\u202e") == "a [31m b "
    assert len(printable("ü" * 10_000)) == 200


# -- identity ----------------------------------------------------------------------------------------------------------


class Devices(LocalGrid):
    """Nodes as devices are: each makes a secret for the run in a state folder that nobody shares."""

    nodes, devices = (100, 101, 102), True

    def __init__(self, *args, folders, **kwargs):
        super().__init__(*args, **kwargs)
        self.folders = folders

    def get_node_ids(self):
        return list(self.nodes)

    def answer(self, kind, payload, node_config):
        from fedpfl.client.message_handler import handle

        place = node_config.get("place", node_config["partition-id"])
        reply = handle(kind, payload, {**self.run_config, "state-dir": str(self.folders / f"device-{place}")}, {
            "partition-id": node_config["partition-id"], "num-partitions": 3,
        })  # fmt: skip
        if kind == "query":
            reply.config["in-turn"] = True
        return reply


class Changing(Devices):
    """After round 1 node 100 is gone, and others are there; nodes with a number of ``broken`` answer nothing."""

    def __init__(self, *args, after=(103,), broken=(), **kwargs):
        super().__init__(*args, intercept=self.look, **kwargs)
        self.after, self.broken = after, broken

    def look(self, kind, client, payload):
        if client in self.broken:
            raise FedpflError("out of order")
        if kind == "evaluate" and client == 2:
            self.nodes = (101, 102, *self.after)


def of_devices(tmp_path, method, rounds, **how):
    """Run on devices that change; return the run's folder and the grid."""
    values = federation(tmp_path, 3, **{**FEW, "method": method, "num_server_rounds": rounds, "check_after": 0.01})
    grid = Changing(3, values, folders=tmp_path, **how)
    return run_federation(grid, values), grid


def test_another_node_does_not_get_the_number_of_a_client_that_is_away(tmp_path, caplog):
    folder, grid = of_devices(tmp_path, "fedamp", 3, node_config={3: {"partition-id": 0, "place": 3}})
    assert "node 103 cannot take part: client = 0: another node has had this number" in caplog.text
    assert not [kind for kind, client, *_ in grid.log if client == 3 and kind != "query"]
    assert folder.metrics()[0]["clients"] == [0, 1, 2]


def test_the_node_itself_comes_back_under_another_id(tmp_path):
    folder, _ = of_devices(tmp_path, "fedamp", 2, node_config={3: {"partition-id": 0}})
    assert folder.metrics()[1]["clients"] == [0, 1, 2]


def test_a_resumed_run_knows_its_nodes(tmp_path, caplog):
    values = federation(tmp_path, 3, **{**FEW, "method": "fedper", "num_server_rounds": 1})
    folder = run_federation(Devices(3, values, folders=tmp_path), values)
    assert sorted(folder.task()["identities"]) == ["0", "1", "2"]
    secrets = [path.read_text().strip() for path in tmp_path.glob("device-*/*/*/secret")]
    assert len(set(secrets)) == 3
    assert not any(secret in (folder.path / "task.json").read_text() for secret in secrets)
    values.update({"resume": True, "num-server-rounds": 2})
    grid = Devices(3, values, folders=tmp_path, node_config={1: {"place": "other"}})
    folder = run_federation(grid, values)
    assert folder.metrics()[1]["clients"] == [0, 2]
    assert "node 101 cannot take part: client = 1: another node has had this number" in caplog.text


def test_a_broken_new_node_keeps_nobody_from_coming_back(tmp_path):
    """Nodes 103, which fails, and 104, which is client 0, appear when node 100 is gone."""
    how = {"after": (103, 104), "broken": (3,), "node_config": {4: {"partition-id": 0}}}
    folder, grid = of_devices(tmp_path, "fedavg", 3, **how)
    assert [line["clients"] for line in folder.metrics()] == [[0, 1, 2]] * 3
    assert [client for kind, client, *_ in grid.log if kind == "query"].count(3) == 1


def test_weights_of_false_counts_do_not_reach_a_rule(tmp_path):
    honest = run(tmp_path / "a", LocalGrid, "fedreg", num_server_rounds=1)
    folder = run(tmp_path / "b", lying("train", metrics(effective_samples=10**6)), "fedreg", num_server_rounds=1)
    assert folder.metrics()[0]["failed"] == {str(LIAR): "its reply lacks a proper effective-samples: 1000000"}
    assert np.isfinite(folder.checkpoint()[1]["shared"]).all()
    assert honest.metrics()[0]["clients"] == [0, 1, 2, 3]
