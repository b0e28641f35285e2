"""Models as ``base`` and ``head``, by name."""

from __future__ import annotations

from . import cnn, lstm, mlp, resnet, resnet9, series, transformer, vgg  # noqa: F401  (importing a module registers its models)
from .registry import SplitModel, build, names, register
from .split import Parts, cut
from .torchvision_weights import from_torchvision
from .weight_files import load_weights

__all__ = ["Parts", "SplitModel", "build", "cut", "from_torchvision", "load_weights", "names", "register"]
