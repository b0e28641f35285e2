"""Layers whose weight is an outer product and a sparse rest, W = u ⊗ v + µ (Factorized-FL, section 4.1).

u holds what a filter looks like (of a convolution: one base filter, of a linear layer: one weight for each input), v
how strongly each pair of channels (each output) uses it, and µ what no outer product can say. µ has the weight's own
shape and memory format: the reshaping of equation 3, by which the F·F axis becomes the spatial one, is then no work.
"""

from __future__ import annotations

import math
from typing import Any, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...core.errors import ConfigError
from ...layers.replace import conv_arguments, layers_of, replace_layers, require_plain, weight_name
from ...models.parts import PROJECTION


class _Factorized(nn.Module):
    """Common to both layers: u, v and µ instead of a plain layer's weight."""

    u: Tensor
    v: Tensor
    mu: Tensor | None
    bias: Any
    threshold: float

    def _replace_weight(self, plain: nn.Module, threshold: float, with_mu: bool, generator: torch.Generator) -> None:
        del self.weight
        weight: Tensor = plain.weight  # type: ignore[assignment]
        self.threshold = threshold
        self.u, self.v = (
            nn.Parameter(_xavier_vector(shape, generator).to(weight)) for shape in self._factor_shapes(weight)
        )
        if self.bias is not None:
            self.bias = nn.Parameter(_xavier_vector(self.bias.shape, generator).to(weight))
        self.mu = nn.Parameter(torch.zeros_like(weight)) if with_mu else None
        self.train(plain.training)

    @staticmethod
    def _factor_shapes(weight: Tensor) -> tuple[torch.Size, torch.Size]:
        """Return the shapes of u and v: v's axes are the weight's first ones, u's are the rest."""
        raise NotImplementedError  # each layer has its own; an abstract class could not be given to `layers_of`

    def dense_weight(self) -> Tensor:
        """Return u ⊗ v + µ, of the plain weight's shape; outside training an entry of µ below the threshold is 0."""
        v, mu = self.v.reshape(*self.v.shape, *(1 for _ in self.u.shape)), self.present_mu
        # µ comes first so that the sum has its memory format.
        return v * self.u if mu is None else torch.addcmul(mu, v, self.u)

    @property
    def present_mu(self) -> Tensor | None:
        """The term µ as it counts now: outside training without the entries below the threshold."""
        return self.mu if self.training or self.mu is None else self.kept_mu(self.mu)

    def kept_mu(self, mu: Tensor) -> Tensor:
        """Return µ with zeros where |µ| is below the threshold."""
        return mu.masked_fill(mu.abs() < self.threshold, 0.0)


class FactorizedLinear(_Factorized, nn.Linear):
    """A linear layer with weight v_o·u_i + µ_oi: u (I,), v (O,), µ (O, I) (equation 2).

    µ starts at 0, as the paper says; in the authors' code that of the classifier starts Xavier uniform. Outside
    training its entries below ``threshold`` count as 0. u, v and the bias are drawn Xavier uniform. The paper says
    nothing of biases; so they start in the authors' code: those of a classifier of 10 classes within ±√(6/11) = ±0.74,
    where PyTorch has ±1/√I.
    """

    def __init__(self, plain: nn.Linear, threshold: float, with_mu: bool, generator: torch.Generator) -> None:
        # On the meta device the superclass draws nothing.
        super().__init__(plain.in_features, plain.out_features, bias=plain.bias is not None, device="meta")
        self._replace_weight(plain, threshold, with_mu, generator)

    @staticmethod
    def _factor_shapes(weight: Tensor) -> tuple[torch.Size, torch.Size]:
        return weight.shape[1:], weight.shape[:1]

    def forward(self, x: Tensor) -> Tensor:
        """Map features (..., I) to (..., O)."""
        return F.linear(x, self.dense_weight(), self.bias)


