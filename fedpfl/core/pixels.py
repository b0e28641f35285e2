"""Normalisation of pixels into the numbers that models take, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

if TYPE_CHECKING:
    import torch

HALF = "half"
# Mean and deviation of each channel, as shares of the brightest value; a single one is that of all channels.
NORMALIZATIONS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    HALF: ((0.5,), (0.5,)),
    "cifar-10": ((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    "cifar-100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "svhn": ((0.438, 0.444, 0.473), (0.1751, 0.1771, 0.1744)),
}


def fits_channels(normalize: str, channels: int) -> bool:
    """Tell whether a normalisation is for images with this number of channels."""
    return len(NORMALIZATIONS[normalize][0]) in (1, channels)


def scale(pixels: torch.Tensor, normalize: str = HALF) -> torch.Tensor:
    """Return images n × channels × height × width of uint8 as models take them: (v/255 − mean) / deviation."""
    import torch

    mean, deviation = (tensor.to(pixels.device) for tensor in of_channels(normalize))
    # A tensor: by a number, GPUs multiply with its rounded inverse.
    x = pixels.to(torch.float32).div_(torch.tensor(255.0, device=pixels.device)).sub_(mean).div_(deviation)
    return x.contiguous(memory_format=torch.channels_last)


def of_channels(normalize: str) -> tuple[torch.Tensor, ...]:
    """Return mean and deviation of each channel, of shape channels × 1 × 1."""
    import torch

    return tuple(torch.tensor(values)[:, None, None] for values in NORMALIZATIONS[normalize])
