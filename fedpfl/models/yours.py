"""Models that users bring: any function that builds a module."""

from __future__ import annotations

from torch import nn

from ..core import parts
from ..core.errors import ConfigError
from .elsewhere import with_head
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
    return with_head(built, input_shape, num_classes, vocabulary, name=name)


def as_given(model: BaseHeadModel) -> nn.Module:
    """Return the module that a user's function has built, its head put back; another model as it is."""
    if not model.head_path:
        return model
    above, _, last = model.head_path.rpartition(".")
    setattr(model.base.get_submodule(above), last, model.head)
    return model.base
