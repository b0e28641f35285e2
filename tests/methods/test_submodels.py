"""Narrower models for weaker clients: HeteroFL, FedRolex and what may have a width."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, LocalGrid, arrays, check_recorded, federation, run_federation, simulate
from torch import nn

import fedpfl
from fedpfl.api.runs import Run
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.models import build
from fedpfl.models.registry import MODELS
from fedpfl.results.export import trained_model

METHODS = ["fedrolex", "heterofl"]
WIDTHS = {"client_models": "1:@0.5,2-3:@0.25", "num_server_rounds": 2, **FEW_SAMPLES}
INPUTS = {"char-lstm": (20,), "cnn-1d": (9, 64), "decoder": (20,), "gru": (9, 64), "transformer": (20,)}


@pytest.mark.parametrize("name", list(MODELS))
def test_a_built_in_model_is_as_narrow_as_its_name_says_or_has_one_width(name):
    tokens = 20 if name in ("char-lstm", "decoder", "transformer") else 0
    shape = INPUTS.get(name, (3, 32, 32))
    with torch.device("meta"):
        whole = build(name, shape, 10, tokens)
        if not MODELS[name].takes_width:
            with pytest.raises(ConfigError, match=f"{name}@0.5': has one width; .*small-cnn, .*can be narrower"):
                build(f"{name}@0.5", shape, 10, tokens)
            return
        half = build(f"{name}@0.5", shape, 10, tokens)
    assert (whole.width, half.width) == (1, 0.5)
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in (whole, half)]
    assert counts[1] < 0.6 * counts[0]
    for large, small in zip(whole.state_dict().values(), half.state_dict().values(), strict=True):
        halves = [(size, -(-size // 2)) for size in large.shape]
        assert all(size in both for size, both in zip(small.shape, halves, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_a_client_of_half_the_width_sends_a_quarter(tmp_path, method):
    values = federation(tmp_path, 4, method=method, **WIDTHS)
    grid = LocalGrid(4, values)
    run_federation(grid, values)
    sent = [{}, {}]
    for kind, client, message, reply in grid.log:
        for way, content in enumerate((message, reply)) if kind == "train" else ():
            sent[way][client] = sum(record.count_bytes() for record in content.array_records.values())
    sizes = [
        sum(array.numel() for array in build(f"small-cnn@{width}", (1, 8, 8), 10).state_dict().values())
        for width in (1, 0.5, 0.25)
    ]
    for way in sent:
        assert way[2] == way[3]
        assert [way[client] / way[0] for client in (1, 2)] == pytest.approx([n / sizes[0] for n in sizes[1:]], abs=0.02)
        assert way[1] < 0.3 * way[0]


def widths(folder):
    """Return how many channels the first layer of each client's exported model has."""
    return [len(trained_model(folder, client).base.conv1.weight) for client in range(4)]


@pytest.mark.parametrize("method", METHODS)
def test_models_are_exported_at_their_widths_with_the_recorded_accuracies(tmp_path, method):
    settings = {"model": "small-cnn-bn", **WIDTHS, "dirichlet_alpha": 0.1}
    folder = simulate(tmp_path, 4, method=method, num_clients=4, **settings)
    assert widths(folder) == [16, 8, 4, 4]
    run = Run(folder)
    run.export()
    check_recorded(run)
    # The whole model is the one that all share.
    assert run.model().state_dict()["base.conv1.weight"].shape[0] == 16


def test_the_first_round_of_fedrolex_is_heterofl_s(tmp_path):
    folders = [simulate(tmp_path / method, 4, method=method, **WIDTHS) for method in METHODS]
    first, second = [[line["personalised"] for line in folder.metrics()] for folder in folders]
    assert first[0] == second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize("method", METHODS)
def test_a_board_names_the_width_of_the_run_s_model(tmp_path, method):
    boards = {1: {"model": "@0.5"}, 2: {"model": "small-cnn@0.25"}, 3: {"model": "@.25"}}
    runs = []
    for place, named, node_config in (("settings", WIDTHS["client_models"], {}), ("boards", "", boards)):
        values = federation(tmp_path / place, 4, method=method, **{**WIDTHS, "client_models": named})
        folder = run_federation(LocalGrid(4, values, node_config=node_config), values)
        runs.append(arrays(folder, tmp_path / place))
    assert widths(folder) == [16, 8, 4, 4]
    assert runs[0].keys() == runs[1].keys()
    assert all(np.array_equal(array, runs[1][name]) for name, array in runs[0].items())


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("mlp", "mlp is not small-cnn at a width: heterofl takes widths"),
        ("mlp@0.5", "mlp is not small-cnn at a width"),
        ("@2", "'@2': must be one of"),
        ("@0", "'@0': must be one of"),
        ("small-cnn@0.5@0.5", "must be one of"),
    ],
)
def test_a_model_that_is_no_width_of_the_run_s_is_refused(tmp_path, named, message):
    values = federation(tmp_path, 2, method="heterofl", node_timeout=1.0)
    with pytest.raises(FedpflError, match=message):
        run_federation(LocalGrid(2, values, node_config={1: {"model": named}}), values)
    with pytest.raises(FedpflError, match=message):
        simulate(tmp_path, 2, method="heterofl", client_models=f"1:{named}", run_name="b")
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


