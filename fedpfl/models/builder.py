"""Builds a model by its name: one of the package, one of another library, or a custom function."""

from __future__ import annotations

from functools import partial

from ..core import custom
from ..core.errors import ConfigError
from ..core.inputs import Inputs
from ..core.names import shown
from .registry import MODELS, BaseHeadModel, Shape, source_of


def build(
    name: str, input_shape: Shape, num_classes: int, vocabulary: int = 0, download: bool = False
) -> BaseHeadModel:
    """Build a model, drawing its initial weights from torch's global random generator; ``ConfigError`` if it cannot.

    ``name`` is one of :func:`names`, a prefix of :func:`sources` with a word behind it, or what
    :func:`fedpfl.core.own_code.find` takes. ``input_shape`` is of one sample: (channels, height, width) of an image,
    (channels, time) of a series, (length,) of a text with ``vocabulary`` different tokens, for example (features,)
    otherwise; an ``Inputs`` of several. ``download``: a source may fetch pretrained weights from the internet.
    """
    source = source_of(name)
    if isinstance(input_shape, Inputs) and (source is not None or _is_registered(name)):
        raise ConfigError("model", name, f"takes one input, and the data have {input_shape}: give a model of your own")
    if source is not None:
        model = source(name.partition(":")[2], input_shape, num_classes, vocabulary, download)
    elif _is_registered(name):
        model = _registered(name, input_shape, num_classes, vocabulary)
    else:
        from fedpfl.models.user_model import named

        model = named(name, input_shape, num_classes, vocabulary)
    model.input_shape, model.vocabulary = input_shape, vocabulary
    model.another = partial(build, name, input_shape, num_classes, vocabulary, download)
    return model


def require_known(name: str) -> None:
    """Raise :class:`ConfigError` for an unknown model; whether a known one fits the data is not checked."""
    if source_of(name) is None and not _is_registered(name):
        from fedpfl.core.own_code import find

        find("model", name, MODELS)


def _is_registered(name: str) -> bool:
    return name in MODELS and name not in custom.entry_point_names("model")


def _registered(name: str, input_shape: Shape, num_classes: int, vocabulary: int) -> BaseHeadModel:
    known = MODELS[name]
    complaint = known.complaint(input_shape, vocabulary)
    if complaint:
        given = f"{shown(input_shape)}{' tokens of text' * bool(vocabulary)}"
        fitting = ", ".join(other for other in MODELS if not MODELS[other].complaint(input_shape, vocabulary))
        hint = f"; models that fit: {fitting}" if fitting else ""
        raise ConfigError("model", name, f"{complaint}, but the input is {given}{hint}")
    return known.builder(input_shape, num_classes, *([vocabulary] if vocabulary else []))
