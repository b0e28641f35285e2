"""After a run's end: new clients make models of their own, and those that missed it get theirs; the run stays."""

import numpy as np
import pytest
from support import FEW_SAMPLES, Clock, LocalGrid, engine, federation, quick, run_federation

from fedpfl.client.device_model import load_model
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.core.payload import Payload, is_probe
from fedpfl.core.server_view import new_clients
from fedpfl.results.export import trained_model
from fedpfl.results.new_clients import try_new_clients
from fedpfl.results.resumed_run import ResumedRun
from fedpfl.setup.config import Config

CLIENTS = 4
GIVEN = {"num_server_rounds": 2, "threads": 1, "device_models": "auto", "new_clients": 0.25, **FEW_SAMPLES}


class Devices(LocalGrid):
    """Nodes that are devices with data of their own, or with shares of common data."""

    devices = True

    def __init__(self, *arguments, data=None, there=None, **options):
        super().__init__(*arguments, **options)
        self.data = data
        self.there = there or data or range(self.num_nodes)

    def get_node_ids(self):
        return [100 + i for i in self.there]

    def answer(self, kind, payload, node_config):
        if is_probe(payload):
            return Payload()
        if self.data is not None:
            node_config = {"data-path": str(self.data[node_config["partition-id"]])}
        return super().answer(kind, payload, node_config)


def settings(tmp_path, method="fedper", **options):
    return federation(tmp_path, CLIENTS, method=method, **{**GIVEN, **quick(method), **options})


def files(folder):
    """Return the content of all that a run stores, but for what is noted after its end."""
    names = ("config.toml", "metrics.jsonl", "summary.md", "global.safetensors")
    contents = {name: (folder.path / name).read_bytes() for name in names if (folder.path / name).is_file()}
    return {**contents, **{path.name: path.read_bytes() for path in (folder.path / "checkpoint").iterdir()}}


def afterwards(way, values, mode="local-train", **options):
    """Ask the clients behind a grid or in a simulation; return the way to them."""
    values = {**values, "resume": True, "personalise": mode}
    result = way(int(values["num-clients"]) or CLIENTS, values, **options)
    run_federation(result, values)
    return result


def model_of(tmp_path, client):
    return next((tmp_path / "state").glob(f"*/client-{client:05d}/model"))


@pytest.mark.parametrize(("method", "mode"), [
    ("fedper", "local-train"), ("fedfac", "local-train"), ("fedfac", "fine-tune"), ("scaffold", "fine-tune"),
])  # fmt: skip
@pytest.mark.parametrize("at_once", [1, 2])
def test_new_clients_have_the_same_accuracy_here_and_on_devices(tmp_path, method, mode, at_once):
    values, results = settings(tmp_path, method, clients_at_once=at_once), []
    folder = run_federation(Devices(CLIENTS, values), values)
    (new,) = new_clients(values["seed"], values["new-clients"], CLIENTS)
    before = files(folder)
    for way in (Devices, engine):
        afterwards(way, values, mode)
        results.append(ResumedRun(folder.path).personalised())
    assert results[0] == results[1]
    assert files(folder) == before
    assert results[0]["new"]["each"] == try_new_clients(folder, mode)["each"]
    assert (results[0]["mode"], results[0]["round"], results[0]["failed"]) == (mode, 2, {})
    model = load_model(model_of(tmp_path, new))
    assert (model.about["round"], model.about["client"]) == (3, new)
    if model.about["kind"] == "weights":
        tested = model.about["tested"]
        assert tested["correct"] / tested["samples"] == results[0]["new"]["each"][str(new)]
    if mode == "local-train" and method == "fedper":  # what is shared is the run's
        shared = folder.checkpoint()[1]["shared"]
        base = [a for name, a in model.module.state_dict().items() if not name.startswith("head.")]
        assert np.array_equal(np.concatenate([array.numpy().ravel() for array in base]), shared)


def test_a_device_that_missed_the_end_gets_its_model_afterwards(tmp_path, clock):
    def away(kind, client, payload):
        if (kind, client, payload.config.get("round")) == ("evaluate", 1, 2):
            raise FedpflError("switched off")

    values = settings(tmp_path, new_clients=0.0, early_stop=9, validation_fraction=0.2)
    folder = run_federation(Devices(CLIENTS, values, intercept=away), values)
    assert load_model(model_of(tmp_path, 1)).about["round"] == 1
    assert load_model(model_of(tmp_path, 0)).about["round"] == 2
    grid = afterwards(Devices, values)
    assert [(kind, client) for kind, client, *_ in grid.log if kind != "query"] == [("evaluate", 1)]
    model = load_model(model_of(tmp_path, 1))
    assert model.about["round"] == 2
    arrays = trained_model(folder, client=1).state_dict()
    assert all(np.array_equal(array.numpy(), arrays[name].numpy()) for name, array in model.module.state_dict().items())
    assert list(ResumedRun(folder.path).personalised()["missed"]["each"]) == ["1"]
    with pytest.raises(FedpflError, match="run: nothing to do: every connected client was already tested"):
        afterwards(Devices, {**values, "node-timeout": 10.0}, there=(0, 2))


