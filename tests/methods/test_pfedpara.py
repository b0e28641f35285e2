"""pFedPara: ranks, factors, what travels, the exported product."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpfl import models
from fedpfl.methods.pfedpara import HadamardConv2d, HadamardLinear, rank
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config


def values(outputs, inputs, pixels, size):
    return 2 * size * (outputs + inputs + size * pixels)


@pytest.mark.parametrize(("outputs", "inputs", "pixels"), [(256, 256, 9), (512, 1600, 0), (64, 3, 25), (10, 512, 0)])
def test_the_rank_lies_between_full_rank_capacity_and_the_size_of_the_weight(outputs, inputs, pixels):
    low, high = rank(outputs, inputs, pixels, 0.0), rank(outputs, inputs, pixels, 1.0)
    assert low**2 >= min(outputs, inputs) > (low - 1) ** 2
    full = outputs * inputs * max(1, pixels)
    assert values(outputs, inputs, pixels, high + 1) > full
    assert high == low or values(outputs, inputs, pixels, high) <= full
    assert rank(outputs, inputs, pixels, 0.5) == round((low + high) / 2)


def test_a_linear_weight_is_the_hadamard_product_and_has_full_rank():
    torch.manual_seed(0)
    layer = HadamardLinear(nn.Linear(16, 16), 0.0)
    expected = (layer.x1 @ layer.y1.T) * (layer.x2 @ layer.y2.T + 1)
    torch.testing.assert_close(layer.dense_weight(), expected)
    assert layer.x1.shape == (16, 4)
    assert torch.linalg.matrix_rank(expected) == 16
    x = torch.randn(3, 16)
    torch.testing.assert_close(layer(x), F.linear(x, expected, layer.bias))


def test_a_convolution_s_factor_is_a_core_times_two_matrices():
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 6, 3, stride=2, padding=1)
    layer = HadamardConv2d(plain, 0.5)
    w1 = torch.einsum("or,is,rshw->oihw", layer.x1, layer.y1, layer.t1)
    w2 = torch.einsum("or,is,rshw->oihw", layer.x2, layer.y2, layer.t2)
    torch.testing.assert_close(layer.dense_weight(), w1 * (w2 + 1))
    x = torch.randn(2, 4, 8, 8)
    torch.testing.assert_close(layer(x), F.conv2d(x, w1 * (w2 + 1), plain.bias, stride=2, padding=1))


def test_weights_start_with_the_variance_of_he():
    torch.manual_seed(0)
    conv, linear = HadamardConv2d(nn.Conv2d(64, 64, 3), 0.5), HadamardLinear(nn.Linear(512, 512), 0.5)
    assert float(conv.product("1").detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.15)
    assert float(linear.product("1").detach().std()) == pytest.approx((2 / 512) ** 0.5, rel=0.15)


def test_the_second_pair_stays_and_the_export_is_the_product():
    config = Config.parse({"method": "pfedpara", "model": "resnet8"})
    model, sharing = assemble(config, (3, 16, 16), 5)
    assert {name.rpartition(".")[2] for name in sharing.personal} == {"x2", "y2", "t2"}
    model.eval()
    plain = models.build("resnet8", (3, 16, 16), 5).eval()
    counts = {name: array for name, array in plain.state_dict().items() if name.endswith("num_batches_tracked")}
    plain.load_state_dict({**counts, **config.method.export(model)})
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(plain(x), model(x), rtol=1e-4, atol=1e-5)
    alone = config.method.global_model(model)(x)
    with torch.no_grad():
        for name, param in model.named_parameters():
            if name.endswith(("x2", "y2")):
                param.zero_()
    torch.testing.assert_close(alone, model(x))
