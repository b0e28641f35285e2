"""pFedGate: blocks, the budget, straight-through gradients, and FedAvg where every gate is open."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from support import FEW_SAMPLES, simulate
from torch import nn

from fedpfl import models
from fedpfl.core.errors import NoPlainModel
from fedpfl.methods import pfedgate
from fedpfl.methods.pfedgate import Gate, PFedGate, SwitchableNorm, blocks_of


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


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_factors_and_their_gradients_are_those_of_the_authors_program(factor):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5, bias=False))
    gate = Gate((4,), blocks_of(model, 5), 0.4, factor)
    params = dict(model.named_parameters())
    x = torch.randn(8, 4)
    values = gate(x)
    weights = gate.weights(params, x)["0.weight"]
    kept = gate.kept(values.detach().numpy())
    kept = torch.from_numpy(kept)
    torch.testing.assert_close(weights, params["0.weight"] * (factor * values * kept).unsqueeze(1))
    assert (weights[~kept] == 0).all()
    ours = torch.autograd.grad(weights.sum(), gate.norm.bias, retain_graph=True)[0]
    # mask = 1 - g.detach() + g of kept blocks and 0 of the others, times g.
    values = gate(x)
    mask = (1 - values.detach() + values) * kept
    (factor * mask * values * params["0.weight"].sum(1)).sum().backward()
    torch.testing.assert_close(ours, gate.norm.bias.grad)
    assert (ours[~kept] == 0).all()
    assert (ours[kept] != 0).all()


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 7), (6,)])
def test_the_input_is_normalised_by_a_mixture_of_three_kinds_of_moments(shape):
    torch.manual_seed(0)
    norm, x = SwitchableNorm(shape), 2 + 3 * torch.randn(5, *shape)
    norm(x + 1)  # moves the running moments
    kinds = [tuple(range(1, x.dim())), (0, *range(2, x.dim()))] + [tuple(range(2, x.dim()))] * (x.dim() > 2)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    axes = (1, -1, *(1 for _ in shape[1:]))

    def expected(moments):
        mean = sum(s * m for s, (_, m) in zip(norm.mix_means.softmax(0), moments, strict=True))
        variance = sum(s * v for s, (v, _) in zip(norm.mix_variances.softmax(0), moments, strict=True))
        return (x - mean) / torch.sqrt(variance + norm.eps) * norm.weight.view(axes) + norm.bias.view(axes)

    moments = [torch.var_mean(x, kind, unbiased=False, keepdim=True) for kind in kinds]
    norm.eval()
    running = (norm.running_var.view(axes), norm.running_mean.view(axes))
    torch.testing.assert_close(norm(x), expected([moments[0], running, *moments[2:]]))
    norm.train()
    torch.testing.assert_close(norm(x), expected(moments))


def test_gate_and_model_have_rates_and_norms_of_their_own():
    from fedpfl.setup.config import Config

    method = Config.parse({"method": "pfedgate"}).method
    (phase,) = method.schedule(None)
    names = [name for name, _ in method.build(small()).named_parameters()]
    first = {name: next(i for i, group in enumerate(phase.groups) if group.selected(name)) for name in names}
    assert {name for name, i in first.items() if i == 0} == {name for name in names if name.startswith("gate.")}
    assert set(first.values()) == {0, 1}
    assert [(group.learning_rate, group.clip_norm) for group in phase.groups] == [(0.1, 10.0), (None, 10.0)]


def test_with_every_gate_open_it_is_fedavg_to_the_bit(tmp_path, monkeypatch):
    forward = Gate.forward
    monkeypatch.setattr(Gate, "forward", lambda self, x: 0 * forward(self, x) + 1)
    settings = {"num_server_rounds": 2, "local_epochs": 1, **FEW_SAMPLES}
    monkeypatch.setattr(pfedgate, "CLIP_NORM", 1e9)  # which no gradient reaches: clipping multiplies by 1
    ours = simulate(tmp_path / "a", 2, method="pfedgate", pfedgate_share=1.0, pfedgate_factor="gate", **settings)
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
