from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedpfl import models
from fedpfl.core.errors import ConfigError
from fedpfl.methods.feddecomp.low_rank import LowRankConv2d, LowRankLinear, decompose, frozen_tau, is_low_rank, merge

INITS = ["paper", "code"]

CONVS = {
    "plain": {"kernel_size": 3},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1, "bias": False},
    "grouped": {"kernel_size": 3, "groups": 2},
    "pointwise": {"kernel_size": 1},
    "oblong": {"kernel_size": (3, 2), "dilation": 2},
    "circular": {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
    "same": {"kernel_size": 3, "padding": "same"},
}


def fill(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give B, which starts at zero, some values, so that tau is not zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("tau_b"):
            parameter.data.normal_(generator=generator)
    return model


def dense_tau(layer: nn.Module) -> Tensor:
    """Compute tau from the definitions, apart from the layer."""
    a, b, weight = layer.tau_a, layer.tau_b, layer.weight
    if isinstance(layer, LowRankLinear):
        rank = a.shape[0]
        return torch.einsum("ir,ro->oi", b, a) if layer.init == "paper" else torch.einsum("or,ri->oi", b, a) / rank
    outputs, inputs, height, width = weight.shape
    if layer.init == "paper":
        b = b.reshape(inputs, height, -1)
        return torch.einsum("ihr,row->oihw", b, a.reshape(-1, outputs, width))
    return torch.einsum("pr,rq->pq", b, a).reshape(weight.shape) / (a.shape[0] // min(height, width))


@pytest.mark.parametrize(
    ("inputs", "outputs", "ratio", "rank"), [(256, 10, 0.4, 4), (512, 100, 0.4, 40), (9, 2, 0.1, 1)]
)
def test_rank_of_a_linear_layer(inputs: int, outputs: int, ratio: float, rank: int) -> None:
    paper = LowRankLinear(nn.Linear(inputs, outputs), ratio, "paper")
    code = LowRankLinear(nn.Linear(inputs, outputs), ratio, "code")
    assert (paper.tau_b.shape, paper.tau_a.shape) == ((inputs, rank), (rank, outputs))
    assert (code.tau_b.shape, code.tau_a.shape) == ((outputs, rank), (rank, inputs))


@pytest.mark.parametrize(
    ("name", "conv", "linear", "full"),
    [("small-cnn", 0.6, 0.6, (2, 4)), ("resnet8", 0.6, 0.6, (5, 10)), ("resnet10", 0.8, 0.4, (7, 13))],
)
def test_tau_of_the_program_has_full_rank_in_the_layers_that_the_pages_count(name, conv, linear, full) -> None:
    def layers(init: str) -> tuple[int, int]:
        arrays = decompose(models.build(name, (3, 32, 32), 10), conv, linear, init).state_dict()
        factors = [(array, arrays[f"{key[:-1]}a"]) for key, array in arrays.items() if key.endswith("tau_b")]
        sizes = [(b.shape[0], b.shape[1], a.shape[1]) for b, a in factors]
        return sum(inner >= min(rows, columns) for rows, inner, columns in sizes), len(sizes)

    assert layers("code") == full
    assert layers("paper") == (0, full[1])


def test_gaussian_a_has_the_deviation_of_a_default_layer_of_its_shape() -> None:
    torch.manual_seed(0)
    a = LowRankLinear(nn.Linear(400, 300), 1.0).tau_a.detach()
    torch.testing.assert_close(a.std(), nn.Linear(300, 300).weight.std().detach(), rtol=0.02, atol=0)


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_a_first_step_moves_tau_by_the_share_of_sigma_that_is_told(kind: str, init: str, scale: float) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(64, 48, bias=False) if kind == "linear" else nn.Conv2d(16, 24, 3, bias=False)
    layer = (LowRankLinear if kind == "linear" else LowRankConv2d)(plain, 0.6, init, 1.0 if init == "code" else scale)
    before = layer.weight.detach().clone()
    gradient = torch.randn_like(before)
    layer.merged_weight().backward(gradient)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter -= 1e-3 * parameter.grad
    # The mean of A' A is a multiple of the identity: along the gradient tau moves the told share of sigma's way.
    moved, step = layer.tau().detach(), layer.weight.detach() - before
    share = (moved * step).sum() / step.square().sum()
    assert float(share) == pytest.approx(layer.first_step, rel=0.15)


@pytest.mark.parametrize("kind", [*CONVS, "linear"])
def test_the_factor_multiplies_tau_in_training_and_tests(kind: str) -> None:
    plain = nn.Linear(5, 7) if kind == "linear" else nn.Conv2d(4, 6, **CONVS[kind])
    x = torch.randn(*((3, 5) if kind == "linear" else (3, 4, 9, 8)))
    layer = (LowRankLinear if kind == "linear" else LowRankConv2d)(copy.deepcopy(plain), 0.5, "paper", 0.25)
    fill(layer)
    plain.weight.data.add_(0.25 * dense_tau(layer))
    for training in (True, False):
        torch.testing.assert_close(layer.train(training)(x), plain(x))
    torch.testing.assert_close(layer.tau(), 0.25 * dense_tau(layer))


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("kind", [*CONVS, "linear"])
def test_gradients_follow_the_chain_rule(kind: str, init: str) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(5, 7) if kind == "linear" else nn.Conv2d(4, 6, **CONVS[kind])
    layer = (LowRankLinear if kind == "linear" else LowRankConv2d)(copy.deepcopy(plain).double(), 0.5, init)
    fill(layer)
    x = torch.randn(*((3, 5) if kind == "linear" else (3, 4, 9, 8)), dtype=torch.double)
    layer(x).square().sum().backward()

    plain.double().weight.data.copy_(layer.weight + dense_tau(layer))
    plain.weight.grad = None
    plain(x).square().sum().backward()
    gradient = plain.weight.grad
    expected_a, expected_b = torch.autograd.grad(dense_tau(layer), [layer.tau_a, layer.tau_b], gradient)
    torch.testing.assert_close(layer.weight.grad, gradient)
    torch.testing.assert_close(layer.tau_a.grad, expected_a)
    torch.testing.assert_close(layer.tau_b.grad, expected_b)


@pytest.mark.parametrize("name", ["fedavg-cnn", "resnet8", "resnet9", "mlp"])
@pytest.mark.parametrize("init", INITS)
def test_decompose_changes_no_output_and_keeps_every_array(name: str, init: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, (3, 32, 32), 10).eval().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    before, arrays = dict(model.state_dict(keep_vars=True)), [m for m in model.modules() if hasattr(m, "weight")]
    with torch.no_grad():
        expected = model(x)
        assert decompose(model, 0.6, 0.4, init) is model
        assert torch.equal(model(x), expected)
    after = model.state_dict(keep_vars=True)
    assert {n for n in after if not is_low_rank(n)} == set(before)
    assert all(after[n] is array for n, array in before.items())
    decomposed = [m for m in model.modules() if isinstance(m, (LowRankConv2d, LowRankLinear))]
    assert len(decomposed) == sum(isinstance(m, (nn.Conv2d, nn.Linear)) for m in arrays)
    assert len([n for n in after if is_low_rank(n)]) == 2 * len(decomposed)
    assert not any(m.training for m in model.modules())


@pytest.mark.parametrize("init", INITS)
def test_merge_is_the_plain_model(init: str) -> None:
    torch.manual_seed(0)
    model = fill(decompose(models.build("resnet8", (1, 28, 28), 10), 0.3, 0.4, init)).eval()
    plain = models.build("resnet8", (1, 28, 28), 10).eval()
    merged = merge(model)
    assert list(merged) == list(plain.state_dict())
    assert not any(array.requires_grad for array in merged.values())
    plain.load_state_dict(merged)
    x = torch.randn(3, 1, 28, 28)
    assert torch.equal(model(x), plain(x))


def test_sigma_alone_is_the_global_model() -> None:
    torch.manual_seed(0)
    plain = models.build("small-cnn", (1, 8, 8), 10)
    model = fill(decompose(copy.deepcopy(plain), 0.5, 0.5))
    x = torch.randn(3, 1, 8, 8)
    assert not torch.equal(model(x), plain(x))
    for layer in model.modules():
        if isinstance(layer, (LowRankConv2d, LowRankLinear)):
            layer.use_tau = False
    assert torch.equal(model(x), plain(x))


def test_frozen_tau_gives_the_same_values_and_trains_sigma_alone() -> None:
    torch.manual_seed(0)
    # Evaluation mode: training goes through the factors of a small batch, which rounds differently.
    model = fill(decompose(models.build("small-cnn", (1, 8, 8), 10), 0.5, 0.5)).eval()
    x, y = torch.randn(3, 1, 8, 8), torch.arange(3)
    sigma = [p for n, p in model.named_parameters() if not is_low_rank(n)]
    expected = model(x)
    expected_gradients = torch.autograd.grad(F.cross_entropy(expected, y), sigma)
    with frozen_tau(model):
        got = model(x)
        F.cross_entropy(got, y).backward()
    assert torch.equal(got, expected)
    torch.testing.assert_close([p.grad for p in sigma], list(expected_gradients), rtol=0, atol=0)
    assert all(p.grad is None for n, p in model.named_parameters() if is_low_rank(n))


def test_layers_that_would_ignore_tau_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.MultiheadAttention(4, 2))
    with pytest.raises(ConfigError, match=r"the layer 1\.out_proj': is a NonDynamicallyQuantizableLinear, not a plain"):
        decompose(model, 0.5, 0.5)
    assert type(model[0]) is nn.Linear
    attention_apart = decompose(model, 0.5, 0.5, chosen=lambda name: name == "0")
    assert {name for name, _ in attention_apart.named_parameters() if "tau" in name} == {"0.tau_a", "0.tau_b"}
    twice = decompose(nn.Sequential(nn.Linear(4, 4)), 0.5, 0.5)
    with pytest.raises(ConfigError, match="the layer 0': is a LowRankLinear"):
        decompose(twice, 0.5, 0.5)


sizes = st.integers(1, 9)
ratios = st.floats(0.01, 1.0)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, ratios, st.sampled_from(INITS))
def test_linear_of_any_size(inputs: int, outputs: int, ratio: float, init: str) -> None:
    layer = fill(LowRankLinear(nn.Linear(inputs, outputs).double(), ratio, init))
    rank = max(1, round(ratio * min(inputs, outputs)))
    assert torch.linalg.matrix_rank(layer.tau().detach()) <= rank
    torch.testing.assert_close(layer.tau(), dense_tau(layer))
    x = torch.randn(2, inputs, dtype=torch.double)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight + dense_tau(layer), layer.bias))


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2]), ratios, st.sampled_from(INITS))
def test_convolution_of_any_size(
    inputs: int, outputs: int, height: int, width: int, groups: int, ratio: float, init: str
) -> None:
    plain = nn.Conv2d(inputs * groups, outputs * groups, (height, width), groups=groups).double()
    layer = fill(LowRankConv2d(plain, ratio, init))
    tau = layer.tau().detach()
    if init == "paper":
        rank = max(1, round(ratio * min(inputs, outputs * groups)))
        matrix = tau.permute(1, 2, 0, 3).reshape(inputs * height, outputs * groups * width)
    else:
        rank = max(1, int(ratio * outputs * groups))
        matrix = tau.reshape(outputs * groups * height, inputs * width)
    assert torch.linalg.matrix_rank(matrix) <= rank * min(height, width)
    torch.testing.assert_close(tau, dense_tau(layer))
    x = torch.randn(2, inputs * groups, 4, 4, dtype=torch.double)
    expected = F.conv2d(x, layer.weight + dense_tau(layer), layer.bias, groups=groups)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize(("rows", "factored"), [(3, True), (400, False)])
def test_small_batches_go_through_the_factors(init: str, rows: int, factored: bool) -> None:
    torch.manual_seed(0)
    layer = LowRankLinear(nn.Linear(40, 30), 0.5, init)
    layer.tau_b.data.normal_()
    x = torch.randn(rows, 40)
    assert layer._factored_is_cheaper(x) == factored
    dense = nn.functional.linear(x, layer.weight + layer.tau(), layer.bias)
    torch.testing.assert_close(layer(x), dense, rtol=1e-5, atol=1e-5)
    # The same sums in another order: gradients agree to rounding.
    for ours, theirs in zip(
        torch.autograd.grad(layer(x).square().sum(), [layer.tau_a, layer.tau_b]),
        torch.autograd.grad(dense.square().sum(), [layer.tau_a, layer.tau_b]),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
