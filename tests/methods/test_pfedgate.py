"""pFedGate: blocks, the budget, straight-through gradients, and FedAvg where every gate is open."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import simulate
from torch import nn

from fedpfl import models
from fedpfl.core.errors import NoPlainModel
from fedpfl.layers.gate import Gate, blocks_of
from fedpfl.methods.pfedgate import PFedGate


def small():
    torch.manual_seed(0)
    return models.build("small-cnn", (1, 8, 8), 10)


def test_blocks_cover_every_parameter_once():
    model = small()
    blocks = blocks_of(model, 5)
    for name, param in model.named_parameters():
        sizes = [block.size for block in blocks if block.name == name]
        assert sum(sizes) == param.numel()
        assert len(sizes) <= 5
    assert {block.name for block in blocks if block.linear} == {
        "base.fc1.weight", "base.fc1.bias", "head.weight", "head.bias",
    }  # fmt: skip


@pytest.mark.parametrize("share", [0.3, 0.5, 1.0])
def test_the_kept_blocks_fit_the_budget_of_linear_and_other_layers(share):
    blocks = blocks_of(small(), 5)
    gate = Gate((1, 8, 8), blocks, share)
    values = np.random.default_rng(0).random(len(blocks))
    kept = gate.kept(values)
    sizes, linear, first = (np.array([block[i] for block in blocks]) for i in (1, 2, 3))
    assert kept[first].all()
    for group in (linear, ~linear):
        assert sizes[group & kept].sum() <= share * sizes[group].sum()
        # Nothing that was left out would still fit.
        room = share * sizes[group].sum() - sizes[group & kept].sum()
        assert (sizes[group & ~kept] > room).all()
    assert kept.all() == (share == 1.0)


def test_higher_gates_go_first():
    blocks = blocks_of(nn.Sequential(nn.Linear(10, 10, bias=False)), 5)
    gate = Gate((10,), blocks, 0.6)
    assert gate.kept(np.array([0.0, 0.1, 0.9, 0.2, 0.8])).tolist() == [True, False, True, False, True]


def test_the_choice_passes_gradients_straight_through():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5, bias=False))
    gate = Gate((4,), blocks_of(model, 5), 0.4)
    params = dict(model.named_parameters())
    x = torch.randn(8, 4)
    values = gate(x)
    weights = gate.weights(params, x)["0.weight"]
    kept = gate.kept(values.detach().numpy())
    torch.testing.assert_close(weights, params["0.weight"] * (values * torch.from_numpy(kept)).unsqueeze(1))
    assert (weights[~torch.from_numpy(kept)] == 0).all()
    gradient = torch.autograd.grad(weights.sum(), gate.norm.bias)[0]
    assert (gradient != 0).all()  # also of the blocks that were left out


def test_with_every_gate_open_it_is_fedavg_to_the_bit(tmp_path, monkeypatch):
    forward = Gate.forward
    monkeypatch.setattr(Gate, "forward", lambda self, x: 0 * forward(self, x) + 1)
    settings = {"num_server_rounds": 2, "local_epochs": 1}
    ours = simulate(tmp_path / "a", 2, method="pfedgate", pfedgate_share=1.0, **settings)
    fedavg = simulate(tmp_path / "b", 2, method="fedavg", **settings)
    a, b = (load_file(run.path / "global.safetensors") for run in (ours, fedavg))
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name]), name


def test_the_gate_stays_and_there_is_no_plain_model():
    from fedpfl.setup.config import Config

    method = Config.parse({"method": "pfedgate"}).method
    assert isinstance(method, PFedGate)
    model = method.build(small())
    stays = {name.split(".")[0] for name in model.state_dict() if not method.is_shared(name, model)}
    assert stays == {"gate"}
    with pytest.raises(NoPlainModel):
        method.export(model)
