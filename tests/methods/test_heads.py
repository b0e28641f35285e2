"""Methods that cut a model into parts: which arrays travel, which models they take, what they export."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support import FEW_SAMPLES, LocalGrid, add_model, federation, simulate
from torch import nn

from fedpfl import models
from fedpfl.core.errors import ConfigError, FedpflError
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

HERE = ["ditto", "fedbabu", "fedbn", "feddyn", "fedper", "fedprox", "fedrep", "fedrod", "lg-fedavg"]
NEED_A_HEAD = ["fedbabu", "fedper", "fedrep", "fedrod", "lg-fedavg"]


def method(name, **settings):
    return Config.parse({"method": name, **settings}).method


@pytest.mark.parametrize("model", ["convnet", "fedavg-cnn", "mlp", "resnet10", "resnet9", "small-cnn", "vgg16"])
@pytest.mark.parametrize("name", HERE)
def test_every_method_builds_and_exports_every_model(name, model):
    with torch.device("meta"):  # no memory, no numbers: only names and shapes
        plain = models.build(model, (3, 32, 32), 10)
        shapes = {key: array.shape for key, array in plain.state_dict().items()}
        built = method(name).build(plain)
        logits = method(name).personalised(built.eval())(torch.empty(2, 3, 32, 32))
    assert logits.shape == (2, 10)
    exported = method(name).export(built)
    assert {key: exported[key].shape for key in shapes} == shapes


@pytest.mark.parametrize(
    ("name", "settings", "personal"),
    [
        ("fedper", {}, {"head"}),
        ("fedper", {"head-layers": 2}, {"head", "base.fc2"}),
        ("fedrep", {}, {"head"}),
        ("fedbabu", {"head-layers": 3}, {"head", "base.fc2", "base.fc1"}),
        ("lg-fedavg", {}, {"base.conv1", "base.conv2", "base.fc1", "base.fc2"}),
        ("fedrod", {}, {"personal_head"}),
    ],
)
def test_what_stays_on_the_client(name, settings, personal):
    chosen = method(name, **settings)
    sharing = chosen.sharing(chosen.build(models.build("convnet", (3, 32, 32), 10)))
    assert {key.rsplit(".", 1)[0] for key in sharing.personal} == personal
    assert sharing.shared


def test_fedbn_keeps_parameters_and_statistics_of_batchnorm():
    sharing = method("fedbn").sharing(models.build("resnet8", (3, 32, 32), 10))
    assert {key.rsplit(".", 1)[1] for key in sharing.personal} == {"weight", "bias", "running_mean", "running_var"}
    assert all("bn" in key or "downsample.1" in key for key in sharing.personal)
    assert not any("bn" in key or "downsample.1" in key for key in sharing.shared)


def test_fedbn_says_where_it_has_nothing_to_do(tmp_path):
    run = simulate(tmp_path, 2, method="fedbn", num_server_rounds=1, **FEW_SAMPLES)
    assert run.task()["remarks"] == [
        "this model has no trainable BatchNorm: nothing is personal, and fedbn equals fedavg"
    ]
    assert method("fedbn").remarks(models.build("resnet8", (1, 8, 8), 10), clients=4, rounds=5) == []


@pytest.mark.parametrize("name", NEED_A_HEAD)
def test_a_model_without_a_head_is_refused_by_server_and_clients(tmp_path, monkeypatch, name):
    def headless(input_shape, num_classes):
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
        model.unkept, model.in_common = (), ()  # as every model of fedpfl
        model.contiguous, model.ends_in_log_softmax = False, False
        return model

    add_model(monkeypatch, "headless", headless)
    with pytest.raises(ConfigError, match="model = 'headless': has no head"):
        assemble(Config.parse(federation(tmp_path, method=name, model="headless")), (1, 8, 8), 10)
    with pytest.raises(FedpflError, match="nodes 100, 101: model = 'headless': has no head"):
        simulate(tmp_path, 2, LocalGrid, method=name, model="headless")


@pytest.mark.parametrize("name", ["fedbabu", "fedper", "fedrep", "lg-fedavg"])
def test_a_head_that_the_model_does_not_have_is_refused(tmp_path, name):
    values = federation(tmp_path, method=name, head_layers=3)
    with pytest.raises(ConfigError, match=r"^head-layers = 3: the model ends with 2 linear layers"):
        assemble(Config.parse(values), (1, 8, 8), 10)


@pytest.mark.parametrize("phase_of", ["fedrep", "fedbabu"])
def test_statistics_of_a_frozen_base_stand_still(phase_of):
    chosen, local = method(phase_of), SimpleNamespace(model=models.build("resnet8", (1, 8, 8), 10))
    phase = (chosen.schedule if phase_of == "fedrep" else chosen.adaptation)(local)[0]
    assert [name for name, _ in local.model.named_parameters() if phase.train(name)] == ["head.weight", "head.bias"]
    assert not phase.move_statistics
