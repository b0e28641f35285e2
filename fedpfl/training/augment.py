"""Random changes of images, drawn from a generator of the caller's: the same bits in every process."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import references, user_code
from ..core.errors import ConfigError
from ..core.pixels import HALF, of_channels, scale

NO_AUGMENTATION, FLIP_CROP = "none", "flip-crop"
BORDER = 4
ROTATION = 15  # degrees

# Levels below 0 and above 255 that count as 0 and 255: resizing by splines and noise overshoot. Floats up to ±2.
_BEYOND = 128

# By torchvision, one image after another: (its module transforms.v2, height and width) → the transform of an image.
_BY_TORCHVISION: dict[str, Callable[[Any, tuple[int, int]], Callable[[Tensor], Tensor]]] = {
    "randaugment": lambda v2, size: v2.RandAugment(),
    # FedDecomp's program, Tiny ImageNet and CIFAR-100.
    "flip-rotate": lambda v2, size: v2.Compose([v2.RandomHorizontalFlip(), v2.RandomRotation(ROTATION)]),
    "crop-flip-rotate": lambda v2, size: v2.Compose(
        [v2.RandomCrop(size, padding=BORDER), v2.RandomHorizontalFlip(), v2.RandomRotation(ROTATION)]
    ),
    # Factorized-FL's program (the paper, appendix C.3: crop, flip and colour jitter).
    "zoom-flip-colour": lambda v2, size: v2.Compose([
        v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8), v2.RandomGrayscale(0.2),
    ]),
}  # fmt: skip

# (samples of a batch, generator) → the samples to train on, of the same shape.
Augmentation = Callable[[Tensor, np.random.Generator], Tensor]


def find(name: str, normalize: str = HALF) -> Augmentation | None:
    """Return the function of a setting ``augmentation`` for pixels scaled by ``normalize``; None for no changes."""
    if name == NO_AUGMENTATION:
        return None
    if name == FLIP_CROP:
        return flip_crop
    return partial(_by_torchvision, name, transforms(name), normalize) if name in _BY_TORCHVISION else _of_user(name)


def transforms(name: str) -> Any:
    """Import torchvision's transforms: 2 s and 160 MiB, mostly compilers of torch that it imports; once a process."""
    try:
        from torchvision.transforms import v2
    except ImportError as error:
        raise ConfigError("augmentation", name, f"needs torchvision 0.15 or later ({error}), or none") from error
    return v2


def require_grey_or_colour(name: str, channels: int) -> None:
    """Refuse images with other numbers of channels, which torchvision's transforms cannot take."""
    if channels not in (1, 3):
        raise ConfigError("augmentation", name, f"is for grey and colour images; these have {channels} channels")


def transformed(
    x: Tensor, transform: Callable[[Tensor], Tensor], seed: int, normalize: str, key: str, name: str
) -> Tensor:
    """Change each image by itself by a transform of torchvision; ``x`` is as :func:`scale` made it.

    ``ConfigError`` of the setting ``key``, whose value is ``name``, for what are no such images.
    """
    levels = _levels(x, normalize)
    low, high = (float(value) for value in levels.aminmax())
    if not -_BEYOND <= low <= high <= 255 + _BEYOND:
        values = f"{float(x.min()):.4g} … {float(x.max()):.4g}"
        raise ConfigError(key, name, f"is for pixels, uint8 or floats of −1 … 1; these are {values}: use none")
    # The pixels that the data were made from: some transforms take no others. What is beyond would wrap around.
    pixels = levels.clamp_(0, 255).to(torch.uint8)
    # torchvision draws from torch's global generator, and once for all images of a batch.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return scale(torch.stack([transform(image) for image in pixels]), normalize)


def _by_torchvision(name: str, v2: Any, normalize: str, x: Tensor, rng: np.random.Generator) -> Tensor:
    channels, height, width = x.shape[1:]
    require_grey_or_colour(name, channels)
    transform, seed = _BY_TORCHVISION[name](v2, (height, width)), int(rng.integers(2**63 - 1))
    return transformed(x, transform, seed, normalize, "augmentation", name)


def _of_user(name: str) -> Augmentation:
    function = user_code.guarded("augmentation", name, user_code.find("augmentation", name))

    def augment(x: Tensor, rng: np.random.Generator) -> Tensor:
        changed = function(x.clone(), rng)
        if not isinstance(changed, Tensor) or changed.shape != x.shape or changed.dtype != x.dtype:
            has = (
                f"{changed.dtype} {tuple(changed.shape)}"
                if isinstance(changed, Tensor)
                else references.article(changed)
            )
            allowed = f"returns {has}; it must return a tensor of {x.dtype} {tuple(x.shape)}, as it is given"
            raise ConfigError("augmentation", name, allowed)
        return changed

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
    places = [torch.from_numpy(np.broadcast_to(index, (n, height, width)).copy()) for index in (images, down, across)]
    return padded[tuple(place.to(x.device) for place in places)].permute(0, 3, 1, 2)


def pixels_of(x: Tensor, normalize: str = HALF) -> Tensor:
    """Return the uint8 images that :func:`scale` made ``x`` of."""
    return _levels(x, normalize).to(torch.uint8)


def _levels(x: Tensor, normalize: str) -> Tensor:
    """Return the values of the pixels as floats, also those beyond 0 … 255."""
    return brightness(x, normalize).mul_(255).round_()


def brightness(x: Tensor, normalize: str = HALF) -> Tensor:
    """Return the shares of the brightest value, from 0 to 1, that :func:`scale` made ``x`` of; x is not changed."""
    mean, deviation = (tensor.to(x.device) for tensor in of_channels(normalize))
    return x.mul(deviation).add_(mean)
