"""Random sources. Every random choice of a run comes from its seed and from where the choice is made.

``generator(seed, "batches", client, round)`` gives the same stream on every machine, in every process and whatever
was drawn before: a run can be resumed, moved to real devices or computed in another order without changing a bit.
"""

from __future__ import annotations

import random
import zlib

import numpy as np


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """Return the random generator of one place in a run, named by words and numbers of at least 0.

    A purpose has always the same number of words: NumPy takes a missing last one for a 0.
    """
    numbers = [seed] + [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    # NumPy makes a list of whole numbers into such an array more slowly, one by one.
    entropy = np.array(numbers, np.uint32) if max(numbers) < 2**32 else numbers
    return np.random.default_rng(np.random.SeedSequence(entropy))


def torch_seed(seed: int, *path: int | str) -> int:
    """Return a seed for torch's own generators that belongs to one place in a run."""
    return int(generator(seed, *path).integers(2**63 - 1))


def seed_global(seed: int, device: str = "cpu") -> None:
    """Set the global generators of torch, here and on ``device`` alone (all take a millisecond), NumPy and Python."""
    import torch

    torch.default_generator.manual_seed(seed)
    if device == "cuda":
        torch.cuda.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
