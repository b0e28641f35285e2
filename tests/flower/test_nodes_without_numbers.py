"""Nodes that only say where their data lie: who they are, also after a restart and in a resumed run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support import Killed, LocalGrid, arrays, federation, run_federation

from fedpfl.client.client_number import own_data_path
from fedpfl.client.message_handler import handle
from fedpfl.core.errors import ConfigError, FedpflError, StateError
from fedpfl.core.payload import Payload


class PathsAlone(LocalGrid):
    """Nodes whose config is their data path and nothing else; with ``ids`` they have other ids than 100, 101, …"""

    def __init__(self, *args, ids=None, **more):
        super().__init__(*args, **more)
        self.ids = ids or {}

    def answer(self, kind, payload, node_config):
        without = {key: value for key, value in node_config.items() if key not in ("partition-id", "num-partitions")}
        return handle(kind, payload, self.run_config, without)


def own_data(tmp_path, count, key="data-path"):
    rng = np.random.default_rng(0)
    for i in range(count):
        x = rng.integers(0, 255, (40 + 10 * i, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / f"own{i}.npz", x=x, y=np.arange(len(x)) % 3)
    return {i: {key: str(tmp_path / f"own{i}.npz")} for i in range(count)}


def settings_of_run(tmp_path, count=3, **settings):
    few = {"method": "fedper", "model": "mlp", "num_server_rounds": 2, "num_classes": 3, "num_clients": count}
    return federation(tmp_path, count, **{**few, **settings})


@pytest.mark.parametrize("key", ["data-path", "data"])
def test_nodes_with_a_data_path_alone_are_numbered_by_their_ids(tmp_path, key):
    values = settings_of_run(tmp_path)
    folder = run_federation(PathsAlone(3, values, node_config=own_data(tmp_path, 3, key)), values)
    assert [line["clients"] for line in folder.metrics()] == [[0, 1, 2]] * 2
    stored = sorted(json.loads(path.read_text())["client"] for path in (tmp_path / "state").rglob("number-*"))
    assert stored == [0, 1, 2]


def test_they_do_what_nodes_with_the_same_numbers_do(tmp_path):
    nodes, results = own_data(tmp_path, 3), []
    for grid in (PathsAlone, LocalGrid):
        place = tmp_path / grid.__name__
        values = settings_of_run(place)
        results.append(arrays(run_federation(grid(3, values, node_config=nodes), values), place))
    assert results[0].keys() == results[1].keys()
    assert all(np.array_equal(results[0][name], results[1][name]) for name in results[0])


def test_some_may_have_a_number_of_their_own(tmp_path):
    nodes = own_data(tmp_path, 3)

    class Mixed(PathsAlone):
        def answer(self, kind, payload, node_config):
            if node_config["data-path"].endswith("own2.npz"):
                return handle(kind, payload, self.run_config, {**node_config, "partition-id": 0})
            return super().answer(kind, payload, node_config)

    values = settings_of_run(tmp_path, num_server_rounds=1)
    folder = run_federation(Mixed(3, values, node_config=nodes), values)
    assert folder.metrics()[0]["clients"] == [0, 1, 2]
    assert sorted(json.loads(path.read_text())["client"] for path in (tmp_path / "state").rglob("number-*")) == [1, 2]


def test_a_resumed_run_finds_them_as_they_were_though_their_ids_changed(tmp_path):
    nodes = own_data(tmp_path, 3)
    undisturbed = settings_of_run(tmp_path / "a")
    expected = arrays(run_federation(PathsAlone(3, undisturbed, node_config=nodes), undisturbed), tmp_path / "a")

    def dies(kind, client, payload):
        if kind == "train" and payload.config["round"] == 2:
            raise Killed

    values = settings_of_run(tmp_path / "b")
    with pytest.raises(Killed):
        run_federation(PathsAlone(3, values, intercept=dies, node_config=nodes), values)
    values["resume"] = True
    # Without registered keys restarted nodes have other ids: here the first node is the one that was the last.
    turned = {0: nodes[2], 1: nodes[0], 2: nodes[1]}
    resumed = arrays(run_federation(PathsAlone(3, values, node_config=turned), values), tmp_path / "b")
    assert resumed.keys() == expected.keys()
    assert all(np.array_equal(resumed[name], expected[name]) for name in resumed)


def test_a_node_that_comes_back_during_a_run_is_the_client_that_it_was(tmp_path):
    nodes = own_data(tmp_path, 2)

    class Restarted(PathsAlone):
        """Node 101 starts again after round 1, as node 102."""

        again = False

        def get_node_ids(self):
            return [100, 102] if self.again else [100, 101]

    def restarts(kind, client, payload):
        grid.again |= kind == "evaluate"

    values = settings_of_run(tmp_path, 2)
    grid = Restarted(2, values, intercept=restarts, node_config={**nodes, 2: nodes[1]})
    folder = run_federation(grid, values)
    assert [line["clients"] for line in folder.metrics()] == [[0, 1]] * 2
    assert [client for kind, client, *_ in grid.log if kind == "train"][-2:] in ([0, 2], [2, 0])


def test_what_cannot_be_numbered_is_one_line_before_round_1(tmp_path):
    nodes = own_data(tmp_path, 2)
    values = settings_of_run(tmp_path / "a", 0)
    with pytest.raises(
        FedpflError, match=r"num-clients = 0: must be the number of clients where nodes have no num-partitions"
    ):
        run_federation(PathsAlone(2, values, node_config=nodes), values)
    values = settings_of_run(tmp_path / "b", 2)
    with pytest.raises(
        FedpflError, match="is client 0 already; two nodes of a device that use the same data need a part"
    ):
        run_federation(PathsAlone(2, values, node_config={0: nodes[0], 1: nodes[0]}), values)


def test_more_nodes_than_clients_cost_only_themselves(tmp_path, caplog):
    values = settings_of_run(tmp_path, 1)
    folder = run_federation(PathsAlone(2, values, node_config=own_data(tmp_path, 2)), values)
    assert folder.task()["clients"] == 1
    assert "node 101 cannot take part: num-clients = 1: all numbers of clients are taken" in caplog.text


def test_a_node_believes_no_number_that_cannot_be(tmp_path):
    path = own_data(tmp_path, 1)[0]["data-path"]
    values, node = settings_of_run(tmp_path, 2), {"data-path": path}
    for wrong in (2, -1, "1", 1.0):
        with pytest.raises(StateError, match="must be a number below num-clients"):
            handle("query", Payload({"state-key": "run", "client": wrong}), values, node)
    with pytest.raises(StateError, match=r"state-key = '\.\./x': must be letters"):
        handle("query", Payload({"state-key": "../x", "client": 1}), values, node)
    with pytest.raises(StateError, match="this node does not know which client of this run it is"):
        handle("train", Payload({"state-key": "run"}), values, node)
    assert handle("query", Payload({"state-key": "run"}), values, node).config == {"unnumbered": True, "num-clients": 2}
    assert handle("query", Payload({"state-key": "run", "client": 1}), values, node).config["client"] == 1
    assert handle("query", Payload({"state-key": "run"}), values, node).config["client"] == 1
    next((tmp_path / "state" / "run").glob("number-*")).write_text("x")
    with pytest.raises(StateError, match="is damaged or was changed"):
        handle("query", Payload({"state-key": "run"}), values, node)


def test_the_data_path_has_two_names_that_must_agree():
    assert own_data_path({"data-path": "/a", "data": "/a"}) == "/a" and own_data_path({}) == ""
    with pytest.raises(ConfigError, match="data-path = '/a': but its other name, data, is set to '/b'"):
        own_data_path({"data-path": "/a", "data": "/b"})
