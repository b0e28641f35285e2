"""Sources of models besides this package, by the beginnings of their names."""

from __future__ import annotations

from typing import Callable

# What users write, by the prefix of the name; `external.py` builds it.
SOURCES = {
    "torchvision": "torchvision:NAME for a classification model of torchvision",
    "timm": "timm:NAME for one of timm (extra timm)",
    "hf": "hf:FOLDER for a folder of Hugging Face's transformers (extra hf)",
}


def sources() -> dict[str, Callable[[str], bool]]:
    """Return the forms of names of all sources: what each names, and whether a name is of that form."""

    def has(prefix: str) -> Callable[[str], bool]:
        return lambda name: name.startswith(f"{prefix}:") and name != f"{prefix}:"

    return {about: has(prefix) for prefix, about in SOURCES.items()}


def names() -> list[str]:
    """Return the names of the models of this package, and of installed packages."""
    from .registry import names as found

    return found()
