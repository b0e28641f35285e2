"""Models as ``base`` and ``head``, by name; a file for each family, which is imported when one of them is named."""

from __future__ import annotations

from .build import build, original_module, require_known
from .parts import Parts, cut, cut_at, plain_names
from .registry import BaseHeadModel, names, register, sources

__all__ = [
    "BaseHeadModel", "Parts", "build", "cut", "cut_at", "names", "original_module", "plain_names", "register",
    "require_known", "sources",
]  # fmt: skip
