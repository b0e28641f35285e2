"""Rebalanced data: each class of a client cut down or augmented to the same number of samples.

Liu, Yang, Wang: FedReG: Recouping the Global Model in Personalized Federated Learning, Section 3.4 and Algorithm 3.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from ...core.pixels import HALF
from ...core.samples import Samples
from ...training.augment import require_grey_or_colour, transformed, transforms

if TYPE_CHECKING:
    from torch import Tensor

THRESHOLDS: Mapping[str, Callable[[Sequence[int]], float]] = {
    "average": statistics.mean,
    "median": statistics.median,
    "max": lambda sizes: max(sizes),
    "second-min": lambda sizes: sorted(sizes)[:2][-1],
}
# A client with fewer training samples may be filled up as far as one with this many: the smallest grow by the largest
# factors (654 with 7 samples), and a set of that size is still cheap. Counted so, the paper's tables need a growth of
# at most 9.6 (all thresholds, seeds 1 to 5; table 1, max), or 2.3 with the threshold average.
MIN_COUNTED = 1000


def max_rebalanced(class_counts: np.ndarray, max_growth: float) -> int:
    """Return the largest size of a rebalanced set; at least :data:`MIN_COUNTED` of its own samples are counted."""
    return int(max_growth * max(int(class_counts.sum()), MIN_COUNTED))


def quota(class_counts: np.ndarray, threshold: float, max_growth: float) -> int:
    """Return Q = t / C, the samples of each class in a client's rebalanced set (Equation 7), at least 1; ½ goes up.

    C is the number of classes of which the client has samples. t follows from what other clients say of themselves; so
    :func:`max_rebalanced` bounds Q·C.
    """
    present = max(1, int(np.count_nonzero(class_counts)))
    most = max_rebalanced(class_counts, max_growth)
    return max(1, min(int(min(threshold, most) / present + 0.5), most // present))


def effective_samples(class_counts: np.ndarray, quota: int) -> int:
    """Return n^r = Σ_c min(n_c, Q), the samples of a rebalanced set that are not copies (Equation 6)."""
    return int(np.minimum(class_counts, quota).sum())


def rebalance(
    samples: Samples, quota: int, augmentation: str, rng: np.random.Generator, normalize: str = HALF
) -> Samples:
    """Return ``quota`` samples of each class that ``samples`` has, the kept ones in their order, then copies.

    Of a class with more samples as many are drawn; one with fewer is kept whole, and copies of samples drawn from it
    with replacement are added. Copies of images are augmented: ``simple`` is flip, crop, rotation, colour jitter (not
    of grey images) and affine map, each slight and at random; ``auto`` is AutoAugment's policy for CIFAR-10.
    """
    import torch

    labels = samples.y.cpu().numpy()
    chosen: list[np.ndarray] = [np.empty(0, np.int64)]
    copied: list[np.ndarray] = [np.empty(0, np.int64)]
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        chosen.append(rng.choice(places, quota, replace=False) if len(places) > quota else places)
        copied.append(rng.choice(places, max(0, quota - len(places))))
    originals, copies = (
        torch.from_numpy(positions).to(samples.y.device)
        for positions in (np.sort(np.concatenate(chosen)), np.concatenate(copied))
    )
    x = samples.x[copies]
    if x.dim() == 4 and len(x) and augmentation != "none":
        x = augmented(x, augmentation, int(rng.integers(2**63 - 1)), normalize)
    x = torch.cat([samples.x[originals], x])
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return Samples(x, samples.y[torch.cat([originals, copies])])


def augmented(x: Tensor, augmentation: str, seed: int, normalize: str) -> Tensor:
    """Change each image by itself; ``x`` is as :func:`scale` made it."""
    transform = _transform(augmentation, *x.shape[1:])
    return transformed(x, transform, seed, normalize, "fedreg-augmentation", augmentation)


def _transform(augmentation: str, channels: int, height: int, width: int) -> Any:
    """Return the change of one image; the strengths of ``simple`` are this project's, as the paper gives none."""
    v2 = transforms(augmentation)
    if augmentation == "auto":
        require_grey_or_colour(augmentation, channels)
        return v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10)
    bilinear = v2.InterpolationMode.BILINEAR
    steps: list[Any] = [
        v2.RandomHorizontalFlip(),
        v2.RandomCrop((height, width), padding=max(1, min(height, width) // 8)),
        v2.RandomRotation(15, interpolation=bilinear),
        v2.RandomAffine(0, translate=(0.1, 0.1), scale=(0.9, 1.1), interpolation=bilinear),
    ]
    if channels == 3:
        steps.insert(3, v2.ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.1))
    return v2.Compose(steps)
