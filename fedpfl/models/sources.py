"""Names of models, known without PyTorch."""

from __future__ import annotations

import re

from ..core import references

# Stands for the model that takes the data's input; `builder.py` chooses it.
AUTO = "auto"
# Begins the name of a folder with a model of Hugging Face's, and what errors call such a name.
HF, HF_FORM = "hf:", "hf:FOLDER for a folder of Hugging Face's transformers (extra hf)"
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


def is_hf(name: str) -> bool:
    """Tell whether a name is that of a folder."""
    return name.startswith(HF) and name != HF


def choices() -> list[str]:
    """Return what users may write: auto, and the names of the models of this package and of installed packages."""
    from .registry import names

    return [AUTO, *names()]
