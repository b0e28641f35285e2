"""Sources of models besides this package, by the beginnings of their names."""

from __future__ import annotations

import re
from typing import Callable

from ..core import references

# Stands for the model that takes the data's input; `builder.py` chooses it.
AUTO = "auto"
# What users write, by the prefix of the name; `external.py` builds it.
SOURCES = {
    "torchvision": "torchvision:NAME for a classification model of torchvision",
    "timm": "timm:NAME for one of timm (extra timm)",
    "hf": "hf:FOLDER for a folder of Hugging Face's transformers (extra hf)",
}


# What stands behind a model's name, or alone for the run's own model.
_WIDTH = re.compile(r"(.*)@([01]?\.?\d{1,6})", re.DOTALL)
WIDTH_FORM = "NAME@WIDTH, such as small-cnn@0.5, for one with that share of the channels"


def split_width(name: str) -> tuple[str, float]:
    """Return a model's name without the width behind it, and the width: above 0, and 1 unless the name says another."""
    parts = _WIDTH.fullmatch(name)
    width = float(parts[2]) if parts else 0.0
    return (parts[1], width) if parts and 0 < width <= 1 else (name, 1.0)


def has_width(name: str) -> bool:
    """Tell whether a name is ``NAME@WIDTH``, or ``@WIDTH`` for the run's own model at that width."""
    plain, _ = split_width(name)
    return plain != name and (not plain or plain in choices() or references.is_reference(plain))


def sources() -> dict[str, Callable[[str], bool]]:
    """Return the forms of names of all sources: what each names, and whether a name is of that form."""

    def has(prefix: str) -> Callable[[str], bool]:
        return lambda name: name.startswith(f"{prefix}:") and name != f"{prefix}:"

    return {about: has(prefix) for prefix, about in SOURCES.items()}


def choices() -> list[str]:
    """Return the names that users may write: auto, and those of the models of this package and of installed ones."""
    from .registry import names

    return [AUTO, *names()]
