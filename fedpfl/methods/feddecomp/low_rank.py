"""Layers with a full-rank and a low-rank weight, theta = sigma + tau (FedDecomp, sections 3.3 and 3.4).

sigma is the layer's ordinary ``weight``, so the arrays that clients share carry the plain model's names and load into
it. tau = B A lives next to it, in ``tau_b`` and ``tau_a``.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.frozen import has_frozen
from ...layers.replace import conv_arguments, forward_without, layers_of, replace_layers, require_plain, weight_name

INITS = ("paper", "code")


class _LowRank(nn.Module):
    """Common to both layers: sigma taken over from a plain layer, and tau = s B A, where s is ``scale``."""

    weight: Tensor
    tau_a: Tensor
    tau_b: Tensor
    init: str
    scale: float
    first_step: float
    use_tau: bool = True  # False: sigma alone, the global model
    _frozen: Tensor | None = None  # tau, while `frozen_tau` holds it

    def _make_factors(self, rows: int, inner: int, columns: int) -> None:
        """Draw A, with B = 0: a first step moves tau ``first_step`` times as far as it moves sigma.

        With G the gradient by the weight, a step of size eta makes B = -eta s G A' and tau = -eta s^2 G A' A, and A' A
        is ``inner`` times A's variance times the identity in the mean. The paper only states "Gaussian": with "paper"
        A has the deviation of PyTorch's default for a layer of its shape, so the first step is s^2 * R / 3 * min(I, O)
        / O of sigma's, whatever the layer's size. A smaller deviation would shorten the first step alone: A and B make
        each other grow, and tau would soon run away as with a large one. The factor s slows this growth, too.
        """
        self.tau_b = nn.Parameter(self.weight.new_zeros(rows, inner))
        self.tau_a = nn.Parameter(self.weight.new_empty(inner, columns))
        deviation = (3 * columns) ** -0.5
        if self.init == "paper":
            nn.init.normal_(self.tau_a, std=deviation)
        else:
            nn.init.kaiming_uniform_(self.tau_a, a=math.sqrt(5))
        self.first_step = inner * (self.scale * deviation) ** 2

    def tau(self) -> Tensor:
        """Return the personal part, of the weight's shape."""
        raise NotImplementedError  # each layer has its own; an abstract class could not be given to `layers_of`

    def merged_weight(self) -> Tensor:
        """Return sigma + tau, of the weight's shape and in its memory format."""
        merged = self.weight + (self.tau() if self._frozen is None else self._frozen)
        # The strides of a 1 x 1 kernel are ambiguous, and another choice of them makes the convolution round otherwise:
        # a model without low-rank steps must be the plain model to the bit.
        same = merged.stride() == self.weight.stride()
        return merged if same else merged.as_strided(self.weight.shape, self.weight.stride())

    def _forward_weight(self) -> Tensor:
        return self.merged_weight() if self.use_tau else self.weight


class LowRankLinear(_LowRank, nn.Linear):
    """A linear layer with weight sigma + tau, rank(tau) <= max(1, round(ratio * min(I, O))).

    It takes over the plain layer's ``weight`` (now sigma) and ``bias``. With the init "paper" (equation 3) ``tau_b`` is
    (I, r), ``tau_a`` (r, O) and tau = s (B A)^T, where s is ``scale``; with "code" they are (O, r) and (r, I), and s is
    1 / r, as in LoRA.
    """

    def __init__(self, plain: nn.Linear, ratio: float, init: str = "paper", scale: float = 1.0) -> None:
        _check_init(init)
        _check_ratio("ratio", ratio)
        # On the meta device the superclass draws nothing: weight and bias are taken over from `plain`.
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None, device="meta")
        self.weight, self.bias, self.init = plain.weight, plain.bias, init
        rank = _rank(ratio, self.in_features, self.out_features)
        self.scale = 1 / rank if init == "code" else scale
        if init == "code":
            self._make_factors(self.out_features, rank, self.in_features)
        else:
            self._make_factors(self.in_features, rank, self.out_features)
        self.train(plain.training)

    def tau(self) -> Tensor:
        """Return the personal part, of the weight's shape."""
        product = (self.tau_b @ self.tau_a) * self.scale
        return product if self.init == "code" else product.t()

    def forward(self, x: Tensor) -> Tensor:
        """Map features (..., I) to (..., O)."""
        training_tau = self.training and self._frozen is None and self.tau_a.requires_grad
        if training_tau and self.use_tau and self._factored_is_cheaper(x):
            through_sigma = F.linear(x, self.weight, self.bias)
            if self.init == "code":
                return through_sigma + F.linear(F.linear(x, self.tau_a), self.tau_b) * self.scale
            return through_sigma + (x @ self.tau_b) @ self.tau_a * self.scale
        return F.linear(x, self._forward_weight(), self.bias)

    def _factored_is_cheaper(self, x: Tensor) -> bool:
        # Products per pass: x B A against B A and its sum with sigma. Small batches never pay for the whole of tau.
        rank, sizes = min(self.tau_a.shape[0], self.tau_b.shape[1]), self.in_features + self.out_features
        rows = x.numel() // self.in_features
        return rows * rank * sizes < rank * self.in_features * self.out_features


