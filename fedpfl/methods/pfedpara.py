"""pFedPara: every weight is a Hadamard product of a shared and a personal low-rank factor.

Hyeon-Woo, Ye-Bin, Oh: FedPara: Low-Rank Hadamard Product for Communication-Efficient Federated Learning, ICLR 2022,
Sections 2.2 and 2.3.

A convolution's factors are T ×₁ X ×₂ Y with a core T of R×R×H×W (Proposition 3). The product of two matrices of rank R
has rank up to R².
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..layers.replace import conv_arguments, forward_without, layers_of, replace_layers, require_plain, weight_name
from ..training.phase import Forward
from .base import Method
from .settings import PFedParaSettings


class PFedPara(Method):
    """Share one low-rank factor of each weight; the other stays.

    each weight is P ⊙ (Q_i + 1), P = X·Yᵀ, Q_i = X_i·Y_iᵀ
    client i:
        train X, Y, from the server's, and X_i, Y_i on f_i
        send X, Y
    server: X, Y ← mean of what arrived
    predict: P ⊙ (Q_i + 1)
    """

    name = "pfedpara"
    paper = "Hyeon-Woo et al., FedPara: Low-Rank Hadamard Product for Communication-Efficient FL, ICLR 2022"
    shares = "the first factor W1 of every weight, biases, BatchNorm"
    refuses = {"trainable": "factorises whole weights"}
    Settings = PFedParaSettings

    def build(self, model: nn.Module) -> nn.Module:
        """Replace every weight by its factors."""
        return factorise(model, self.settings.gamma)

    def is_shared(self, name: str, model: nn.Module) -> bool:
        """Share X1 and Y1 (and T1 of convolutions); X2 and Y2 stay."""
        return name.rpartition(".")[2] not in PERSONAL

    def global_model(self, model: nn.Module) -> Forward | None:
        """Return W1 alone, as if the personal factor were zero."""
        return forward_without(model, _Hadamard, "use_personal")

    def export(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the products under the plain model's names."""
        return dense(model)


PERSONAL = ("x2", "y2", "t2")


class _Hadamard(nn.Module):
    """Common to both layers: two pairs of factors in place of the weight, and the weight that they make."""

    use_personal: bool = True  # False: W1 alone, the global model

    def _replace_weight(self, plain: nn.Linear | nn.Conv2d, gamma: float) -> None:
        del self.weight
        self.register_parameter("bias", plain.bias)  # type: ignore[arg-type]
        self.train(plain.training)
        outputs, inputs, *kernel = plain.weight.shape
        self._make_factors(outputs, inputs, rank(outputs, inputs, math.prod(kernel) if kernel else 0, gamma), kernel)

    def _make_factors(self, outputs: int, inputs: int, rank: int, kernel: list[int]) -> None:
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

    def dense_weight(self) -> Tensor:
        """Return W1 ⊙ (W2 + 1), or W1 alone without ``use_personal``."""
        shared = self.product("1")
        return shared * (self.product("2") + 1) if self.use_personal else shared


class HadamardLinear(_Hadamard, nn.Linear):
    """A linear layer with W = (X1·Y1ᵀ) ⊙ (X2·Y2ᵀ + 1); it takes over the plain layer's bias."""

    def __init__(self, plain: nn.Linear, gamma: float) -> None:
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None, device="meta")
        self._replace_weight(plain, gamma)

    def forward(self, x: Tensor) -> Tensor:
        """Map features (…, inputs) to (…, outputs)."""
        return F.linear(x, self.dense_weight(), self.bias)


class HadamardConv2d(_Hadamard, nn.Conv2d):
    """A convolution with W = W1 ⊙ (W2 + 1), each factor T ×₁ X ×₂ Y; it takes over the plain layer's bias."""

    def __init__(self, plain: nn.Conv2d, gamma: float) -> None:
        super().__init__(**conv_arguments(plain))
        self._replace_weight(plain, gamma)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, channels, height, width) to feature maps."""
        weight = self.dense_weight().contiguous(memory_format=torch.channels_last)
        return self._conv_forward(x, weight, self.bias)


def rank(outputs: int, inputs: int, pixels: int, gamma: float) -> int:
    """Return R = (1 − γ)·R_min + γ·R_max for an O×I weight, rounded to the nearest integer.

    R_min = ⌈√min(O, I)⌉ is the smallest with which W can have full rank, R_max the largest with which the factors hold
    no more values than W. A layer so small that R_max < R_min gets R_min. ``pixels`` is H·W of a kernel, 0 of a linear
    layer.
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

    def factorised(layer: nn.Module, name: str) -> nn.Module | None:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            require_plain(layer, name)
        if isinstance(layer, nn.Conv2d):
            return HadamardConv2d(layer, gamma)
        if isinstance(layer, nn.Linear):
            return HadamardLinear(layer, gamma)
        return None

    return replace_layers(module, factorised)


@torch.no_grad()
def dense(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of the plain model with the same weights."""
    layers = dict(layers_of(model, _Hadamard))
    factors = {f"{name}.{part}" for name, layer in layers.items() for part, _ in layer.named_parameters(recurse=False)}
    state = {name: array for name, array in model.state_dict().items() if name not in factors or name.endswith(".bias")}
    return {**state, **{weight_name(name): layer.dense_weight() for name, layer in layers.items()}}
