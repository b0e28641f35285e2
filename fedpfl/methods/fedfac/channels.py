"""The layers of a model whose output channels can be told apart, by name and by number."""

from __future__ import annotations

from typing import Union

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...models.parts import PROJECTION

Layer = Union[nn.Conv1d, nn.Conv2d, nn.Linear]


def numbered_layers(model: nn.Module) -> dict[str, Layer]:
    """Return the convolutions and linear layers by name, in the model's order: the first is layer 1."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Linear)) and PROJECTION not in name.split(".")
    }


def hidden_layers(model: nn.Module) -> dict[str, Layer]:
    """Return :func:`numbered_layers` without the last, whose channels are the classes."""
    layers = numbered_layers(model)
    layers.popitem()
    return layers


def default_layer(model: nn.Module) -> str:
    """Return the name of the last convolution or, in a model without any, of the last hidden linear layer."""
    layers = hidden_layers(model)
    convolutions = [name for name, layer in layers.items() if not isinstance(layer, nn.Linear)]
    return (convolutions or list(layers))[-1]


def norm_of(model: nn.Module, name: str) -> str | None:
    """Return the name of the BatchNorm behind a layer, or None; it is the next module with arrays of its own."""
    modules = {other: module for other, module in model.named_modules() if list(module.parameters(recurse=False))}
    names = list(modules)
    following = names[names.index(name) + 1]  # there is one: the last layer is not hidden
    norm, channels = modules[following], modules[name].weight.shape[0]  # type: ignore[union-attr]
    return following if isinstance(norm, _BatchNorm) and norm.num_features == channels else None


def arrays_of(model: nn.Module, name: str) -> list[str]:
    """Return the names of a module's own arrays, buffers included, that have its channels as first axis."""
    module = model.get_submodule(name)
    arrays = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return [f"{name}.{short}" for short, array in arrays if array is not None and array.dim()]
