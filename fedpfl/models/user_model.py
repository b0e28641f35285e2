"""A model as users of PyTorch have it: a function that builds it, a class, a module or a name."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Callable, Mapping, Union

import numpy as np
import torch
from torch import nn

from ..core import references, user_code
from ..core.errors import ConfigError, did_you_mean
from ..core.model_state import hooked_parameters
from ..core.name_lists import shown
from .builder import build
from .external import made_up, with_head
from .registry import BaseHeadModel, NoHead, Shape

OwnModel = Union[Callable[..., nn.Module], nn.Module, str]


def made(model: OwnModel, input_shape: Shape, num_classes: int, vocabulary: int = 0, head: str = "") -> nn.Module:
    """Build a model; a module is copied. ``head`` names the ``nn.Linear`` before which it is cut."""
    if isinstance(model, str):
        module: Any = build(model, input_shape, num_classes, vocabulary)
    elif isinstance(model, nn.Module):
        if hooked := hooked_parameters(model):
            allowed = "which a copy of it has not: give the function or class that builds it"
            raise ConfigError("model", name_of(model), f"has a hook on the gradient of {hooked[0]}, {allowed}")
        module = copy.deepcopy(model)
    else:
        offered = {"input_shape": tuple(input_shape), "num_classes": num_classes, "vocabulary": vocabulary}
        module = user_code.call("model", name_of(model), model, offered, () if vocabulary else ["vocabulary"])
    if not isinstance(module, nn.Module):
        raise ConfigError(
            "model", name_of(model), f"makes {references.article(module)}; it must make a torch.nn.Module"
        )
    if not head:
        return module
    return with_head(module, input_shape, num_classes, vocabulary, head, name_of(model))


def original_module(model: BaseHeadModel) -> nn.Module:
    """Return the module that a user's function has built, its head put back; another model as it is."""
    if isinstance(model.head, NoHead):
        return model.base
    if not model.head_path:
        return model
    above, _, last = model.head_path.rpartition(".")
    setattr(model.base.get_submodule(above), last, model.head)
    return model.base


def name_of(model: OwnModel) -> str:
    """Return the name of a model in errors."""
    return model if isinstance(model, str) else str(getattr(model, "__name__", type(model).__name__))


def under_its_name(model: OwnModel, build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return a function that builds a model, with the name by which errors call the model."""

    def built(input_shape: Shape, num_classes: int, vocabulary: int) -> nn.Module:
        return build(input_shape, num_classes, vocabulary)

    built.__name__ = name_of(model)
    return built


def needs_classes(model: OwnModel) -> bool:
    """Tell whether a model can only be built for a known number of classes."""
    if isinstance(model, nn.Module):
        return False
    return isinstance(model, str) or "num_classes" in inspect.signature(model).parameters


def outputs_of(model: OwnModel, input_shape: Shape, vocabulary: int = 0) -> int:
    """Return the number of a model's outputs for a sample, or a token of a text, which are its classes."""
    if needs_classes(model):
        raise ConfigError("num_classes", 0, f"must be given: {name_of(model)} is built for a number of classes")
    module = made(model, input_shape, 0).eval()
    try:
        with torch.no_grad():
            return int(module(made_up(input_shape, vocabulary)).shape[-1 if vocabulary else 1])
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError("model", name_of(model), f"does not take inputs of {shown(input_shape)}: {reason}") from error


@torch.no_grad()
def load_arrays(module: nn.Module, arrays: Mapping[str, np.ndarray], plain: Callable[[str], str]) -> None:
    """Load a plain model's state dict, whose names ``plain`` gives; ``ConfigError`` for an array that does not fit."""
    targets = {plain(name): target for name, target in module.state_dict(keep_vars=True).items()}
    if unknown := [name for name in arrays if name not in targets]:
        hint = did_you_mean(unknown[0], list(targets))
        raise ConfigError("initial_arrays", unknown[0], f"is no array of the model{hint}")
    for name, target in targets.items():
        if name not in arrays:
            hint = did_you_mean(name, list(arrays))
            raise ConfigError("initial_arrays", name, f"is missing: the model has this array{hint}")
        array = arrays[name]
        if tuple(array.shape) != tuple(target.shape):
            wrong = f"has the shape {tuple(array.shape)}, in the model {tuple(target.shape)}"
            raise ConfigError("initial_arrays", name, wrong)
        target.copy_(torch.from_numpy(np.array(array)))
