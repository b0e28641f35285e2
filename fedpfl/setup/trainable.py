"""Which arrays of a model train: all, the head, adapters and head, or those that patterns name. The rest is frozen.

So are parameters that a user's model has with ``requires_grad=False``, whatever the setting selects.
"""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.errors import ConfigError
from ..core.frozen import HASH, NAMES, frozen, frozen_hash
from ..models.parts import cut
from ..models.registry import BaseHeadModel, called
from .options.trainable import ADAPTERS, ALL, HEAD, LORA, TrainableSettings


def trainable(config: Any, model: BaseHeadModel) -> BaseHeadModel:
    """Return the model of a run, with adapters and frozen parameters as its settings say."""
    return adapt(model, config.of(TrainableSettings))


def adapt(model: BaseHeadModel, settings: TrainableSettings) -> BaseHeadModel:
    """Add adapters if they are asked for and freeze what does not train, in place; ``ConfigError`` if nothing fits."""
    if settings.trainable == ALL and not _still(model):
        return model
    another = model.another
    _freeze(model, settings)
    model.another = partial(_another, another, settings, model)
    return model


def _another(build: Callable[[], BaseHeadModel], settings: TrainableSettings, like: nn.Module) -> BaseHeadModel:
    """Build the same model with newly drawn adapters and head on the same frozen arrays."""
    model = build()
    _freeze(model, settings)
    take_frozen(model, like)
    return model


def _freeze(model: BaseHeadModel, settings: TrainableSettings) -> None:
    """Freeze what the settings do not select, and what the model itself has frozen."""
    still = model.still = _still(model)
    if settings.trainable == ALL:
        freeze(model, lambda name: name not in still)
    elif settings.trainable in (LORA, ADAPTERS):
        from ..models.adapters import add_adapters, in_adapter

        add_adapters(model, settings.lora_rank, settings.lora_alpha, settings.lora_targets)
        heads = settings.trainable == LORA
        freeze(model, lambda name: name not in still and ((heads and in_head(name)) or in_adapter(name)))
    else:
        patterns = _patterns(model, settings)
        freeze(model, lambda name: name not in still and (in_head(name) or any(fnmatchcase(name, p) for p in patterns)))


def _still(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that a model has with ``requires_grad=False``."""
    arrays = model.state_dict(keep_vars=True).items()
    return tuple(name for name, array in arrays if isinstance(array, nn.Parameter) and not array.requires_grad)


def _patterns(model: BaseHeadModel, settings: TrainableSettings) -> list[str]:
    """Return the patterns of arrays of the base that train; ``ConfigError`` for one that fits none."""
    if settings.trainable == HEAD:
        cut(model)  # which refuses a model without one
    patterns = [] if settings.trainable == HEAD else [word.strip() for word in settings.trainable.split(",")]
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            some = f"{names[0]}, …, {names[-1]}"
            allowed = (
                f"must be all, head, lora, adapters or a pattern of the model's arrays ({some}); {pattern!r} fits none"
            )
            raise ConfigError("trainable", settings.trainable, allowed)
    return patterns


def in_head(name: str) -> bool:
    """Return whether an array belongs to the head, which trains unless the model itself has frozen it."""
    return name.startswith("head.")


def freeze(model: nn.Module, trains: Callable[[str], bool]) -> list[str]:
    """Freeze the arrays of a model that do not train, in place; return their names in the model's order.

    Buffers follow the parameters of their module: the running statistics of a BatchNorm are frozen with its weight. For
    a module without parameters ``trains`` is asked by the buffers' names.
    """
    for prefix, module in list(model.named_modules()):
        path = f"{prefix}." if prefix else ""
        parameters = dict(module.named_parameters(recurse=False))
        still = [name for name in parameters if not trains(path + name)]
        buffers = [name for name in module.state_dict() if "." not in name and name not in parameters]
        still += [
            name for name in buffers if (len(still) == len(parameters) if parameters else not trains(path + name))
        ]
        moving = {path + name for name in still} & {*getattr(model, "moving", ())}
        if moving and not isinstance(module, _BatchNorm):  # whose statistics rest once they are frozen
            allowed = f"changes {min(moving)} as it trains, which is frozen: make it a buffer, or let its layer train"
            raise ConfigError("model", called(model), allowed)
        for name in still:
            array = getattr(module, name).detach()
            delattr(module, name)
            module.register_buffer(name, array, persistent=False)
        if still:
            setattr(module, NAMES, (*getattr(module, NAMES, ()), *still))
    setattr(model, HASH, _hash(model))
    return [name for name, _ in frozen(model)]


def take_frozen(model: nn.Module, other: nn.Module) -> None:
    """Let a model use another one's frozen arrays of the same names, so that they are in memory once."""
    for name, array in frozen(other):
        prefix, _, short = name.rpartition(".")
        setattr(model.get_submodule(prefix), short, array)
    setattr(model, HASH, frozen_hash(other))


@torch.no_grad()
def _hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, array in frozen(model):
        digest.update(f"{name} {array.dtype} {tuple(array.shape)}\n".encode())
        # As bytes, which NumPy has for every type.
        digest.update(array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16] if any(True for _ in frozen(model)) else ""
