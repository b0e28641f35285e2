"""Descriptions of models that are not built yet."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple, Tuple

import torch

from .builder import build
from .registry import MODELS, BaseHeadModel, Shape

# Inputs for which sizes are given: shape of a sample, classes, tokens, in words.
_Example = Tuple[Shape, int, int, str]
_IMAGE: _Example = ((3, 32, 32), 10, 0, "3×32×32, 10 classes")
_SERIES: _Example = ((9, 128), 6, 0, "9×128, 6 classes")
_TEXT: _Example = ((64,), 4, 2**14, "16,384 tokens, 4 classes")

_SIZE = re.compile(r"[.:;,]? [0-9][0-9,]+ parameters .*")


class ModelInfo(NamedTuple):
    """One row of ``fedpfl models``."""

    name: str
    what: str  # its layers, in a sentence
    takes: str  # which inputs it takes
    parameters: int | None  # how many numbers it learns for an input as in example; None if it cannot be built for that
    example: str
    source: str  # the paper, and what differs from it


def describe(name: str) -> ModelInfo:
    """Describe a model of :func:`fedpfl.models.names`, from its builder's docstring and limits."""
    entry = MODELS[name]
    example: tuple[Shape, int, int, str]
    if entry.tokens:
        takes, example = "texts", _TEXT
    elif entry.smallest_length is not None:
        length = entry.smallest_length
        takes, example = f"series of at least {length} steps" if length > 1 else "series of any length", _SERIES
    elif entry.smallest_side is not None:
        takes, example = f"images of at least {entry.smallest_side}×{entry.smallest_side}", _IMAGE
    else:
        takes, example = "numbers of any shape", _IMAGE
    what, _, about = (inspect.getdoc(entry.builder) or "").partition("\n\n")
    source = " ".join(about.partition("\n\nParameters\n")[0].split())
    source = _SIZE.sub(".", source)  # it is told for the same input of all
    shape, classes, tokens, input_text = example
    model = _without_weights(name, shape, classes, tokens)
    size = None if model is None else sum(parameter.numel() for parameter in model.parameters())
    return ModelInfo(name, " ".join(what.split()), takes, size, input_text, re.sub("``|:func:|`", "", source))


def _without_weights(name: str, shape: Shape, classes: int, tokens: int) -> BaseHeadModel | None:
    """Build a model whose arrays take no memory; None where PyTorch is too old for that."""
    if not hasattr(torch.device, "__enter__"):
        return None
    with torch.device("meta"):
        return build(name, shape, classes, tokens)
