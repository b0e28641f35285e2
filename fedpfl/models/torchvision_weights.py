"""Weights of torchvision's models under this project's names."""

from __future__ import annotations

from typing import Mapping

from torch import Tensor

from fedpfl.core.errors import ConfigError

# Where torchvision keeps the last linear layer; everything else is `base`, under its own name.
_HEADS = {"resnet18": "fc.", "vgg16": "classifier.6."}


def from_torchvision(name: str, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the arrays of torchvision's resnet18 or vgg16_bn to those of the model here (``resnet18``, ``vgg16``).

    The result has the same tensors, for ``load_state_dict``. Leave out ``head.weight`` and ``head.bias`` (and load with
    ``strict=False``) where the number of classes differs. Other models raise ``ConfigError``.
    """
    if name not in _HEADS:
        raise ConfigError("model", name, "torchvision weights exist only for " + ", ".join(sorted(_HEADS)))
    head = _HEADS[name]
    return {
        "head." + key[len(head) :] if key.startswith(head) else "base." + key: array
        for key, array in state_dict.items()
    }