class FactorizedConv2d(_Factorized, nn.Conv2d):
    """A convolution with kernels v_oi·u + µ_oi: u (F, F) the base filter, v (O, I), µ (O, I, F, F) (equation 3).

    With ``viewed`` the matrix u·v of size F·F by O·I is read in order as the weight, as in the authors' code: a kernel
    is then no multiple of u.
    """

    def __init__(
        self, plain: nn.Conv2d, threshold: float, with_mu: bool, generator: torch.Generator, viewed: bool = False
    ) -> None:
        super().__init__(**conv_arguments(plain))
        self._viewed = viewed
        self._replace_weight(plain, threshold, with_mu, generator)

    @staticmethod
    def _factor_shapes(weight: Tensor) -> tuple[torch.Size, torch.Size]:
        return weight.shape[2:], weight.shape[:2]

    def dense_weight(self) -> Tensor:
        """Return the plain weight, with u·v in the order of the paper or of the authors' code."""
        if not self._viewed:
            return super().dense_weight()
        product = torch.outer(self.u.reshape(-1), self.v.reshape(-1)).reshape(*self.v.shape, *self.u.shape)
        mu = self.present_mu
        return product if mu is None else mu + product

    def forward(self, x: Tensor) -> Tensor:
        """Map images (n, channels, height, width) to feature maps."""
        return self._conv_forward(x, self.dense_weight(), self.bias)


def factorize(
    model: nn.Module, threshold: float, with_mu: bool, generator: torch.Generator, viewed: bool = False
) -> nn.Module:
    """Replace every plain convolution and linear layer of a model by a factorised one, in place; return the model.

    All is drawn in the order of the layers, so what a base gets does not depend on the size of the head behind it.
    Classes derived from ``nn.Conv2d`` and ``nn.Linear`` stay as they are.
    """

    def factorized(module: nn.Module, name: str) -> nn.Module | None:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            require_plain(module, name, derived=True)
        if type(module) is nn.Conv2d:
            return FactorizedConv2d(module, threshold, with_mu, generator, viewed)
        if type(module) is nn.Linear:
            return FactorizedLinear(module, threshold, with_mu, generator)
        return None

    return replace_layers(model, factorized)


def is_u(name: str) -> bool:
    """Tell whether a name of a state dict is that of a u."""
    return name.rpartition(".")[2] == "u"


def is_v(name: str) -> bool:
    """Tell whether a name of a state dict is that of a v."""
    return name.rpartition(".")[2] == "v"


def is_mu(name: str) -> bool:
    """Tell whether a name of a state dict is that of a µ."""
    return name.rpartition(".")[2] == "mu"


def penultimate_v(names: Iterable[str]) -> str:
    """Return the name of the last v before the classifier, ``head``, but for that of a shortcut."""
    hidden = [
        name for name in names if is_v(name) and not name.startswith("head.") and PROJECTION not in name.split(".")
    ]
    if not hidden:
        message = "must have a convolution or a linear layer before its classifier"
        raise ConfigError("model", "with a classifier alone", message)
    return hidden[-1]


@torch.no_grad()
def count_kept(model: nn.Module) -> tuple[int, int]:
    """Return the kept entries of µ, and all trainable parameters but the other entries (section 5.2, figure 8 i)."""
    kept = total = 0
    for _, layer in layers_of(model, _Factorized):
        if layer.mu is not None:
            kept += int(layer.kept_mu(layer.mu).count_nonzero())
            total += layer.mu.numel()
    return kept, sum(p.numel() for p in model.parameters()) - total + kept


@torch.no_grad()
def merge(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of the plain model whose weights are u ⊗ v + µ, small entries of µ being 0; detached."""
    state = {n: array for n, array in model.state_dict().items() if not (is_u(n) or is_v(n) or is_mu(n))}
    training = model.training
    model.eval()
    for name, layer in layers_of(model, _Factorized):
        state[weight_name(name)] = layer.dense_weight()
    model.train(training)
    return state


def _xavier_vector(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Draw a factor or a bias: Xavier uniform of an n×1 matrix, n being its number of entries."""
    bound = math.sqrt(6 / (shape.numel() + 1))
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)