def test_clients_of_a_run_that_was_not_finished_get_the_arrays_that_there_are(tmp_path, caplog):
    values = settings(tmp_path)
    folder = run_federation(engine(CLIENTS, values), values)
    (folder.path / "summary.md").unlink()
    afterwards(engine, values)
    assert "fedpfl: run is not finished: clients get the arrays of its round 2 of 2" in caplog.messages
    assert ResumedRun(folder.path).personalised()["new"]["each"]


@pytest.fixture
def clock(monkeypatch):
    return Clock.of_the_server(monkeypatch)


def test_devices_that_are_tested_at_a_round_s_start_get_their_models_afterwards(tmp_path):
    values = settings(tmp_path, new_clients=0.0, test_at="start")
    folder = run_federation(Devices(CLIENTS, values), values)
    assert not list((tmp_path / "state").glob("*/client-*/model"))
    afterwards(Devices, values)
    assert list(ResumedRun(folder.path).personalised()["missed"]["each"]) == [str(client) for client in range(CLIENTS)]
    assert {load_model(model_of(tmp_path, client)).about["round"] for client in range(CLIENTS)} == {2}


def own_files(tmp_path, count):
    rng, paths = np.random.default_rng(0), {}
    for i in range(count):
        paths[i] = tmp_path / f"own-{i}.npz"
        np.savez(paths[i], x=rng.integers(0, 255, (60, 8, 8), dtype=np.uint8), y=np.arange(60) % 3)
    return paths


def test_a_board_that_is_bought_later_joins_with_data_of_its_own(tmp_path, clock):
    paths = own_files(tmp_path, 4)
    options = {"dataset": "npz", "num_classes": 3, "new_clients": 0.0, "partitioner": "auto", "node_timeout": 10.0}
    values = settings(tmp_path, num_clients=3, **options)
    folder = run_federation(Devices(3, values, data={i: paths[i] for i in range(3)}), values)
    # One old board is there, and the new one; the numbers of the boards that are away are not free.
    later = {**values, "num-clients": 4}
    afterwards(Devices, later, data={0: paths[1], 3: paths[3]})
    assert list(ResumedRun(folder.path).personalised()["new"]["each"]) == ["3"]
    assert load_model(model_of(tmp_path, 3)).about["client"] == 3
    assert folder.task()["clients"] == 3
    other = tmp_path / "other.npz"
    np.savez(other, x=np.zeros((60, 9, 9), np.uint8), y=np.arange(60) % 3)
    with pytest.raises(FedpflError, match="client 4: its data differ from the others': 1x9x9, the run had 1x8x8"):
        afterwards(Devices, {**later, "num-clients": 5}, data={4: other})


def test_a_client_that_fails_costs_only_itself(tmp_path):
    values = settings(tmp_path, new_clients=0.5)
    folder = run_federation(Devices(CLIENTS, values), values)
    first, second = new_clients(values["seed"], 0.5, CLIENTS)

    def broken(kind, client, payload):
        if (kind, client) in fails:
            raise FedpflError("no power")

    fails = {("train", first)}
    afterwards(Devices, values, intercept=broken)
    personalised = ResumedRun(folder.path).personalised()
    assert (list(personalised["new"]["each"]), personalised["failed"]) == ([str(second)], {str(first): "no power"})
    fails.add(("train", second))
    with pytest.raises(FedpflError, match=r"run: clients \d, \d: no power"):
        afterwards(Devices, values, intercept=broken)
    assert not (folder.path / "failed.txt").exists()


def test_what_cannot_be_is_refused(tmp_path):
    values = settings(tmp_path, "fedamp")
    with pytest.raises(ConfigError, match="personalise = 'fine-tune': needs resume and run-name"):
        Config.parse({**values, "personalise": "fine-tune"})
    run_federation(engine(CLIENTS, values), values)
    with pytest.raises(ConfigError, match="method = 'fedamp': makes a model for each client and has none for new ones"):
        afterwards(engine, values)