@pytest.mark.parametrize("method", ["fedavg", "fedper", "scaffold"])
def test_other_methods_refuse_widths_where_shared_arrays_differ(tmp_path, method):
    with pytest.raises(ConfigError, match=f"small-cnn and small-cnn@0.5 differ in what {method} sends: shared arrays"):
        simulate(tmp_path / "a", 2, method=method, client_models="1:@0.5")
    assert simulate(
        tmp_path / "b", 2, method=method, model="small-cnn@0.5", num_server_rounds=1, **FEW_SAMPLES
    ).metrics()


def test_a_run_s_own_model_is_no_width_alone(tmp_path):
    with pytest.raises(ConfigError, match=r"model = '@0.5': is only a width; name a model with it"):
        simulate(tmp_path, 2, method="heterofl", model="@0.5")


def narrow(num_classes, width=1.0):
    units = round(40 * width)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, units), nn.ReLU(), nn.Linear(units, num_classes))


def fixed(num_classes):
    return narrow(num_classes)


def test_a_model_of_the_user_s_takes_a_width(tmp_path):
    settings = {
        "method": "heterofl", "dataset": "digits", "client_models": "1:@0.25", "num_clients": 2, "workers": 0,
        "num_server_rounds": 1, "quiet": True, "output_dir": tmp_path / "runs", "state_dir": tmp_path / "state",
        **FEW_SAMPLES,
    }  # fmt: skip
    run = fedpfl.run(model=narrow, **settings)
    assert [run.model(client)[1].out_features for client in (0, 1)] == [40, 10]
    with pytest.raises(ConfigError, match=r"takes no argument 'width'; .*what you build with an argument 'width'"):
        fedpfl.run(model=fixed, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"server_optimizer": "adam"}, "server-optimizer = 'adam': must be none for heterofl"),
        ({"robust_aggregation": "median"}, "robust-aggregation = 'median'.*heterofl"),
        ({"dp_noise_multiplier": 1.0, "dp_clip_norm": 1.0, "dp_where": "server"}, "dp-noise-multiplier|dp-where"),
        ({"evaluate_global": True}, "evaluate-global"),
        ({"initial_weights": "w.safetensors"}, "initial-weights"),
        ({"trainable": "head"}, "trainable = 'head': must be all for heterofl: it splits whole arrays"),
        ({"loss": "mse"}, "loss"),
    ],
)
def test_what_cannot_go_with_slices_ends_in_a_line(tmp_path, settings, message):
    with pytest.raises(FedpflError, match=message) as caught:
        simulate(tmp_path, 2, method="heterofl", client_models="1:@0.5", **settings)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


def test_what_goes_with_slices(tmp_path):
    settings = {
        "diagnostics": True, "update_norm_limit": 3.0, "new_clients": 0.25, "personal_head": True,
        "wire_dtype": "float16", "validation_fraction": 0.2,
    }  # fmt: skip
    folder = simulate(tmp_path, 4, method="fedrolex", model="small-cnn-bn", **WIDTHS, **settings)
    last = folder.metrics()[-1]
    assert last["details"]["drift"] > 0
    assert len(last["clients"]) == 3
    assert not last.get("failed")


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("claimed", ["@0.25", ""])
def test_a_reply_of_another_width_does_not_count(tmp_path, claimed, said):
    few = {"client_models": "1:@0.5", "num_server_rounds": 1, **FEW_SAMPLES}
    values = federation(tmp_path, 2, method="heterofl", **few)
    small = build(f"small-cnn{claimed}", (1, 8, 8), 10).state_dict()
    layout = Layout.of([(name, array.shape) for name, array in small.items()])

    class Liar(LocalGrid):
        def answer(self, kind, payload, node_config):
            reply = super().answer(kind, payload, node_config)
            if kind == "train" and node_config["partition-id"] == 1:
                sent = layout.pack(np.zeros(layout.size, np.float32), "float32")
                text = layout.to_text() if said else reply.config["layout"]
                return Payload({**reply.config, "layout": text}, reply.metrics, sent)
            return reply

    line = run_federation(Liar(2, values), values).metrics()[0]
    assert line["clients"] == [0]
    message = "array 'base.conv1.weight' of shape" if said else f"a vector of shape ({layout.size},) arrived, expected"
    assert message in line["failed"]["1"]


def test_a_model_of_another_library_has_one_width():
    with pytest.raises(ConfigError, match=r"model = 'torchvision:resnet18@0.5': has one width; .*small-cnn.* can be"):
        build("torchvision:resnet18@0.5", (3, 32, 32), 10)
