"""Models as ``base`` and ``head``, by name; a file for each family, which is imported when one of them is named."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .sources import sources

if TYPE_CHECKING:
    from .builder import build, chosen, require_known
    from .parts import Parts, cut, cut_at, plain_names
    from .registry import BaseHeadModel, names, register
    from .user_model import original_module

__all__ = [
    "BaseHeadModel", "Parts", "build", "chosen", "cut", "cut_at", "names", "original_module", "plain_names", "register",
    "require_known", "sources",
]  # fmt: skip

# Imported when one of their names is asked for: they need torch.
_FILES = {
    "builder": "build chosen require_known", "parts": "Parts cut cut_at plain_names",
    "registry": "BaseHeadModel names register", "user_model": "original_module",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for file, names in _FILES.items():
        if name in names.split():
            return getattr(importlib.import_module(f"{__name__}.{file}"), name)
    raise AttributeError(name)
