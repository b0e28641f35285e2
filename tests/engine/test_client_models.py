"""Different models for different clients (``client-models``)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, LocalGrid, add_model, arrays, engine, federation, run_federation, simulate
from torch import nn

import fedpfl
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.models import BaseHeadModel, registry
from fedpfl.results.export import export_personal, trained_model
from fedpfl.setup.config import Config

KINDS = {"small": [64, 16], "deep": [64, 32, 16], "wide": [64, 20]}
CHOSEN = {
    **FEW_SAMPLES, "model": "small", "client_models": "1:deep, 3-4:deep", "num_server_rounds": 2, "local_epochs": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def kinds(monkeypatch):
    def builder(widths):
        def build(input_shape, num_classes):
            layers = {"flatten": nn.Flatten()}
            for number, (inputs, outputs) in enumerate(pairwise(widths)):
                layers.update({f"fc{number}": nn.Linear(inputs, outputs), f"relu{number}": nn.ReLU()})
            return BaseHeadModel(registry.named(**layers), nn.Linear(widths[-1], num_classes))

        return build

    for name, widths in KINDS.items():
        add_model(monkeypatch, name, builder(widths))


@pytest.mark.parametrize("method", ["fedtgp", "lg-fedavg", "local"])
def test_clients_train_and_keep_models_of_their_own_kinds(tmp_path, method):
    folder = simulate(tmp_path, 5, method=method, **CHOSEN)
    first, last = folder.metrics()
    assert last["clients"] == [0, 1, 2, 3, 4]
    assert last["personalised"]["loss"] < first["personalised"]["loss"]
    exported = [trained_model(folder, client).state_dict() for client in range(5)]
    assert [("base.fc1.weight" in exported[client]) for client in range(5)] == [False, True, False, True, True]
    model = trained_model(folder, client=3)
    assert isinstance(model.base.fc1, nn.Linear)
    assert torch.equal(model.base.fc1.weight, exported[3]["base.fc1.weight"])


def test_an_export_of_many_clients_parses_the_settings_once(tmp_path, monkeypatch):
    folder = simulate(tmp_path, 5, method="local", **CHOSEN)
    parse, parsed = Config.parse, []
    monkeypatch.setattr(Config, "parse", lambda values: parsed.append(values) or parse(values))
    assert len(export_personal(folder, form="torchscript")) == 5
    assert len(parsed) == 1


@pytest.mark.parametrize("method", ["fedtgp", "lg-fedavg"])
def test_workers_and_flower_s_messages_give_the_same_bits(tmp_path, method):
    runs = []
    for place in ("flower", "here", "workers"):
        values = federation(tmp_path / place, 5, method=method, num_clients=5, **CHOSEN)
        if place == "workers":
            with SimulationTransport(Config.parse(values), workers=2) as transport:
                folder = run_federation(transport, values)
        else:
            folder = run_federation(LocalGrid(5, values) if place == "flower" else engine(5, values), values)
        runs.append(arrays(folder, tmp_path / place))
    for other in runs[1:]:
        assert other.keys() == runs[0].keys()
        for name, array in runs[0].items():
            np.testing.assert_array_equal(other[name], array, err_msg=name)


def chosen(client):
    return "deep" if client in (1, 3, 4) else "small"


def test_a_function_of_the_client_gives_the_same_bits_as_the_list(tmp_path):
    runs = []
    for place, named in (("list", CHOSEN["client_models"]), ("function", f"{__name__}:chosen")):
        values = federation(tmp_path / place, 5, method="fedtgp", **{**CHOSEN, "client_models": named})
        runs.append(arrays(run_federation(engine(5, values), values), tmp_path / place))
    assert runs[0].keys() == runs[1].keys() and len(runs[0]) > 10
    assert all(np.array_equal(array, runs[1][name]) for name, array in runs[0].items())


def test_in_python_a_function_or_a_dict_of_functions_says_which(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    def larger(input_shape, num_classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))

    settings = {**CHOSEN, "num_server_rounds": 1, "local_epochs": 1, "num_clients": 2, "workers": 0, "quiet": True}
    settings = {**settings, "method": "fedproto", "dataset": "digits", "output_dir": str(tmp_path / "runs")}
    mixed = fedpfl.run(**{**settings, "client_models": {1: larger}})
    loaded = fedpfl.load(mixed.path, client_models={1: larger})
    assert torch.equal(mixed.model(1)[1].weight, loaded.model(1)[1].weight)
    named = fedpfl.run(**{**settings, "client_models": lambda client: ("small", "deep")[client]})
    assert isinstance(named.model(1).base.fc1, nn.Linear)


def test_a_board_s_own_model_gives_the_same_bits_as_client_models(tmp_path):
    boards = {client: {"model": "deep"} for client in (1, 3, 4)}
    runs = []
    for place, named, node_config in (("settings", CHOSEN["client_models"], {}), ("boards", "", boards)):
        values = federation(tmp_path / place, 5, method="fedtgp", **{**CHOSEN, "client_models": named})
        folder = run_federation(LocalGrid(5, values, node_config=node_config), values)
        runs.append(arrays(folder, tmp_path / place))
    assert folder.task()["models"] == {"1": "deep", "3": "deep", "4": "deep"}
    assert "devices have their own models: client 1 deep, client 3 deep, client 4 deep" in folder.task()["remarks"]
    assert isinstance(trained_model(folder, client=3).base.fc1, nn.Linear)
    assert runs[0].keys() == runs[1].keys() and len(runs[0]) > 10
    assert all(np.array_equal(array, runs[1][name]) for name, array in runs[0].items())
    values["num-server-rounds"] = 3
    with pytest.raises(ConfigError, match="model = 'small': client 3 had deep in the run to resume"):
        run_federation(LocalGrid(5, values, node_config={**boards, 3: {"model": "small"}}), {**values, "resume": True})


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        (
            "fedproto",
            "wide",
            "its own model wide and small differ in what fedproto sends: .*prototypes 10x20",
        ),
        ("fedgh", "wide", "has another model"),
        ("fedavg", "deep", "has another model"),
        ("fedproto", "no-model", "model = 'no-model': must be one of"),
        ("fedproto", "a b", "model = 'a b': must be one of"),
    ],
)
def test_a_board_whose_model_does_not_fit_ends_the_run_before_round_1(tmp_path, method, model, message):
    values = federation(tmp_path, 2, method=method, **{**CHOSEN, "client_models": "", "node_timeout": 1.0})
    with pytest.raises(FedpflError, match=message):
        run_federation(LocalGrid(2, values, node_config={1: {"model": model}}), values)
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


def test_a_model_that_only_a_device_knows_is_not_built_here(tmp_path):
    values = federation(tmp_path, 2, method="local", **{**CHOSEN, "client_models": ""})
    node_config = {1: {"model": f"{__name__}:net"}}
    folder = run_federation(LocalGrid(2, values, node_config=node_config), values)
    assert trained_model(folder, client=0).state_dict()
    with pytest.raises(ConfigError, match="is the device's own model of client 1, which is built only there"):
        trained_model(folder, client=1)


def net(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client_models": f"{__name__}:net"}, "needs an argument 'input_shape'; it is given client"),
        ({"client_models": f"{__name__}:KINDS"}, "is a dict, and must be a function"),
        ({"method": "fedavg"}, "small and deep differ in what fedavg sends: shared arrays"),
        ({"method": "fedproto", "client_models": "2:wide"}, "small and wide differ in what fedproto sends: prototypes"),
        ({"method": "fedgh", "client_models": "2:wide"}, "what fedgh sends: shared arrays, prototypes"),
        ({"method": "fedproto", "client_models": "3-5:deep"}, "names client 5; the clients are 0 … 4"),
    ],
)
def test_models_that_differ_in_what_travels_end_the_run_before_round_1(tmp_path, settings, message):
    with pytest.raises(FedpflError, match=message):
        simulate(tmp_path, 5, **{**CHOSEN, **settings})
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("small", "'small' must be a number or a range"),
        ("2-1:deep", "'2-1:deep' has no client"),
        ("0-3:deep,3:small", "'3:small' has a client that already has a model"),
        ("1234567:deep", "must be a number or a range"),
        ("0:no-model", "^client-models = 'no-model': must be one of"),
    ],
)
def test_another_form_is_refused_at_once(value, message):
    with pytest.raises(ConfigError, match=message):
        Config.parse({"client-models": value})


@pytest.mark.parametrize(("key", "value"), [("evaluate-global", True), ("initial-weights", "weights.safetensors")])
def test_what_is_for_one_model_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"^{key} = {value!r}: cannot be combined with client-models"):
        Config.parse({"client-models": "0:mlp", key: value})
