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
from .own import OwnModel, load_arrays, made, name_of, needs_classes, outputs_of
from .parts import Parts, cut, cut_at, plain_names
from .registry import BaseHeadModel, names, register, source, sources
from .skeleton import skeleton
from .torchvision_weights import from_torchvision
from .trainable import adapt, is_adapted
from .weight_files import load_weights

__all__ = [
    "BaseHeadModel", "ModelInfo", "OwnModel", "Parts", "adapt", "build", "cut", "cut_at",
    "describe",
    "from_torchvision", "is_adapted", "load_arrays", "load_weights", "made", "merged", "name_of", "names",
    "needs_classes", "original_module", "outputs_of", "plain_names", "register", "require_known", "skeleton",
    "source", "sources", "with_head",
]  # fmt: skip
