from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpfl import models
from fedpfl.models import BaseHeadModel
from fedpfl.models.registry import MODELS

IMAGE_MODELS = [
    "convnet", "fedavg-cnn", "resnet10", "resnet18", "resnet8", "resnet9", "resnet9-narrow", "small-cnn",
    "small-cnn-bn",
]  # fmt: skip


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return inputs * outputs * kernel * kernel


def block(inputs: int, outputs: int) -> int:
    """Parameters of a basic block: two convolutions, and a projection where the width changes, each with BN."""
    projection = conv(inputs, outputs, 1) + 2 * outputs if inputs != outputs else 0
    return conv(inputs, outputs, 3) + conv(outputs, outputs, 3) + 4 * outputs + projection


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def lstm(inputs: int, hidden: int) -> int:
    return 4 * (inputs + hidden) * hidden + 8 * hidden


STEM = conv(3, 64, 7) + 2 * 64
STAGES = [block(64, 64), block(64, 128), block(128, 256), block(256, 512)]
RESNET18 = STEM + sum(STAGES) + sum(block(64 << k, 64 << k) for k in range(4)) + 5130
RESNET9_CONVS = [(3, 64, 3), (64, 128, 5), (128, 128, 3), (128, 128, 3), (128, 256, 3), *[(256, 256, 3)] * 3]
RESNET9 = sum(conv(*c) + 2 * c[1] for c in RESNET9_CONVS) + 257 * 10
CONVNET = (conv(3, 64, 5) + 64) + (conv(64, 64, 5) + 64) + 1601 * 384 + 385 * 192 + 1930
ATTENTION = 2 * (4 * linear(64, 64) + 2 * 128 + linear(64, 256) + linear(256, 64)) + 128
CHAR_LSTM = 100 * 8 + lstm(8, 256) + lstm(256, 256) + linear(256, 512) + linear(512, 100)
# A model, what it is built for, its parameters by hand and as stated.
SIZES = [
    ("fedavg-cnn", ((1, 28, 28), 10), 26 * 32 + (conv(32, 64, 5) + 64) + 1025 * 512 + 5130, 582_026),
    ("mlp", ((1, 28, 28), 10), 785 * 200 + 201 * 200 + 2010, 199_210),
    ("mlp", ((561,), 6), 562 * 200 + 201 * 200 + 1206, 153_806),
    ("mlp-200", ((100,), 2), 101 * 200 + 201 * 2, 20_602),
    ("convnet", ((3, 32, 32), 10), CONVNET, 797_962),
    ("small-cnn", ((1, 8, 8), 10), 10 * 16 + (conv(16, 32, 3) + 32) + 129 * 64 + 650, 13_706),
    ("small-cnn-bn", ((1, 8, 8), 10), 10 * 16 + (conv(16, 32, 3) + 32) + 2 * (16 + 32) + 129 * 64 + 650, 13_802),
    ("resnet8", ((3, 32, 32), 10), STEM + sum(STAGES[:3]) + 257 * 10, 1_235_274),
    ("resnet10", ((3, 32, 32), 100), STEM + sum(STAGES) + 513 * 100, 4_957_092),
    ("resnet18", ((3, 32, 32), 10), RESNET18, 11_181_642),
    ("resnet9", ((3, 32, 32), 10), RESNET9, 2_571_338),
    ("cnn-1d", ((9, 128), 6), linear(9 * 9, 16) + linear(16 * 9, 32) + linear(32 * 26, 64) + linear(64, 6), 59_654),
    ("gru", ((9, 128), 6), 3 * 64 * (9 + 64 + 2) + linear(64, 64) + linear(64, 6), 18_950),
    ("char-lstm", ((80,), 100, 100), CHAR_LSTM, 982_404),
    ("transformer", ((64,), 4, 2**14), 2**14 * 64 + ATTENTION + linear(64, 4), 1_148_932),
    ("decoder", ((80,), 100, 100), 100 * 64 + ATTENTION + linear(64, 100), 112_996),
    # torchvision's table, without 900 of the 1000 classes, for images of 3 channels.
    ("vgg16", ((3, 32, 32), 100), 138_365_992 - 900 * 4097, 134_678_692),
]


