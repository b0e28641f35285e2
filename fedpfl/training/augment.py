"""Random changes of images, drawn from a generator of the caller's: the same bits in every process."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

NO_AUGMENTATION = "none"
AUGMENTATIONS = (NO_AUGMENTATION, "flip-crop")
BORDER = 4


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
