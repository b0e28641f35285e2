"""Models that users bring: any function that builds a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core import parts
from ..core.errors import ConfigError
from .registry import BaseHeadModel, Shape, built_in


def build_yours(name: str, input_shape: Shape, num_classes: int, vocabulary: int = 0) -> BaseHeadModel:
    """Build the model that a setting refers to, see :func:`fedpfl.core.parts.find`.

    Parameters
    ----------
    name : str
        The setting's value.
    input_shape, num_classes, vocabulary
        As :func:`fedpfl.models.build` takes them; the user's function gets those that it names.

    Raises
    ------
    ConfigError
        There is no such function, it raises an exception, or what it makes is no model for this input.
    """
    found = parts.find("model", name, built_in())
    if isinstance(found, nn.Module):
        raise ConfigError("model", name, f"is a {type(found).__name__} that is built; give a function that builds one")
    offered = {"input_shape": tuple(input_shape), "num_classes": num_classes, "vocabulary": vocabulary}
    built = parts.call("model", name, found, offered)
    if not isinstance(built, nn.Module):
        raise ConfigError("model", name, f"makes {parts.article(built)}, and must make a torch.nn.Module")
    sample = _sample(input_shape, vocabulary)
    before = _compute(name, built, sample)
    _require_logits(name, before, num_classes)
    if isinstance(built, BaseHeadModel):
        return built
    model = base_and_head(name, built)
    if not torch.allclose(_compute(name, model, sample), before, equal_nan=True):
        allowed = "computes on after its last nn.Linear, or ends with another layer; end it with one, without a softmax"
        raise ConfigError("model", name, allowed)
    return model


def base_and_head(name: str, module: nn.Module) -> BaseHeadModel:
    """Cut a module in two: its last ``nn.Linear`` is the head, and all else, with nothing in its place, the base.

    Parameters
    ----------
    name : str
        The setting ``model``, for the error.
    module : nn.Module
        Is changed: the head is taken out of it.

    Raises
    ------
    ConfigError
        It has no linear layer.
    """
    linear = [path for path, layer in module.named_modules() if type(layer) is nn.Linear]
    if not linear:
        raise ConfigError("model", name, "has no nn.Linear that could be its head; end it with one")
    if isinstance(module, nn.Linear):
        return BaseHeadModel(nn.Identity(), module)
    above, _, last = linear[-1].rpartition(".")
    parent = module.get_submodule(above)
    head = getattr(parent, last)
    setattr(parent, last, nn.Identity())
    model = BaseHeadModel(module, head)
    model.head_path = linear[-1]
    return model


def as_given(model: BaseHeadModel) -> nn.Module:
    """Return the module that a user's function has built, its head put back; another model as it is."""
    if not model.head_path:
        return model
    above, _, last = model.head_path.rpartition(".")
    setattr(model.base.get_submodule(above), last, model.head)
    return model.base


def _sample(input_shape: Shape, vocabulary: int) -> Tensor:
    shape = torch.Size((2, *input_shape))
    # Not constant, so that a layer which is left out shows.
    return torch.zeros(shape, dtype=torch.int64) if vocabulary else torch.linspace(-1, 1, shape.numel()).reshape(shape)


def _compute(name: str, model: nn.Module, sample: Tensor) -> Any:
    training = model.training
    model.eval()  # running statistics stay as they are, and nothing is drawn
    with torch.no_grad():
        found = parts.call("model", name, lambda: model(sample), {})
    model.train(training)
    return found


def _require_logits(name: str, found: Any, num_classes: int) -> None:
    if not isinstance(found, Tensor):
        raise ConfigError("model", name, f"returns {parts.article(found)}, and must return a tensor of logits")
    if tuple(found.shape) != (2, num_classes):
        shown = "×".join(map(str, found.shape)) or "one number"
        raise ConfigError("model", name, f"returns {shown} for 2 samples, and must return 2×{num_classes} logits")
