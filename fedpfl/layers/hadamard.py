"""Layers whose weight is a Hadamard product of low-rank factors, W = W1 ⊙ (W2 + 1) (pFedPara, Sections 2.2, 2.3).

W1 = X1·Y1ᵀ is shared and W2 = X2·Y2ᵀ personal; a convolution's factors are T ×₁ X ×₂ Y with a core T of R×R×H×W
(Proposition 3). The product of two matrices of rank R has rank up to R², so R is near the square root of the full rank.
"""

from __future__ import annotations

import math
from typing import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PERSONAL = ("x2", "y2", "t2")


class _Hadamard(nn.Module):
    """What both layers share: two pairs of factors and the weight that they make."""

    only_shared: bool = False  # True: W1 alone, the global model

    def _make_factors(self, outputs: int, inputs: int, rank: int, kernel: tuple[int, ...]) -> None:
        # He et al.: weights of variance 2 / fan-in. An entry of W1 is a sum of R (or, through a core, R²) products of
        # independent factors; equal deviations of all factors that give W1 that variance also give it to W2.
        factors, terms = (3, rank * rank) if kernel else (2, rank)
        deviation = (2 / (inputs * math.prod(kernel)) / terms) ** (0.5 / factors)
        for pair in ("1", "2"):
            self._factor("x" + pair, (outputs, rank), deviation)
            self._factor("y" + pair, (inputs, rank), deviation)
            if kernel:
                self._factor("t" + pair, (rank, rank, *kernel), deviation)

    def _factor(self, name: str, shape: tuple[int, ...], deviation: float) -> None:
        self.register_parameter(name, nn.Parameter(torch.randn(shape) * deviation))

    def product(self, pair: str) -> Tensor:
        """Return W1 (``pair`` = "1") or W2 ("2"), of the weight's shape."""
        x, y = getattr(self, "x" + pair), getattr(self, "y" + pair)
        if not hasattr(self, "t1"):
            return torch.mm(x, y.t())
        # One axis at a time: all at once would build O × R × I × R values on the way.
        half = torch.einsum("or,rshw->oshw", x, getattr(self, "t" + pair))
        return torch.einsum("is,oshw->oihw", y, half)

    def weight(self) -> Tensor:
        """Return W1 ⊙ (W2 + 1), or W1 alone while ``only_shared``."""
        shared = self.product("1")
        return shared if self.only_shared else shared * (self.product("2") + 1)


class HadamardLinear(_Hadamard):
    """A linear layer with W = (X1·Y1ᵀ) ⊙ (X2·Y2ᵀ + 1).

    Parameters
    ----------
    plain : nn.Linear
        Gives the sizes; its bias becomes this layer's own.
    gamma : float
        γ in [0, 1]; see :func:`rank`.
    """

    def __init__(self, plain: nn.Linear, gamma: float) -> None:
        super().__init__()
        self.bias = plain.bias
        outputs, inputs = plain.weight.shape
        self._make_factors(outputs, inputs, rank(outputs, inputs, 0, gamma), ())

    def forward(self, x: Tensor) -> Tensor:
        """Map features (…, inputs) to (…, outputs)."""
        return F.linear(x, self.weight(), self.bias)


class HadamardConv2d(_Hadamard):
    """A convolution with W = W1 ⊙ (W2 + 1), each factor T ×₁ X ×₂ Y.

    Parameters
    ----------
    plain : nn.Conv2d
        Gives sizes, stride and padding; its bias becomes this layer's own.
    gamma : float
        γ in [0, 1]; see :func:`rank`.
    """

    def __init__(self, plain: nn.Conv2d, gamma: float) -> None:
        super().__init__()
        self.bias = plain.bias
        self.stride, self.padding, self.dilation, self.groups = (
            plain.stride, plain.padding, plain.dilation, plain.groups,
        )  # fmt: skip
        outputs, inputs, height, width = plain.weight.shape
        self._make_factors(outputs, inputs, rank(outputs, inputs, height * width, gamma), (height, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, channels, height, width) to feature maps."""
        weight = self.weight().contiguous(memory_format=torch.channels_last)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def rank(outputs: int, inputs: int, pixels: int, gamma: float) -> int:
    """Return R = (1 − γ)·R_min + γ·R_max, rounded to the nearest integer.

    Parameters
    ----------
    outputs, inputs : int
        O and I of the weight.
    pixels : int
        H·W of a kernel; 0 for a linear layer.
    gamma : float
        γ in [0, 1].

    Returns
    -------
    int
        R_min = ⌈√min(O, I)⌉ is the smallest with which W can have full rank, R_max the largest with which the factors
        hold no more values than W. A layer so small that R_max < R_min gets R_min.
    """
    smallest = math.isqrt(min(outputs, inputs) - 1) + 1
    largest = smallest
    while _values(largest + 1, outputs, inputs, pixels) <= outputs * inputs * max(1, pixels):
        largest += 1
    return round((1 - gamma) * smallest + gamma * largest)


def _values(size: int, outputs: int, inputs: int, pixels: int) -> int:
    return 2 * size * (outputs + inputs + size * pixels)


def factorise(module: nn.Module, gamma: float) -> nn.Module:
    """Replace every convolution and linear layer of a model, in place; biases and all other layers stay."""
    if isinstance(module, nn.Conv2d):
        return HadamardConv2d(module, gamma)
    if isinstance(module, nn.Linear):
        return HadamardLinear(module, gamma)
    for name, child in module.named_children():
        setattr(module, name, factorise(child, gamma))
    return module


def in_second_pair(name: str) -> bool:
    """Say whether a name of a state dict belongs to W2."""
    return name.rpartition(".")[2] in PERSONAL


def shared_only(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the forward pass with W1 for every weight: the global model."""

    def forward(x: Tensor) -> Tensor:
        layers = [layer for _, layer in _layers(model)]
        try:
            for layer in layers:
                layer.only_shared = True
            out: Tensor = model(x)
            return out
        finally:
            for layer in layers:
                layer.only_shared = False

    return forward


@torch.no_grad()
def dense(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of the plain model with the same weights."""
    layers = dict(_layers(model))
    factors = {f"{name}.{part}" for name, layer in layers.items() for part, _ in layer.named_parameters(recurse=False)}
    state = {name: array for name, array in model.state_dict().items() if name not in factors or name.endswith(".bias")}
    return {**state, **{f"{name}.weight": layer.weight() for name, layer in layers.items()}}


def _layers(model: nn.Module) -> Iterator[tuple[str, _Hadamard]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, _Hadamard))
