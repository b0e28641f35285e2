"""Weights to start from, read from a file."""

from __future__ import annotations

import pickle
import re
import struct
from pathlib import Path
from typing import Any, Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedpfl.core.checksummed_files import has_checksum, read_arrays
from fedpfl.core.errors import ConfigError, DamagedFile, printable
from fedpfl.core.files import open_regular

from .registry import BaseHeadModel

# A damaged file makes torch's reader of pickles stumble in any of these ways.
_UNREADABLE = (
    OSError, SafetensorError, RuntimeError, EOFError, pickle.UnpicklingError, struct.error, ValueError, LookupError,
    TypeError, AttributeError, AssertionError,
)  # fmt: skip

# From this version on no way is known to run code with `weights_only`: CVE-2025-32434 (before 2.6), CVE-2026-24747
# (before 2.10).
_SAFE_TORCH = (2, 10)
# BatchNorm's count of batches, which nothing depends on; old files lack it.
_COUNT = "num_batches_tracked"


# Where torchvision keeps the last linear layer; everything else is `base`, under its own name.
_HEADS = {"resnet18": "fc.", "vgg16": "classifier.6."}


def initial(config: Any, model: BaseHeadModel) -> BaseHeadModel:
    """Return the model of a run with the weights of its setting ``initial-weights``."""
    load_weights(model, config.run.model, config.run.initial_weights)
    return model


def load_weights(model: BaseHeadModel, name: str, path: str) -> None:
    """Load a file's weights into a model, in place; the head stays as it is where the file's has another shape.

    The names are those of the model here or, for resnet18 and vgg16, torchvision's (its vgg16_bn).
    """
    arrays = _read(path)
    if not any(key.startswith(("base.", "head.")) for key in arrays):
        arrays = from_torchvision(name, arrays)
    arrays = {key: array for key, array in arrays.items() if not key.endswith(_COUNT)}
    expected = {key: array for key, array in model.state_dict().items() if not key.endswith(_COUNT)}
    head = {key for key in expected if key.startswith("head.")}
    if any(arrays[key].shape != expected[key].shape for key in head & arrays.keys()) or not head <= arrays.keys():
        arrays = {key: array for key, array in arrays.items() if key not in head}
        expected = {key: array for key, array in expected.items() if key not in head}
    complaint = _difference(expected, arrays)
    if complaint:
        raise ConfigError("initial-weights", path, f"does not fit model = {name!r}: {complaint}")
    model.load_state_dict(arrays, strict=False)


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


def _read(path: str) -> Mapping[str, Tensor]:
    place = Path(path).expanduser()
    try:
        open_regular(place).close()
    except (OSError, DamagedFile) as error:
        reason = error.more if isinstance(error, DamagedFile) else error.strerror
        raise ConfigError("initial-weights", path, f"cannot be read on this machine ({reason})") from error
    try:
        if place.suffix == ".safetensors":
            if not has_checksum(place):
                return load_file(place)
            return {name: torch.from_numpy(array) for name, array in read_arrays(place).items()}
        if _version(torch.__version__) < _SAFE_TORCH:
            message = (
                f"must be safetensors on a machine with PyTorch {torch.__version__}, where other files can run code; "
                "safetensors.torch.save_file writes one, on a machine with PyTorch 2.10 or later"
            )
            raise ConfigError("initial-weights", path, message)
        content = torch.load(place, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
        raise ConfigError("initial-weights", path, f"cannot be read on this machine ({reason})") from error
    named = isinstance(content, dict) and all(isinstance(name, str) for name in content)
    # No values: meta. Not one number a place: sparse, quantised.
    plain = named and all(isinstance(one, Tensor) and one.layout is torch.strided for one in content.values())
    if not plain or any(one.is_quantized or one.is_meta for one in content.values()):
        raise ConfigError("initial-weights", path, "must hold a state dict: plain arrays by name")
    return dict(content)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _difference(expected: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> str | None:
    for key, array in expected.items():
        if key not in stored:
            return f"{key} is missing"
        if stored[key].shape != array.shape:
            return f"{key} has shape {tuple(stored[key].shape)}, expected {tuple(array.shape)}"
        if stored[key].is_floating_point() != array.is_floating_point():
            return f"{key} holds {stored[key].dtype}, expected {array.dtype}"
        if not torch.isfinite(stored[key].to(array.dtype)).all():
            return f"{key} has a value that is not finite in {array.dtype}"
    return next((f"{printable(key)} is not in the model" for key in stored if key not in expected), None)
