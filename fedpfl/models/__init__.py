"""Models as ``base`` and ``head``, by name."""

from __future__ import annotations

from . import cnn, lstm, mlp, resnet, resnet9, series, transformer, vgg  # noqa: F401  (importing a module registers its models)
from .about import ModelInfo, describe
from .parts import Parts, cut
from .registry import BaseHeadModel, build, names, register
from .torchvision_weights import from_torchvision
from .weight_files import load_weights

__all__ = [
    "BaseHeadModel",
    "ModelInfo",
    "Parts",
    "build",
    "cut",
    "describe",
    "from_torchvision",
    "load_weights",
    "names",
    "register",
]
