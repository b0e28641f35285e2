"""Adapters: low-rank additions to the frozen weights of a model, made by Hugging Face's ``peft`` (extra ``lora``).

Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen: LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022.
"""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Callable, Iterator, Mapping, Sequence, cast

import torch
from torch import Tensor, nn

from fedpfl.core.errors import ConfigError, StateError
from fedpfl.core.frozen import frozen
from fedpfl.core.sharing import UNUSED_BUFFER, unused_counters

# Names of the adapter that every method has, and of a client's personal one.
ADAPTER, PERSONAL = "default", "personal"
# What stands before the name of an adapter in the name of one of its arrays.
_KINDS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B")


def add_adapters(model: nn.Module, rank: int, alpha: float, targets: str) -> nn.Module:
    """Give linear layers and 2-D convolutions of a model's base adapters, in place.

    An adapter adds (alpha / rank)·B·A to the layer's weight, where A and B have that rank. B starts at 0; A is drawn
    from torch's global random generator. ``targets`` are patterns of layers' names; empty for all.
    """
    from .external import extra

    peft = extra("peft", "lora", "trainable", "lora")
    layers = _layers(model, targets)
    if not layers:
        present = ", ".join(list(_plain(model))[:5]) or "none at all"
        raise ConfigError(
            "lora-targets", targets, f"fits no linear layer or 2-D convolution of the base ({present}, …)"
        )
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules="|".join(re.escape(layer) for layer in layers), lora_dropout=0.0
    )
    return _inject(model, config, ADAPTER)


def add_personal(model: nn.Module) -> nn.Module:
    """Give every layer with an adapter a second one of the same kind, called ``personal``, in place.

    A layer then adds both, side by side. ``ConfigError`` if the adapters are a user's model's own.
    """
    if not hasattr(model, "peft_config"):
        raise ConfigError("trainable", "all", "must be lora, on a model without adapters of its own")
    first = cast(Any, model).peft_config[ADAPTER]
    return _inject(model, replace(first, target_modules=first.target_modules), PERSONAL)


def _inject(model: nn.Module, config: Any, name: str) -> nn.Module:
    from peft import inject_adapter_in_model

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Already found a `peft_config`")  # a second adapter is what is wanted
        inject_adapter_in_model(config, model, adapter_name=name)
    use(model, names_of(model))
    for parameter in model.parameters():
        parameter.requires_grad_(True)  # peft sets this for adapters only; a phase selects what trains
    return model


def has_adapters(model: nn.Module) -> bool:
    """Tell whether a model has adapters."""
    return bool(_adapted(model))


def in_adapter(name: str, adapter: str | None = None) -> bool:
    """Tell whether an array belongs to an adapter, or to the adapter of one name."""
    parts = name.split(".")
    return any(kind in _KINDS and adapter in (None, adapter_name) for kind, adapter_name in zip(parts, parts[1:]))


def matrix_of(name: str) -> str:
    """Return the matrix of an adapter B·A that an array is, by its name in a state dict.

    Returns
    -------
    str
        ``A`` or ``B``; empty for arrays of no adapter.

    Examples
    --------
    >>> from fedpfl import matrix_of
    >>> matrix_of("base.fc.lora_A.default.weight"), matrix_of("head.weight")
    ('A', '')
    """
    return next((word[-1] for word in name.split(".") if word in _KINDS), "")


def names_of(model: nn.Module) -> list[str]:
    """Return the names of a model's adapters, in the order in which they were added."""
    names: dict[str, None] = {}
    for layer in _adapted(model):
        names.update(dict.fromkeys(layer.r))
    return list(names)


def use(model: nn.Module, names: Sequence[str]) -> None:
    """Make all layers add the adapters of these names, and no others."""
    for layer in _adapted(model):
        layer.set_adapter(list(names))


def with_adapters(forward: Callable[[Tensor], Tensor], model: nn.Module, names: Sequence[str]) -> Callable[..., Tensor]:
    """Return a forward pass of the model in which its layers add the adapters of these names alone; for tests."""

    def only(x: Tensor) -> Tensor:
        try:
            use(model, names)
            return forward(x)
        finally:
            use(model, names_of(model))

    return only


