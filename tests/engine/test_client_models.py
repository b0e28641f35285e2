"""Different models for different clients (``client-models``)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, LocalGrid, arrays, engine, federation, run_federation, simulate
from torch import nn

from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.engine.local import LocalTransport
from fedpfl.models import BaseHeadModel, registry
from fedpfl.results.export import personal_models, trained_model
from fedpfl.setup.config import Config

KINDS = {"small": [64, 16], "deep": [64, 32, 16], "wide": [64, 20]}
CHOSEN = {"model": "small", "client_models": "1:deep, 3-4:deep", "num_server_rounds": 2, **FEW_SAMPLES}


@pytest.fixture(autouse=True)
def kinds(monkeypatch):
    def builder(widths):
        def build(input_shape, num_classes):
            layers = {"flatten": nn.Flatten()}
            for at, (inputs, outputs) in enumerate(pairwise(widths)):
                layers.update({f"fc{at}": nn.Linear(inputs, outputs), f"relu{at}": nn.ReLU()})
            return BaseHeadModel(registry.named(**layers), nn.Linear(widths[-1], num_classes))

        return build

    for name, widths in KINDS.items():
        monkeypatch.setitem(registry.MODELS._entries, name, registry._Entry(builder(widths), None))


@pytest.mark.parametrize("method", ["fedproto", "fedtgp", "fedgh", "lg-fedavg", "local"])
def test_clients_train_and_keep_models_of_their_own_kinds(tmp_path, method):
    folder = simulate(tmp_path, 5, method=method, **CHOSEN)
    first, last = folder.metrics()
    assert last["clients"] == [0, 1, 2, 3, 4]
    assert last["personalised"]["loss"] < first["personalised"]["loss"]
    exported = dict(personal_models(folder))
    assert [("base.fc1.weight" in exported[client]) for client in range(5)] == [False, True, False, True, True]
    model = trained_model(folder, client=3)
    assert isinstance(model.base.fc1, nn.Linear)
    assert torch.equal(model.base.fc1.weight, exported[3]["base.fc1.weight"])


@pytest.mark.parametrize("method", ["fedtgp", "lg-fedavg"])
def test_workers_and_flower_s_messages_give_the_same_bits(tmp_path, method):
    found = []
    for place in ("flower", "here", "workers"):
        values = federation(tmp_path / place, 5, method=method, num_clients=5, **CHOSEN)
        if place == "workers":
            with LocalTransport(Config.parse(values), workers=2) as transport:
                folder = run_federation(transport, values)
        else:
            folder = run_federation(LocalGrid(5, values) if place == "flower" else engine(5, values), values)
        found.append(arrays(folder, tmp_path / place))
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for name, array in found[0].items():
            np.testing.assert_array_equal(other[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "fedavg"}, "small and deep differ in what fedavg sends: shared arrays"),
        ({"method": "fedproto", "client_models": "2:wide"}, "small and wide differ in what fedproto sends: prototypes"),
        ({"method": "fedgh", "client_models": "2:wide"}, "what fedgh sends: shared arrays, prototypes"),
        ({"method": "fedproto", "client_models": "3-5:deep"}, "names client 5; the clients are 0 … 4"),
    ],
)
def test_models_that_differ_in_what_travels_end_the_run_before_round_1(tmp_path, settings, words):
    with pytest.raises(FedpflError, match=words):
        simulate(tmp_path, 5, **{**CHOSEN, **settings})
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("small", "'small' must be a number or a range"),
        ("2-1:deep", "'2-1:deep' has no client"),
        ("0-3:deep,3:small", "'3:small' has a client that has a model already"),
        ("1234567:deep", "must be a number or a range"),
        ("0:no-model", "model = 'no-model': must be one of"),
    ],
)
def test_another_form_is_refused_at_once(value, words):
    with pytest.raises(ConfigError, match=words):
        Config.parse({"client-models": value})


@pytest.mark.parametrize(("key", "value"), [("evaluate-global", True), ("initial-weights", "weights.safetensors")])
def test_what_is_for_one_model_is_refused(key, value):
    with pytest.raises(ConfigError, match=f"^{key} = {value!r}: cannot be combined with client-models"):
        Config.parse({"client-models": "0:mlp", key: value})