def test_parameter_counts() -> None:
    for name, task, by_hand, stated in SIZES:
        with torch.device("meta"):  # no memory, no numbers: only shapes
            assert count(models.build(name, *task)) == by_hand == stated, name
    for name in {name for name, *_ in SIZES}:
        told = re.findall(r"([\d,]+) parameters", " ".join((MODELS[name].builder.__doc__ or "").split()))
        assert {int(number.replace(",", "")) for number in told} <= {size for of, *_, size in SIZES if of == name}


def test_resnet9_has_the_paper_size_with_its_running_statistics() -> None:
    model = models.build("resnet9", (3, 32, 32), 10)
    statistics = sum(b.numel() for n, b in model.named_buffers() if "running" in n)
    assert round((count(model) + statistics) / 1e6, 3) == 2.574
    assert model.base.conv8.weight.shape[:2].numel() == 65_536  # the length of the paper's v of Conv 8


@pytest.mark.parametrize(("channels", "side"), [(1, 28), (3, 32), (3, 64)])
@pytest.mark.parametrize("name", [*IMAGE_MODELS, "mlp"])
def test_output_shapes_and_split(name: str, channels: int, side: int) -> None:
    model = models.build(name, (channels, side, side), 7).eval()
    assert [n for n, _ in model.named_children()] == ["base", "head"]
    assert isinstance(model.head, nn.Linear)
    assert {n.split(".")[0] for n in model.state_dict()} == {"base", "head"}
    x = torch.randn(2, channels, side, side)
    features = model.base(x)
    assert features.shape == (2, model.head.in_features)
    assert torch.equal(model(x), model.head(features))
    assert model(x).shape == (2, 7)


@pytest.mark.parametrize("shape", [(561,), (9, 128), (3, 5, 7), (2, 3, 4, 5)])
def test_mlp_takes_any_shape(shape: tuple[int, ...]) -> None:
    assert models.build("mlp", shape, 6)(torch.zeros(4, *shape)).shape == (4, 6)


@pytest.mark.parametrize("name", [*IMAGE_MODELS, "mlp"])
def test_channels_last_gives_the_same_output(name: str) -> None:
    torch.manual_seed(1)
    model = models.build(name, (3, 32, 32), 10).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = model(x)
        got = model.to(memory_format=torch.channels_last)(x.contiguous(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*IMAGE_MODELS, "mlp"])
def test_the_seed_decides_the_initial_weights(name: str) -> None:
    def weights(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(seed)
        return models.build(name, (3, 32, 32), 10).state_dict()

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def relu_then_pool(model: BaseHeadModel, x: Tensor) -> Tensor:
    """Run a small CNN as its paper writes it: convolution, ReLU, pooling."""
    base = model.base
    for layer in (base.conv1, base.conv2):
        x = F.max_pool2d(F.relu(layer(x)), 2)
    x = x.flatten(1)
    for name in ("fc1", "fc2"):
        if hasattr(base, name):
            x = F.relu(getattr(base, name)(x))
    return model.head(x)


def resnet9_relu_then_pool(model: BaseHeadModel, x: Tensor) -> Tensor:
    base = model.base

    def unit(owner: nn.Module, number: int, x: Tensor) -> Tensor:
        return F.relu(getattr(owner, f"bn{number}")(getattr(owner, f"conv{number}")(x)))

    x = unit(base, 2, unit(base, 1, x))
    x = x + unit(base.res1, 4, unit(base.res1, 3, x))
    x = F.max_pool2d(unit(base, 5, x), 2)
    x = x + unit(base.res2, 7, unit(base.res2, 6, x))
    return model.head(unit(base, 8, x).amax((2, 3)))


@pytest.mark.parametrize("name", ["fedavg-cnn", "convnet", "small-cnn", "resnet9"])
def test_relu_behind_pooling_changes_neither_values_nor_gradients(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, (3, 32, 32), 10)
    reference = resnet9_relu_then_pool if name == "resnet9" else relu_then_pool
    x, y = torch.randn(4, 3, 32, 32), torch.arange(4)

    def run(forward: Callable[[Tensor], Tensor]) -> tuple[Tensor, list[Tensor]]:
        logits = forward(x)
        return logits, list(torch.autograd.grad(F.cross_entropy(logits, y), list(model.parameters())))

    got, got_gradients = run(model)
    expected, expected_gradients = run(lambda x: reference(model, x))
    assert torch.equal(got, expected)
    # The same sums; only amax (the reference's adaptive pooling) may order them differently.
    torch.testing.assert_close(got_gradients, expected_gradients, rtol=1e-5, atol=1e-7)
