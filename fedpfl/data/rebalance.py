"""Rebalanced data: each class of a client cut down or augmented to the same number of samples.

Liu, Yang, Wang: FedReG: Recouping the Global Model in Personalized Federated Learning, Section 3.4 and Algorithm 3.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from ..core.errors import ConfigError
from .federation import Samples, scale

if TYPE_CHECKING:
    from torch import Tensor

THRESHOLDS: Mapping[str, Callable[[Sequence[int]], float]] = {
    "average": statistics.mean,
    "median": statistics.median,
    "max": lambda sizes: max(sizes),
    "second-min": lambda sizes: sorted(sizes)[:2][-1],
}
AUGMENTATIONS = ("simple", "auto", "none")
# A client with fewer training samples may be filled up as far as one with this many: the smallest grow by the largest
# factors (654 with 7 samples), and a set of that size is still cheap. Counted so, the paper's tables need a growth of
# at most 9.6 (all thresholds, seeds 1 to 5; table 1, max), or 2.3 with the threshold average.
LEAST_COUNTED = 1000


def most_rebalanced(class_counts: np.ndarray, max_growth: float) -> int:
    """Return how many samples a client's rebalanced set may hold.

    Parameters
    ----------
    class_counts : ndarray of int, shape (classes of the task,)
        The client's training samples of each class.
    max_growth : float
        The multiple of the client's samples, of which at least :data:`LEAST_COUNTED` are counted.
    """
    return int(max_growth * max(int(class_counts.sum()), LEAST_COUNTED))


def quota(class_counts: np.ndarray, threshold: float, max_growth: float) -> int:
    """Return Q = t / C, the samples of each class in a client's rebalanced set (Equation 7).

    Parameters
    ----------
    class_counts : ndarray of int, shape (classes of the task,)
        The client's training samples of each class; C of them are not 0.
    threshold : float
        t, in samples; follows from what other clients say of themselves.
    max_growth : float
        See :func:`most_rebalanced`, which bounds Q·C.

    Returns
    -------
    int
        The nearest whole number (½ goes up), at least 1.
    """
    present = max(1, int(np.count_nonzero(class_counts)))
    most = most_rebalanced(class_counts, max_growth)
    return max(1, min(int(min(threshold, most) / present + 0.5), most // present))


def effective_samples(class_counts: np.ndarray, quota: int) -> int:
    """Return n^r = Σ_c min(n_c, Q), the samples of a rebalanced set that are not copies (Equation 6)."""
    return int(np.minimum(class_counts, quota).sum())


def rebalance(samples: Samples, quota: int, augmentation: str, rng: np.random.Generator) -> Samples:
    """Return a set with ``quota`` samples of each class that ``samples`` has.

    Of a class with more samples as many are drawn; one with fewer is kept whole, and copies of samples drawn from it
    with replacement are added, which are augmented if they are images.

    Parameters
    ----------
    samples : Samples
        A client's training data.
    quota : int
        Q, at least 1.
    augmentation : str
        What happens to copies of images. ``simple``: flip, crop, rotation, colour jitter (not of grey images) and
        affine map, each slight and at random; ``auto``: AutoAugment's policy for CIFAR-10; ``none``: nothing.
    rng : numpy Generator
        The source of all random choices.

    Returns
    -------
    Samples
        The samples that were kept in their order, then the copies; new tensors.

    Raises
    ------
    ConfigError
        There is no torchvision with ``transforms.v2`` (0.15), or ``auto`` gets images that are neither grey nor RGB.
    """
    import torch

    labels = samples.y.cpu().numpy()
    kept: list[np.ndarray] = [np.empty(0, np.int64)]
    copied: list[np.ndarray] = [np.empty(0, np.int64)]
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        kept.append(rng.choice(own, quota, replace=False) if len(own) > quota else own)
        copied.append(rng.choice(own, max(0, quota - len(own))))
    originals, copies = (
        torch.from_numpy(positions).to(samples.y.device)
        for positions in (np.sort(np.concatenate(kept)), np.concatenate(copied))
    )
    x = samples.x[copies]
    if x.dim() == 4 and len(x) and augmentation != "none":
        x = _augmented(x, augmentation, int(rng.integers(2**63 - 1)))
    x = torch.cat([samples.x[originals], x])
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return Samples(x, samples.y[torch.cat([originals, copies])])


def _augmented(x: Tensor, augmentation: str, seed: int) -> Tensor:
    """Change each image by itself; ``x`` is as :class:`Samples` describes it."""
    import torch

    transform = _transform(augmentation, *x.shape[1:])
    # The pixels that the data were made from: AutoAugment takes no others.
    pixels = x.mul(127.5).add_(127.5).round_().to(torch.uint8)
    # torchvision draws from torch's global generator, and once for all images of a batch.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return scale(torch.stack([transform(image) for image in pixels]))


def _transform(augmentation: str, channels: int, height: int, width: int) -> Any:
    """Return what changes one image; the strengths of ``simple`` are this project's, as the paper gives none."""
    # Imported here: it takes two seconds, and devices that never augment need not have it.
    try:
        from torchvision.transforms import v2
    except ImportError as error:
        raise ConfigError(
            "augmentation", augmentation, f"needs torchvision 0.15 or later ({error}), or none"
        ) from error
    if augmentation == "auto":
        if channels not in (1, 3):
            raise ConfigError(
                "augmentation", augmentation, f"is for grey and colour images; these have {channels} channels"
            )
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
