"""Random sources. Every random choice of a run comes from its seed and from where the choice is made.

``generator(seed, "batches", client, round)`` gives the same stream on every machine, in every process and whatever
was drawn before: a run can be resumed, moved to real devices or computed in another order without changing a bit.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from typing import TYPE_CHECKING, Any, Iterator

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def generator(seed: int, *path: int | str) -> np.random.Generator:
    """Return the random generator of one place in a run.

    Parameters
    ----------
    seed : int
        The run's seed, at least 0.
    *path : int or str
        What the numbers are for, for example ``"batches", client, round``. Integers are at least 0. A purpose has
        always the same number of words: NumPy takes a missing last one for a 0.
    """
    words = [seed] + [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in path]
    # NumPy makes a list of whole numbers into such an array more slowly, one by one.
    entropy = np.array(words, np.uint32) if max(words) < 2**32 else words
    return np.random.default_rng(np.random.SeedSequence(entropy))


def torch_seed(seed: int, *path: int | str) -> int:
    """Return a seed for torch's own generators that belongs to one place in a run."""
    return int(generator(seed, *path).integers(2**63 - 1))


def seed_global(seed: int, device: str = "cpu") -> None:
    """Set the global generators of torch, NumPy and Python, from which a user's model may draw.

    Torch's are those of the CPU and, with another ``device``, there: ``torch.manual_seed`` sets those of every kind of
    device that there may be, which takes a millisecond.
    """
    import torch

    torch.default_generator.manual_seed(seed)
    if device == "cuda":
        torch.cuda.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def torch_state(device: str = "cpu") -> Tensor:
    """Return the state of the generator from which torch draws on a device."""
    import torch

    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()


def set_torch_state(state: Tensor, device: str = "cpu") -> None:
    """Have torch draw on a device what follows a state."""
    import torch

    if device == "cuda":
        torch.cuda.set_rng_state(state)
    else:
        torch.set_rng_state(state)


def shared_states() -> list[Any]:
    """Return the states of the generators that all code of a process shares: Python's, NumPy's and torch's."""
    import torch

    numpy: Any = np.random.get_state(legacy=False)
    state = {**numpy, "state": [numpy["state"]["key"].tolist(), numpy["state"]["pos"]]}
    return [random.getstate(), state, torch.get_rng_state().tolist()]


@contextlib.contextmanager
def global_state_kept() -> Iterator[None]:
    """Put the global generators of torch (on the CPU), NumPy and Python back to where they were before."""
    import torch

    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators for a ``with`` statement; then restore them.

    Code of users that draws from them thus gives the same values in every process.
    """
    with global_state_kept():
        seed_global(seed)
        yield
