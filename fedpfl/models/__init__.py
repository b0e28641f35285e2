"""Models as ``base`` and ``head``, by name."""

from __future__ import annotations

from . import cnn, lstm, mlp, resnet, resnet9, series, transformer, vgg  # noqa: F401  (importing a module registers its models)
from .parts import Parts, cut
from .registry import BaseHeadModel, build, names, register, require_known
from .torchvision_weights import from_torchvision
from .weight_files import load_weights
from .yours import as_given

__all__ = [
    "BaseHeadModel",
    "Parts",
    "as_given",
    "build",
    "cut",
    "from_torchvision",
    "load_weights",
    "names",
    "register",
    "require_known",
]
