"""FedReG: both steps against a reference written out, the ablations, what travels, difficult clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import LocalGrid, federation, simulate
from torch.nn import functional as F

from fedpfl import models
from fedpfl.data.federation import Samples
from fedpfl.data.rebalance import rebalance
from fedpfl.methods.base import LocalRound
from fedpfl.methods.fedreg import FedReG, FedReGSettings
from fedpfl.payload import Payload
from fedpfl.rng import generator
from fedpfl.server import run_federation
from fedpfl.training.loop import run_phase
from fedpfl.training.settings import TrainingSettings

SHAPE, CLASSES, THRESHOLD = (1, 8, 8), 3, 12.0
# One batch an epoch: the order of the samples changes nothing but the last bits.
TRAINING = TrainingSettings(local_epochs=2, batch_size=100, learning_rate=0.1, momentum=0.9)


def method_and_model(**settings):
    method = FedReG(FedReGSettings(**settings), TRAINING)
    torch.manual_seed(0)
    return method, method.build(models.build("convnet-mlp" if False else "small-cnn", SHAPE, CLASSES))


def data():
    g = torch.Generator().manual_seed(1)
    y = torch.tensor([0] * 9 + [1] * 2 + [2] * 3)
    return Samples(torch.rand(len(y), *SHAPE, generator=g) * 2 - 1, y)


def local_round(model, number=1):
    samples = data()
    message = Payload({"rebalance-threshold": THRESHOLD, "personal-round": 0})
    return LocalRound(4, number, 7, CLASSES, model, {}, message, lambda: samples, lambda: samples.y.numpy())


def train(method, model, **kwargs):
    local = local_round(model, **kwargs)
    for place, phase in enumerate(method.schedule(local)):
        run_phase(model, phase, local.samples, TRAINING, generator(1, "batches", 4, 1, place))


def sgd(arrays, names, loss):
    """Take one epoch of one batch on each of ``names``, with fresh momentum carried in ``arrays``' own copies."""
    params = [arrays[name].requires_grad_() for name in names]
    optimizer = torch.optim.SGD(params, lr=TRAINING.learning_rate, momentum=TRAINING.momentum)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def reference(order):
    """Algorithm 1 on raw arrays, with torch's optimiser."""
    _, model = method_and_model()
    a = {name: array.detach().clone() for name, array in model.state_dict().items()}
    x, y = data()
    x_r, y_r = rebalance(data(), 4, "simple", generator(7, "rebalanced set", 4, 0))

    def features(x):
        for layer in ("conv1", "conv2"):
            x = F.relu(F.max_pool2d(F.conv2d(x, a[f"base.{layer}.weight"], a[f"base.{layer}.bias"], padding=1), 2))
        return F.relu(F.linear(x.flatten(1), a["base.fc1.weight"], a["base.fc1.bias"]))

    def head(name, z):
        return F.linear(z, a[f"{name}.weight"], a[f"{name}.bias"])

    def loss_1():
        z = features(x)
        return F.cross_entropy(head("head", z) + head("head_p", z), y)

    base = [name for name in a if name.startswith("base.")]
    head_g, head_p = (["head.weight", "head.bias"], ["head_p.weight", "head_p.bias"])
    for repetition in range(1 if order == "sequential" else TRAINING.local_epochs):
        for names, loss in (
            (base + head_p, loss_1),
            (base + head_g, lambda: F.cross_entropy(head("head", features(x_r)), y_r)),
        ):
            for array in a.values():
                array.requires_grad_(False)
            step = sgd(a, names, loss)
            for _ in range(TRAINING.local_epochs if order == "sequential" else 1):
                step()
        assert repetition < TRAINING.local_epochs
    return {name: array.detach() for name, array in a.items()}


@pytest.mark.parametrize("order", ["sequential", "interleaved"])
def test_both_steps_agree_with_algorithm_1_written_out(order):
    method, model = method_and_model(order=order)
    train(method, model)
    expected = reference(order)
    assert model.state_dict().keys() == expected.keys()
    for name, array in model.state_dict().items():
        torch.testing.assert_close(array, expected[name], rtol=1e-4, atol=1e-5, msg=name)
