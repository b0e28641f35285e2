"""Samples that are cut from one series or text, and share rows or characters with the next ones."""

from __future__ import annotations

import numpy as np

from ..core.errors import DataError
from .dataset import Dataset
from .settings import DataSettings


def _cuts_plays(settings: DataSettings) -> bool:
    """Return whether ``window-step`` counts the characters of plays."""
    return settings.dataset == "shakespeare" or (settings.dataset == "clients" and not settings.window_length)


def shared(settings: DataSettings) -> int:
    """Return how many samples after one share rows or characters with it."""
    length, step = settings.window_length, settings.window_step
    if step and _cuts_plays(settings):
        from .datasets.text import CHUNK

        # The character to predict belongs to a sample; of texts that do not overlap it is the next one's first.
        length = CHUNK + 1 if step < CHUNK else 0
    return max(0, -(-length // step) - 1) if step else 0


def first_apart(n: int, count: int, settings: DataSettings) -> int:
    """Return how many of the first of n samples share nothing with the last ``count``; ``DataError`` if none does."""
    overlapping = shared(settings)
    if count and n - count <= overlapping:
        raise DataError(
            f'split = "time": a client has {n} samples, of which the last {count} are cut off and all others overlap '
            f"with these: use a larger window-step (now {settings.window_step}), fewer clients or longer series"
        )
    return max(0, n - count - overlapping)


def overlaps(data: Dataset, settings: DataSettings) -> list[str]:
    """Return a line if training and test samples that are divided at random have rows or characters in common."""
    if not _cuts_plays(settings) and shared(settings):
        return [
            f"{data.name}: windows overlap (window-step), so test windows share rows with training windows; a column "
            'split and split = "given" keep them apart'
        ]
    if data.y_test is None:
        overlap, way = shared(settings) > 0, 'split = "time" or window-step = 80'
    else:  # LEAF's, which are not cut here: they begin at each character
        overlap, way = settings.dataset == "shakespeare" and _run_on(data.x_train), 'split = "given"'
    said = f"{data.name}: texts overlap, so test texts share characters with training texts; {way} keeps them apart"
    return [said] if overlap else []


def _run_on(texts: np.ndarray) -> bool:
    """Return whether texts begin one character after another, by the first ones."""
    first = texts[:1000]
    return bool((first[1:, :-1] == first[:-1, 1:]).all(axis=1).any())
