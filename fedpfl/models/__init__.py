"""Models as ``base`` and ``head``, by name."""

from __future__ import annotations

from . import cnn, mlp, resnet, resnet9, vgg  # noqa: F401  (importing a module registers its models)
from .registry import SplitModel, build, names, register
from .torchvision_weights import from_torchvision

__all__ = ["SplitModel", "build", "from_torchvision", "names", "register"]
