"""Models as ``base`` and ``head``, by name."""

from __future__ import annotations

# Importing a module registers its models.
from . import (  # noqa: F401
    cnn,
    external,
    lstm,
    mlp,
    resnet,
    resnet9,
    series,
    transformer,
    vgg,
    vit,
)
from .about import ModelInfo, describe
from .adapters import merged
from .build import build, original_module, require_known
from .external import with_head
from .parts import Parts, cut
from .registry import BaseHeadModel, names, register, source, sources
from .torchvision_weights import from_torchvision
from .trainable import TrainableSettings, adapt, is_adapted
from .weight_files import load_weights

__all__ = [
    "BaseHeadModel", "ModelInfo", "Parts", "TrainableSettings", "adapt", "build", "cut", "describe", "from_torchvision",
    "is_adapted", "load_weights", "merged", "names", "original_module", "register", "require_known", "source",
    "sources", "with_head",
]  # fmt: skip
