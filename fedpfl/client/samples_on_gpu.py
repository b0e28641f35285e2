"""Keeps samples in the memory of the GPU that trains on them."""

from __future__ import annotations

from typing import Callable, Hashable

import torch
from torch import Tensor

from ..core.pixels import scale
from ..core.samples import Samples
from ..training.augment import pixels_of

# Images below this size stay floats: to scale them takes longer than to have them read.
MIN_BYTES = 2**20


class PlacedSamples:
    """Keeps samples on a device, up to ``room`` bytes.

    Images stay there as pixels, a quarter of the floats' size, and are scaled each time they are asked for.
    ``normalize`` is how; None if the samples are no images.
    """

    def __init__(self, device: str, room: int, normalize: str | None) -> None:
        self.room = room
        self._device, self._normalize = device, normalize
        self._kept: dict[Hashable, tuple[Tensor, Tensor]] = {}

    def get(self, key: Hashable, make: Callable[[], Samples]) -> Samples:
        """Return the samples of a key, or else those that ``make`` gives, on the device."""
        if key not in self._kept:
            samples = Samples(*(tensor.to(self._device) for tensor in make()))
            packed = self._packed(samples.x), samples.y
            self.room -= sum(tensor.nbytes for tensor in packed)
            if self.room < 0:
                self.room += sum(tensor.nbytes for tensor in packed)
                return samples
            self._kept[key] = packed
        x, y = self._kept[key]
        return Samples(scale(x, self._normalize) if self._normalize and x.dtype == torch.uint8 else x, y)

    def _packed(self, x: Tensor) -> Tensor:
        """Return images as pixels if they are large and nothing is lost, all other samples as they are."""
        if self._normalize is None or x.nbytes < MIN_BYTES:
            return x
        pixels = pixels_of(x, self._normalize)
        return pixels if torch.equal(scale(pixels, self._normalize), x) else x
