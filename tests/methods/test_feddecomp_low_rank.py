from __future__ import annotations

import copy
import pickle

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


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("options", CONVS.values(), ids=CONVS.keys())
def test_convolution_starts_as_the_plain_one(options: dict, init: str) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 6, **options)
    layer = LowRankConv2d(plain, 0.5, init)
    x = torch.randn(2, 4, 9, 8)
    assert torch.count_nonzero(layer.tau()) == 0
    assert torch.count_nonzero(layer.tau_a) == layer.tau_a.numel()
    assert torch.equal(layer(x), plain(x))
    assert layer.tau().shape == plain.weight.shape


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("bias", [True, False])
def test_linear_starts_as_the_plain_one(bias: bool, init: str) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(5, 3, bias=bias)
    layer = LowRankLinear(plain, 0.5, init)
    x = torch.randn(2, 5)
    assert torch.count_nonzero(layer.tau()) == 0
    assert torch.equal(layer(x), plain(x))


@pytest.mark.parametrize(("init", "inner"), [("paper", 114), ("code", 228)])
def test_inner_size_of_a_convolution(init: str, inner: int) -> None:
    layer = LowRankConv2d(nn.Conv2d(64, 128, 3), 0.6, init)
    rows, columns = (64 * 3, 128 * 3) if init == "paper" else (128 * 3, 64 * 3)
    assert layer.tau_b.shape == (rows, inner)
    assert layer.tau_a.shape == (inner, columns)


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


def test_a_convolution_of_tiny_ratio_keeps_rank_one() -> None:
    for init in INITS:
        assert LowRankConv2d(nn.Conv2d(2, 3, 3), 0.01, init).tau_a.shape[0] == 3


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
def test_merged_weights_keep_channels_last(init: str) -> None:
    model = decompose(models.build("resnet9", (3, 32, 32), 10).to(memory_format=torch.channels_last), 0.6, 0.4, init)
    fill(model)
    for layer in model.modules():
        if isinstance(layer, LowRankConv2d):
            assert layer.merged_weight().is_contiguous(memory_format=torch.channels_last)


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


def test_sigma_loads_into_the_plain_model_and_back() -> None:
    model = decompose(models.build("small-cnn", (1, 8, 8), 10), 0.5, 0.5)
    sigma = {n: a for n, a in model.state_dict().items() if not is_low_rank(n)}
    models.build("small-cnn", (1, 8, 8), 10).load_state_dict(sigma)


def test_only_the_a_matrices_use_the_random_generator() -> None:
    model = models.build("small-cnn", (1, 8, 8), 10)
    torch.manual_seed(5)
    decompose(model, 0.5, 0.5)
    state = torch.get_rng_state()
    torch.manual_seed(5)
    for layer in (model.base.conv1, model.base.conv2, model.base.fc1, model.head):
        columns = layer.tau_a.shape[1]
        assert torch.equal(layer.tau_a, torch.empty_like(layer.tau_a).normal_(std=(3 * columns) ** -0.5))
    assert torch.equal(state, torch.get_rng_state())


def test_a_single_layer_is_replaced() -> None:
    plain = nn.Linear(3, 4)
    layer = decompose(plain, 0.5, 0.5)
    assert isinstance(layer, LowRankLinear)
    assert layer.weight is plain.weight
    assert list(merge(layer)) == ["weight", "bias"]


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


def test_frozen_tau_ends_with_its_block() -> None:
    model = fill(decompose(nn.Linear(4, 4), 0.5, 0.5))
    before = model(torch.ones(1, 4))
    with pytest.raises(KeyError), frozen_tau(model):
        raise KeyError
    fill(model, seed=1)
    assert not torch.equal(model(torch.ones(1, 4)), before)


def test_copies_and_pickles() -> None:
    model = fill(decompose(models.build("small-cnn", (1, 8, 8), 10), 0.5, 0.5))
    x = torch.randn(2, 1, 8, 8)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base.conv1.tau_a", True),
        ("tau_b", True),
        ("base.conv1.weight", False),
        ("base.tau_a.weight", False),
        ("base.my_tau_a", False),
    ],
)
def test_is_low_rank(name: str, expected: bool) -> None:
    assert is_low_rank(name) is expected


@pytest.mark.parametrize("ratio", [0, -0.1, 1.0001, float("nan")])
def test_ratio_outside_its_range(ratio: float) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Conv2d(2, 2, 1))
    with pytest.raises(ValueError, match=rf"^rank_conv = {ratio!r}: must be above 0 and at most 1$"):
        decompose(model, ratio, 0.5)
    with pytest.raises(ValueError, match=rf"^rank_linear = {ratio!r}: must be above 0 and at most 1$"):
        decompose(model, 0.5, ratio)
    assert type(model[0]) is nn.Linear


def test_unknown_init() -> None:
    with pytest.raises(ValueError, match=r"^init = 'zeros': must be one of paper, code$"):
        decompose(nn.Linear(2, 2), 0.5, 0.5, "zeros")


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
