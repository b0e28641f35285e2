"""A model of a user's own under every method, or a reason why not before round 1."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import ADAPTERS, NO_PLAIN_MODEL, check_recorded, each_method
from support import run_small as run
from torch import nn

import fedpfl


class Net(nn.Module):
    """Fifteen lines that know nothing of fedpfl."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        channels, height, width = input_shape
        self.conv = nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2)
        self.hidden = nn.Linear(4 * (height // 2) * (width // 2), 16)
        self.scale = nn.Parameter(torch.tensor(1.0))  # of no dimension
        self.out = nn.Linear(16, num_classes)

    def forward(self, x):
        x = self.pool(self.norm(self.conv(x)).relu())
        return self.out(self.scale * self.hidden(x.flatten(1)).relu())


class TiedNet(nn.Module):
    """Two of its layers have one weight."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.first, self.hidden, self.again = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.again.weight = self.hidden.weight
        self.out = nn.Linear(16, num_classes)

    def forward(self, x):
        x = self.hidden(self.first(x.flatten(1)).relu()).relu()
        return self.out(self.again(x).relu())


class TiedHead(nn.Module):
    """Its head has the weight of a layer of its base."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.first, self.hidden, self.out = nn.Linear(64, 10), nn.Linear(10, 10), nn.Linear(10, num_classes)
        self.out.weight = self.hidden.weight

    def forward(self, x):
        return self.out(self.hidden(self.first(x.flatten(1)).relu()).relu())


def no_linear_layer(num_classes):
    return nn.Sequential(nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, num_classes, 3), nn.Flatten())


def no_linear_head(num_classes):
    parts = [*no_linear_layer(num_classes)]
    return fedpfl.BaseHeadModel(nn.Sequential(*parts[:2]), nn.Sequential(*parts[2:]))


NEED_A_HEAD = ["factorized-fl", "factorized-fl-plus", "fedbabu", "fedper", "fedrep", "fedrod", "lg-fedavg", "moon"]
NEED_A_LINEAR_HEAD = [
    "fedas", "fedcp", "feddbe", "feddistill", "fedgh", "fedkd", "fedmrl", "fednh", "fedpac", "fedproto", "fedreg",
    "fedrolex", "fedtgp", "floco", "gpfl", "heterofl", "knn-per", "pfedfda",
]  # fmt: skip

APART = "method = '{}': would separate base.hidden.weight and base.again.weight, which are one parameter of the model"
CHANNELS = "base.again.weight is a parameter of another layer, too"
# What TiedNet is refused by: layers that are replaced, or that are cut into channels.
REFUSED = {
    **dict.fromkeys(["factorized-fl", "factorized-fl-plus", "feddecomp", "pfedpara"], APART),
    **dict.fromkeys(["fedfac", "fedsplit"], CHANNELS),
    **dict.fromkeys(ADAPTERS, "trainable = 'lora': would separate base.hidden.weight and base.again.weight"),
}


def model_of(finished):
    """Return client 0's model, which has the recorded accuracy."""
    assert np.isfinite(finished.summary["personalised_accuracy"])
    return check_recorded(finished)[0]


def require_no_model(finished, method):
    """See that a run ends well whose method has no model to give back, and that it says so in a line."""
    assert np.isfinite(finished.summary["personalised_accuracy"])
    with pytest.raises(fedpfl.NoPlainModel, match=rf"^{method} .+$"):
        finished.model(client=0)
    assert not finished.path.joinpath("personal").exists()


@pytest.mark.parametrize("method", each_method(also=NO_PLAIN_MODEL))
def test_a_model_of_fifteen_lines_runs(method, tmp_path):
    finished = run(method, Net, tmp_path)
    if method in NO_PLAIN_MODEL:
        require_no_model(finished, method)
        return
    model = model_of(finished)
    assert isinstance(model, Net) and model.out.out_features == 10


@pytest.mark.parametrize(("method", "changes"), [
    ("local", {"client_models": {0: "small-cnn"}, "tune_epochs": 1}), ("fedavg", {"permute_labels": True}),
    ("fedper", {"tune_epochs": 1, "permute_labels": True}), ("per-fedavg", {"tune_epochs": 1, "permute_labels": True}),
    ("fedala", {"wire_dtype": "float16"}), ("ditto", {"early_stop": 1, "num_server_rounds": 3}),
    ("fedavg", {"tune_epochs": 1, "trainable": "lora"}), ("fedper", {"tune_epochs": 1, "trainable": "lora"}),
])  # fmt: skip
def test_settings_that_change_what_is_tested_change_what_is_given_back(method, changes, tmp_path):
    assert model_of(run(method, "mlp", tmp_path, **{"num_server_rounds": 2, **changes}))


@pytest.mark.parametrize("changes", [{"device_models": "never"}, {"test_at": "start"}])
def test_what_was_made_for_a_test_alone_is_not_replaced_by_what_was_not_tested(changes, tmp_path):
    finished = run("fedbabu", "mlp", tmp_path, **changes)
    with pytest.raises(fedpfl.NoPlainModel, match="has no model of round 1 for client 0, which makes it for a test"):
        finished.model(client=0)
    with pytest.raises(fedpfl.NoPlainModel, match=r"it is written at the test after the last round"):
        finished.export()
    assert not finished.path.joinpath("personal").exists()


@pytest.mark.parametrize("method", each_method(also=REFUSED))
def test_layers_that_have_one_weight_keep_it_or_are_refused_before_training(method, tmp_path):
    if method in REFUSED:
        with pytest.raises(fedpfl.FedpflError, match=REFUSED[method].format(method)):
            run(method, TiedNet, tmp_path)
        assert not list(tmp_path.glob("runs/*/metrics.jsonl"))
        return
    finished = run(method, TiedNet, tmp_path)
    if method in NO_PLAIN_MODEL:
        require_no_model(finished, method)
        return
    model = model_of(finished)
    assert torch.equal(model.hidden.weight, model.again.weight)


@pytest.mark.parametrize("method", each_method(also=[*NEED_A_HEAD, *NEED_A_LINEAR_HEAD]))
@pytest.mark.parametrize("net", [no_linear_layer, no_linear_head])
def test_a_model_that_does_not_end_in_a_linear_layer_runs_or_is_refused_before_training(method, net, tmp_path):
    headless = net is no_linear_layer
    if method in NEED_A_LINEAR_HEAD or (headless and method in NEED_A_HEAD):
        message = (
            "has no nn.Linear; the method needs a head" if headless else "has a Sequential as its head; the method"
        )
        with pytest.raises(fedpfl.ConfigError, match=message):
            run(method, net, tmp_path)
        assert not list(tmp_path.glob("runs/*/metrics.jsonl"))
        return
    finished = run(method, net, tmp_path)
    if method in NO_PLAIN_MODEL:
        require_no_model(finished, method)
    else:
        assert isinstance(model_of(finished), nn.Sequential if headless else fedpfl.BaseHeadModel)


@pytest.mark.parametrize("setting", [{"personal_head": True}, {"trainable": "head"}])
def test_settings_of_the_head_need_one(setting, tmp_path):
    with pytest.raises(fedpfl.ConfigError, match=r"has no nn\.Linear; "):
        run("fedavg", no_linear_layer, tmp_path, **setting)


@pytest.mark.parametrize(("method", "setting"), [("fedper", {}), ("fedavg", {"personal_head": True})])
def test_a_head_that_has_a_weight_of_the_base_is_not_kept_by_half(method, setting, tmp_path):
    match = f"method = '{method}': shares only one of base.hidden.weight and head.weight, which are one parameter"
    with pytest.raises(fedpfl.FedpflError, match=match):
        run(method, TiedHead, tmp_path, **setting)
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))


def test_a_frozen_base_is_refused_if_the_head_has_its_weight(tmp_path):
    with pytest.raises(
        fedpfl.FedpflError, match=r"trainable = 'head': would separate base.hidden.weight and head.weight"
    ):
        run("fedavg", TiedHead, tmp_path, trainable="head")


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_head_that_has_a_weight_of_the_base_travels_or_stays_with_it(method, tmp_path):
    model = model_of(run(method, TiedHead, tmp_path))
    assert torch.equal(model.hidden.weight, model.out.weight)
