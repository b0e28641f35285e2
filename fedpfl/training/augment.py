"""Random changes of images, drawn from a generator of the caller's: the same bits in every process."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import custom
from ..core.errors import ConfigError
from ..data.pixels import HALF, pixels_of, scale

NO_AUGMENTATION, FLIP_CROP, RANDAUGMENT = "none", "flip-crop", "randaugment"
AUGMENTATIONS = (NO_AUGMENTATION, FLIP_CROP, RANDAUGMENT)
BORDER = 4

# (samples of a batch, generator) → the samples to train on, of the same shape.
Augmentation = Callable[[Tensor, np.random.Generator], Tensor]


def find(name: str, normalize: str = HALF) -> Augmentation | None:
    """Return what the setting ``augmentation`` names, for pixels scaled by ``normalize``; None for no changes."""
    if name == NO_AUGMENTATION:
        return None
    if name == FLIP_CROP:
        return flip_crop
    return partial(_randaugment, transforms(name).RandAugment(), normalize) if name == RANDAUGMENT else _own(name)


def transforms(name: str) -> Any:
    """Import torchvision's transforms, which takes two seconds and which devices that never augment need not have."""
    try:
        from torchvision.transforms import v2
    except ImportError as error:
        raise ConfigError("augmentation", name, f"needs torchvision 0.15 or later ({error}), or none") from error
    return v2


def transformed(x: Tensor, transform: Callable[[Tensor], Tensor], seed: int, normalize: str) -> Tensor:
    """Change each image by itself by a transform of torchvision; ``x`` is as :func:`scale` made it."""
    # The pixels that the data were made from: some transforms take no others.
    pixels = pixels_of(x, normalize)
    # torchvision draws from torch's global generator, and once for all images of a batch.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return scale(torch.stack([transform(image) for image in pixels]), normalize)


def _randaugment(transform: Callable[[Tensor], Tensor], normalize: str, x: Tensor, rng: np.random.Generator) -> Tensor:
    if x.shape[1] not in (1, 3):
        allowed = f"is for grey and colour images; these have {x.shape[1]} channels"
        raise ConfigError("augmentation", RANDAUGMENT, allowed)
    return transformed(x, transform, int(rng.integers(2**63 - 1)), normalize)


def _own(name: str) -> Augmentation:
    function = custom.guarded("augmentation", name, custom.find("augmentation", name))

    def augment(x: Tensor, rng: np.random.Generator) -> Tensor:
        found = function(x.clone(), rng)
        if not isinstance(found, Tensor) or found.shape != x.shape or found.dtype != x.dtype:
            has = f"{found.dtype} {tuple(found.shape)}" if isinstance(found, Tensor) else custom.article(found)
            allowed = f"returns {has}; it must return a tensor of {x.dtype} {tuple(x.shape)}, as it is given"
            raise ConfigError("augmentation", name, allowed)
        return found

    return augment


def flip_crop(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Return images n × channels × height × width, each mirrored or not and shifted by up to ``BORDER`` pixels."""
    n, _, height, width = x.shape
    border = min(BORDER, height - 1, width - 1)
    top, left = rng.integers(0, 2 * border + 1, (2, n))
    mirrored = rng.random(n) < 0.5
    rows, columns = top[:, None] + np.arange(height), left[:, None] + np.arange(width)
    columns[mirrored] = columns[mirrored, ::-1]
    padded = F.pad(x, (border,) * 4, mode="reflect").permute(0, 2, 3, 1)
    images, down, across = np.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]
    places = [torch.from_numpy(np.broadcast_to(at, (n, height, width)).copy()) for at in (images, down, across)]
    return padded[tuple(at.to(x.device) for at in places)].permute(0, 3, 1, 2)