@contextmanager
def weighing(model: nn.Module, weights: Mapping[str, float]) -> Iterator[None]:
    """Have all layers add each adapter times its weight, while the context lasts."""
    before = [(layer.scaling, dict(layer.scaling)) for layer in _adapted(model)]
    try:
        for scaling, usual in before:
            scaling.update({name: weight * usual[name] for name, weight in weights.items()})
        yield
    finally:
        for scaling, usual in before:
            scaling.update(usual)


@torch.no_grad()
def deltas(model: nn.Module, adapter: str) -> dict[str, Tensor]:
    """Return the matrix that an adapter adds to each weight, by the weight's name in the plain model."""
    adapted: Any = set(_adapted(model))
    layers = ((name, module) for name, module in model.named_modules() if module in adapted)
    return {f"{name}.weight": module.get_delta_weight(adapter).detach() for name, module in layers}  # type: ignore


@torch.no_grad()
def merged(model: nn.Module, trained: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return the arrays of the plain model, as before it had adapters or frozen arrays: weights with what adapters add.

    ``trained`` replaces its state dict. Adapters that a user's model has of its own (peft) stay as they are.
    """
    state = model.state_dict() if trained is None else trained
    if not hasattr(model, "peft_config"):
        return {**state, **dict(frozen(model))}
    arrays = {name: array for name, array in state.items() if not in_adapter(name)}
    arrays.update(dict(frozen(model)))
    added = [deltas(model, adapter) for adapter in names_of(model)]
    out = {}
    for name, array in arrays.items():
        plain = name.replace(".base_layer.", ".")  # as it was before the layer got an adapter
        for delta in added:
            array = array + delta[plain] if plain in delta else array
        out[plain] = array
    return out


def complete_arrays(plain: nn.Module, exported: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, on the CPU, of what the plain model (without method and adapters) loads, from a method's export.

    ``StateError`` if the method exports too little.
    """
    wanted = plain.state_dict()
    # BatchNorm's count of batches is not kept: nothing depends on it, and a process counts the batches of all clients.
    counts = {name: torch.zeros_like(array) for name, array in wanted.items() if name.endswith(UNUSED_BUFFER)}
    exported = {**exported, **{name: counts[name] for name in unused_counters(plain) & counts.keys()}}
    arrays = {name: array for name, array in {**counts, **exported}.items() if name in wanted}
    if any(True for _ in frozen(plain)):
        plain.load_state_dict(arrays, strict=False)
        # A method that adds adapters of its own exports the weights with all of them.
        arrays = {name: exported.get(name, array) for name, array in merged(plain).items()}
    else:
        lacking = wanted.keys() - arrays.keys()
        if lacking:
            raise StateError(f"the method's export lacks {sorted(lacking)[0]!r}")
    # safetensors writes no tensors that share memory, as tied weights do.
    return {name: array.detach().cpu().contiguous().clone() for name, array in arrays.items()}


def _layers(model: nn.Module, targets: str) -> list[str]:
    patterns = [pattern.strip() for pattern in targets.split(",") if pattern.strip()] or ["*"]
    adapted = [name for name, module in model.named_modules() if module in set(_adapted(model))]
    candidates = [*adapted, *_plain(model)]
    return [name for name in candidates if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _plain(model: nn.Module) -> Iterator[str]:
    inside = tuple(f"{name}." for name, module in model.named_modules() if module in set(_adapted(model)))
    for name, module in model.named_modules():
        plain = type(module) in (nn.Linear, nn.Conv2d) and "weight" in dict(module.named_parameters(recurse=False))
        if plain and name.startswith("base.") and not name.startswith(inside):
            yield name


def _adapted(model: nn.Module) -> list[Any]:
    # Only models with adapters have modules of peft's: nothing is imported for the others.
    if not any(type(module).__module__.startswith("peft.") for module in model.modules()):
        return []
    from peft.tuners.lora import LoraLayer

    return [module for module in model.modules() if isinstance(module, LoraLayer)]
