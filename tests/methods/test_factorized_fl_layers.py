"""Factorised layers against the dense weight that they stand for."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedpfl import models
from fedpfl.core.errors import ConfigError
from fedpfl.methods.factorized_fl.layers import (
    FactorizedConv2d,
    FactorizedLinear,
    count_kept,
    factorize,
    is_mu,
    is_u,
    is_v,
    merge,
    penultimate_v,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def with_random_mu(layer, scale=1.0):
    with torch.no_grad():
        layer.mu.normal_(std=scale, generator=generator(5))
    return layer


def conv(**options):
    return FactorizedConv2d(nn.Conv2d(4, 6, 3, bias=False, **options), 0.1, True, generator())


def test_shapes_are_those_of_the_paper():
    linear = FactorizedLinear(nn.Linear(5, 3), 0.1, True, generator())
    assert [tuple(p.shape) for p in (linear.u, linear.v, linear.mu, linear.bias)] == [(5,), (3,), (3, 5), (3,)]
    assert conv().u.numel() == 3 * 3
    assert conv().v.numel() == 4 * 6
    assert conv().mu.numel() == 3 * 3 * 4 * 6
    assert conv().bias is None
    assert "weight" not in conv().state_dict()


def test_mu_starts_at_zero_and_the_factors_xavier_uniform():
    layer = FactorizedConv2d(nn.Conv2d(64, 64, 5), 0.0, True, generator())
    assert not layer.mu.any()
    for factor in (layer.u, layer.v):
        bound = (6 / (factor.numel() + 1)) ** 0.5
        assert 0.8 * bound < factor.abs().max() <= bound


@pytest.mark.parametrize(("plain", "entries"), [(nn.Linear(256, 10), 10), (nn.Conv2d(3, 16, 3), 16)])
def test_a_bias_starts_xavier_uniform_whatever_the_plain_one_was(plain, entries):
    before = plain.bias.clone()
    biases = torch.stack([factorize(copy.deepcopy(plain), 0.0, True, generator(i)).bias for i in range(20)])
    bound = (6 / (entries + 1)) ** 0.5  # of a classifier of 10 classes 0.74, where PyTorch has 1/16
    assert 0.9 * bound < biases.abs().max() <= bound
    assert torch.equal(biases[0], factorize(plain, 0.0, True, generator(0)).bias)
    assert torch.equal(plain.bias, before)


def test_the_convolution_is_the_paper_s_matrix_with_its_first_axis_made_spatial():
    layer = with_random_mu(conv())
    u, v = layer.u.reshape(9, 1), layer.v.reshape(1, 24)
    mu = layer.mu.reshape(24, 9).t()  # (F·F, I·O)
    dense = (u @ v + mu).t().reshape(6, 4, 3, 3)
    torch.testing.assert_close(layer.dense_weight(), dense)


def test_without_mu_every_kernel_is_a_multiple_of_the_one_base_filter():
    layer = FactorizedConv2d(nn.Conv2d(4, 6, 3), 0.0, False, generator())
    kernels = layer.dense_weight().reshape(24, 9)
    assert torch.linalg.matrix_rank(kernels) == 1
    torch.testing.assert_close(kernels, layer.v.reshape(24, 1) * layer.u.reshape(1, 9))
    assert layer.mu is None
    assert set(layer.state_dict()) == {"u", "v", "bias"}


def test_viewed_kernels_are_the_programs_matrix_read_in_order():
    for with_mu in (True, False):
        layer = FactorizedConv2d(nn.Conv2d(4, 6, 3, bias=False), 0.1, with_mu, generator(), viewed=True)
        if with_mu:
            with_random_mu(layer)
        matrix = torch.empty(9, 24)
        for place, coefficient in np.ndindex(9, 24):
            matrix[place, coefficient] = layer.u.reshape(-1)[place] * layer.v.reshape(-1)[coefficient]
        expected = matrix.view(6, 4, 3, 3) + (layer.mu if with_mu else 0)
        torch.testing.assert_close(layer.dense_weight(), expected)
    assert torch.linalg.matrix_rank(layer.dense_weight().reshape(24, 9).detach()) > 1  # no multiples of one filter


@pytest.mark.parametrize(
    ("plain", "shape"),
    [
        (nn.Linear(5, 3), (7, 5)),
        (nn.Linear(5, 3, bias=False), (2, 4, 5)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 8)),
        (nn.Conv2d(4, 6, (3, 1), groups=2, dilation=2), (2, 4, 9, 8)),
        (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect", bias=False), (2, 4, 9, 8)),
    ],
)
def test_forward_and_gradients_are_those_of_the_dense_weight(plain, shape):
    torch.manual_seed(0)
    layer = with_random_mu(factorize(copy.deepcopy(plain), 0.1, True, generator()))
    x = torch.randn(shape)
    with torch.no_grad():
        plain.weight.copy_(layer.dense_weight())
        if plain.bias is not None:
            plain.bias.copy_(layer.bias)
    ours, theirs = layer(x), plain(x)
    torch.testing.assert_close(ours, theirs)
    seed = torch.randn(ours.shape)
    ours.backward(seed)
    theirs.backward(seed)
    dense = plain.weight.grad
    u, v = layer.u.detach(), layer.v.detach()
    flat = dense.reshape(v.numel(), u.numel())
    torch.testing.assert_close(layer.mu.grad, dense)
    torch.testing.assert_close(layer.u.grad.reshape(-1), v.reshape(-1) @ flat)
    torch.testing.assert_close(layer.v.grad.reshape(-1), flat @ u.reshape(-1))


def test_small_entries_of_mu_count_only_in_training():
    layer = with_random_mu(conv(), 0.1)
    small = layer.mu.abs() < 0.1
    assert small.any() and not small.all()
    product = layer.v[..., None, None] * layer.u
    layer.train()
    assert torch.equal(layer.dense_weight(), torch.addcmul(layer.mu, layer.v[..., None, None], layer.u))
    layer.eval()
    torch.testing.assert_close(layer.dense_weight()[small], product[small])
    torch.testing.assert_close(layer.dense_weight()[~small], (product + layer.mu)[~small])


def test_an_entry_exactly_at_the_threshold_stays():
    layer = FactorizedLinear(nn.Linear(2, 1), 0.5, True, generator())
    with torch.no_grad():
        layer.mu.copy_(torch.tensor([[0.5, 0.4999]]))
    assert layer.kept_mu(layer.mu).tolist() == [[0.5, 0.0]]
    assert count_kept(layer) == (1, 2 + 1 + 1 + 1)  # u, v, bias and one entry of µ


def test_merging_gives_the_plain_model_that_predicts_alike():
    torch.manual_seed(0)
    plain = models.build("resnet8", (3, 32, 32), 10)
    model = factorize(copy.deepcopy(plain), 0.02, True, generator())
    for layer in model.modules():
        if isinstance(layer, (FactorizedConv2d, FactorizedLinear)):
            with_random_mu(layer, 0.02)
    model.train()
    state = merge(model)
    assert model.training
    assert state.keys() == plain.state_dict().keys()
    plain.load_state_dict(state)
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(plain.eval()(x), model.eval()(x))


def test_the_size_of_resnet9_is_the_paper_s():
    """Factorized-FL, table 3 and figure 8 (i), where the dense model's 2.574 M count BatchNorm's 2,944 statistics."""
    plain = models.build("resnet9", (3, 32, 32), 10)
    assert sum(p.numel() for p in plain.parameters()) + 2944 == 2_574_282
    model = factorize(plain, 5e-4, True, generator())
    sizes = dict.fromkeys(("u", "v", "mu", "rest"), 0)
    for name, p in model.base.named_parameters():
        kind = "u" if is_u(name) else "v" if is_v(name) else "mu" if is_mu(name) else "rest"
        sizes[kind] += p.numel()
    # Of the eight convolutions: 7 · 3² + 5², Σ I·O, Σ I·O·F², and γ and β.
    assert sizes == {"u": 88, "v": 270_528, "mu": 2_565_824, "rest": 2944}
    assert count_kept(model) == (0, 88 + 270_528 + 2944 + 256 + 10 + 10)  # µ is 0; the head's u, v and bias
    assert penultimate_v(model.state_dict()) == "base.conv8.v"
    assert model.state_dict()["base.conv8.v"].numel() == 65_536


def test_a_model_without_a_layer_to_compare_by_is_refused():
    with pytest.raises(ConfigError, match="must have a convolution or a linear layer before its classifier"):
        penultimate_v(["head.u", "head.v", "head.mu"])


def test_the_base_does_not_depend_on_the_size_of_the_head():
    a, b = (factorize(models.build("small-cnn", (1, 8, 8), n), 0.0, True, generator(3)).state_dict() for n in (3, 7))
    drawn = [name for name in a if is_u(name) or is_v(name) or name.endswith("bias")]
    assert "base.conv1.bias" in drawn
    for name in drawn:
        same = np.array_equal(a[name].numpy(), b[name].numpy())
        assert same == (name not in ("head.v", "head.bias")), name
