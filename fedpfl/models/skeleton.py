"""A model without a forward pass, made of nothing but named arrays: enough to decide which of them are shared."""

from __future__ import annotations

from typing import Mapping, cast

import numpy as np
import torch
from torch import Tensor, nn

from .adapters import matrix_of
from .registry import BaseHeadModel, NoHead

WEIGHT, BIAS, STATISTIC = "weight", "bias", "running_mean"


def skeleton(arrays: Mapping[str, np.ndarray], head: str = "") -> BaseHeadModel:
    """Make layers for the arrays of a state dict, and cut them before ``head``, by default the last ``nn.Linear``.

    Arrays with ``running_mean`` make a BatchNorm layer, a weight with two dimensions and its bias an ``nn.Linear``.
    """
    by_layer: dict[str, dict[str, Tensor]] = {}
    for name, array in arrays.items():
        layer, _, short = name.rpartition(".")
        by_layer.setdefault(layer, {})[short] = torch.tensor(array)
    layers = {name: _layer(layer_arrays) for name, layer_arrays in by_layer.items()}
    linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)]
    last_linear = linear[-1] if linear else ""
    # One matrix of an adapter is no head, nor is the frozen layer that it is added to.
    adapts = matrix_of(f"{last_linear}.") or last_linear.endswith(".base_layer")
    chosen = head or ("" if adapts else last_linear)
    base, root = nn.Module(), layers.pop("", None)
    if root is not None and not layers:  # the whole model is one layer
        return BaseHeadModel(root, NoHead("model", "is a single layer"))  # type: ignore[arg-type]
    if root is not None:
        base = root
    last: nn.Module = layers.pop(chosen) if chosen else NoHead("model", "has no linear layer")
    for path, own_layer in layers.items():
        if chosen and path.startswith(f"{chosen}."):  # as of a parametrization, whose arrays lie below the layer
            _place(last, path[len(chosen) + 1 :], own_layer)
        else:
            _place(base, path, own_layer)
    model = BaseHeadModel(base, last)  # type: ignore[arg-type]
    model.head_path = chosen
    return model


def _layer(arrays: dict[str, Tensor]) -> nn.Module:
    layer: nn.Module = nn.Module()
    if STATISTIC in arrays:
        layer = nn.BatchNorm1d(len(arrays[STATISTIC]), affine=False, track_running_stats=False)
    elif WEIGHT in arrays and arrays[WEIGHT].ndim == 2 and arrays.keys() <= {WEIGHT, BIAS}:
        layer = nn.Linear(1, 1, bias=False)
        layer._parameters.clear()
    # By hand, as arrays of other frameworks may be called as a method of a module is, or as a layer.
    for name, array in arrays.items():
        buffer = STATISTIC in arrays and name not in (WEIGHT, BIAS)
        if buffer or not array.is_floating_point():
            layer._buffers[name] = array
        else:
            layer._parameters[name] = nn.Parameter(array)
    return layer


def _place(root: nn.Module, path: str, layer: nn.Module) -> None:
    """Put a layer where its name says; layers above it are made, and keep the arrays that they have."""
    *above, last = path.split(".")
    for word in above:
        root = cast(nn.Module, root._modules.setdefault(word, nn.Module()))
    there = root._modules.get(last)
    if there is not None:  # made before as a layer above another one
        for name, child in there.named_children():
            layer._modules[name] = child
    root._modules[last] = layer
