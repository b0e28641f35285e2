"""Replacement of plain convolutions and linear layers by other layers, which are found again."""

from __future__ import annotations

from typing import Any, Callable, Iterator, TypeVar

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from fedpfl.core.errors import ConfigError
from fedpfl.core.frozen import has_frozen
from fedpfl.core.references import article

L = TypeVar("L", bound=nn.Module)


def replace_layers(module: nn.Module, make: Callable[[nn.Module, str], nn.Module | None], name: str = "") -> nn.Module:
    """Replace layers of a model, in place and in the model's order; return the module or what took its place.

    ``make(module, name)`` returns the replacement; None keeps the module and continues with its children. It is not
    asked for a layer with a frozen array. ``name`` is the module's within the model.
    """
    made = None if has_frozen(module) else make(module, name)
    if made is not None:
        return made
    for child_name, child in module.named_children():
        setattr(module, child_name, replace_layers(child, make, f"{name}.{child_name}" if name else child_name))
    return module


def require_plain(layer: nn.Module, name: str, derived: bool = False) -> None:
    """Raise ``ConfigError`` for a layer that another one cannot replace, or whose weight is no array of the model.

    ``derived``: classes derived from ``nn.Linear`` and ``nn.Conv2d`` are taken as well.
    """
    if computes_weight(layer):
        reason = "computes its weight from other arrays (weight_norm, spectral_norm, pruning)"
    elif not derived and type(layer) not in (nn.Linear, nn.Conv2d):
        reason = f"is {article(layer)}, not a plain nn.Linear or nn.Conv2d"
    else:
        return
    raise ConfigError("model", f"with the layer {name or 'itself'}", f"{reason}; the method puts another in its place")


def computes_weight(layer: nn.Module) -> bool:
    """Tell whether a layer's weight is computed from other arrays in each forward pass."""
    return is_parametrized(layer, "weight") or isinstance(vars(layer).get("weight"), Tensor)


def layers_of(model: nn.Module, kind: type[L]) -> Iterator[tuple[str, L]]:
    """Yield (name, module) of every module of a class, in the model's order."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kind))


def weight_name(layer: str) -> str:
    """Return the name that the weight of the layer of this name has in the plain model's state dict."""
    return f"{layer}.weight" if layer else "weight"


def conv_arguments(plain: nn.Conv2d) -> dict[str, Any]:
    """Return the constructor's arguments for a convolution like ``plain``, without weights to be drawn."""
    return {
        "in_channels": plain.in_channels,
        "out_channels": plain.out_channels,
        "kernel_size": plain.kernel_size,
        "stride": plain.stride,
        "padding": plain.padding,
        "dilation": plain.dilation,
        "groups": plain.groups,
        "bias": plain.bias is not None,
        "padding_mode": plain.padding_mode,
        "device": "meta",
    }


def forward_without(model: nn.Module, kind: type[nn.Module], switch: str) -> Callable[[Tensor], Tensor]:
    """Return the model's forward pass with a switch of all its layers of a class off, which is on otherwise."""

    def forward(x: Tensor) -> Tensor:
        layers = [layer for _, layer in layers_of(model, kind)]
        try:
            for layer in layers:
                setattr(layer, switch, False)
            return model(x)
        finally:
            for layer in layers:
                setattr(layer, switch, True)

    return forward