class LowRankConv2d(_LowRank, nn.Conv2d):
    """A convolution with weight sigma + tau, where tau laid out as a matrix has low rank.

    It takes over the plain layer's ``weight`` (now sigma) and ``bias``. There are I input channels (of one group), O
    output channels, a kernel H x W, and K = min(H, W). With the init "paper" (equation 4) the rows of the matrix B A
    are (input channel, kernel row), its columns (output channel, kernel column), and the inner size is max(1,
    round(ratio * min(I, O))) * K: ``tau_b`` (I*H, inner), ``tau_a`` (inner, O*W). With "code" it is q * K, q = max(1,
    int(ratio * O)): ``tau_b`` (O*H, inner), ``tau_a`` (inner, I*W); tau is B A / q, its elements read in order as (O,
    I, H, W).
    """

    def __init__(self, plain: nn.Conv2d, ratio: float, init: str = "paper", scale: float = 1.0) -> None:
        _check_init(init)
        _check_ratio("ratio", ratio)
        super().__init__(**conv_arguments(plain))
        self.weight, self.bias, self.init = plain.weight, plain.bias, init
        outputs, inputs, height, width = plain.weight.shape
        rank = max(1, int(ratio * outputs)) if init == "code" else _rank(ratio, inputs, outputs)
        self.scale = 1 / rank if init == "code" else scale
        inner = rank * min(height, width)
        if init == "code":
            self._make_factors(outputs * height, inner, inputs * width)
        else:
            self._make_factors(inputs * height, inner, outputs * width)
        self.train(plain.training)

    def tau(self) -> Tensor:
        """Return the personal part, of the weight's shape."""
        product = (self.tau_b @ self.tau_a) * self.scale
        outputs, inputs, height, width = self.weight.shape
        if self.init == "code":
            return product.view(outputs, inputs, height, width)
        return product.view(inputs, height, outputs, width).permute(2, 0, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, channels, height, width) to feature maps."""
        return self._conv_forward(x, self._forward_weight(), self.bias)


def decompose(
    model: nn.Module,
    rank_conv: float,
    rank_linear: float,
    init: str = "paper",
    scale: float = 1.0,
    chosen: Callable[[str], bool] = lambda name: True,
) -> nn.Module:
    """Give every chosen convolution and linear layer of a model a low-rank part, in place; return the model.

    The parameters of the plain layers stay the same objects in the same memory format; torch's global random generator
    is used for the A matrices only, in the order of the layers. B is zero, so the model computes what it did before.

    ``ConfigError`` ends it, and nothing was changed, if a chosen layer is derived from ``nn.Linear`` or ``nn.Conv2d``,
    so that its forward pass might not use the sum: one that is low-rank already, the output projection of
    ``nn.MultiheadAttention``, or one that computes its weight.
    """
    _check_init(init)
    _check_ratio("rank_conv", rank_conv)
    _check_ratio("rank_linear", rank_linear)
    for name, module in model.named_modules():
        if chosen(name) and isinstance(module, (nn.Linear, nn.Conv2d)) and not has_frozen(module):
            require_plain(module, name)

    def decomposed(module: nn.Module, name: str) -> nn.Module | None:
        if isinstance(module, nn.Conv2d) and chosen(name):
            return LowRankConv2d(module, rank_conv, init, scale)
        if isinstance(module, nn.Linear) and chosen(name):
            return LowRankLinear(module, rank_linear, init, scale)
        return None

    return replace_layers(model, decomposed)


def taus(model: nn.Module) -> dict[str, Tensor]:
    """Return the tau of every decomposed layer by the name of its weight, of the weight's shape, detached."""
    with torch.no_grad():
        return {weight_name(name): layer.tau() for name, layer in layers_of(model, _LowRank)}


def first_steps(model: nn.Module) -> dict[str, float]:
    """Return the length of a first step of each decomposed layer's τ, as a share of the step of its σ."""
    return {name: layer.first_step for name, layer in layers_of(model, _LowRank)}


def is_low_rank(name: str) -> bool:
    """Tell whether a name of a state dict belongs to tau (an A or a B)."""
    return name.rpartition(".")[2] in ("tau_a", "tau_b")


def merge(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of the plain model whose weights are sigma + tau, detached."""
    state = {name: array for name, array in model.state_dict().items() if not is_low_rank(name)}
    with torch.no_grad():
        for name, layer in layers_of(model, _LowRank):
            state[weight_name(name)] = layer.merged_weight()
    return state


@contextmanager
def frozen_tau(model: nn.Module) -> Iterator[None]:
    """Compute each tau once within the block, not in every forward pass; no gradient reaches A or B."""
    layers = [layer for _, layer in layers_of(model, _LowRank)]
    try:
        with torch.no_grad():
            for layer in layers:
                layer._frozen = layer.tau()
        yield
    finally:
        for layer in layers:
            layer._frozen = None


def full_rank_only(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the forward pass through sigma alone: the global model."""
    return forward_without(model, _LowRank, "use_tau")


def _rank(ratio: float, inputs: int, outputs: int) -> int:
    return max(1, round(ratio * min(inputs, outputs)))


def _check_ratio(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name} = {value!r}: must be above 0 and at most 1")


def _check_init(value: str) -> None:
    if value not in INITS:
        raise ValueError(f"init = {value!r}: must be one of {', '.join(INITS)}")
