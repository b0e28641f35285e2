"""Samples that are cut from one series or text, and share rows or characters with the next ones."""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import numpy as np

from ..core.errors import DataError
from .dataset import Dataset
from .partitioners import held_out
from .settings import DataSettings


def _cuts_plays(settings: DataSettings) -> bool:
    """Return whether ``window-step`` counts the characters of plays."""
    if settings.dataset != "clients" or settings.window_length or not settings.window_step:
        return settings.dataset == "shakespeare"
    # Among clients' files only plays, which are JSON, can be cut without window-length.
    return bool(settings.data) and any(Path(settings.data).expanduser().glob("[!.]*.json"))


def shared(settings: DataSettings) -> int:
    """Return how many samples after one share rows or characters with it."""
    length, step = settings.window_length, settings.window_step
    if step and _cuts_plays(settings):
        from .datasets.text import CHUNK

        # The character to predict belongs to a sample; of texts that do not overlap it is the next one's first.
        length = CHUNK + 1 if step < CHUNK else 0
    return max(0, -(-length // step) - 1) if step else 0


def first_apart(n: int, count: int, settings: DataSettings, client: int, what: str) -> int:
    """Return how many of the first of a client's n samples share nothing with the last ``count``.

    ``DataError`` if none does. ``what`` is the purpose of the last ones: ``test`` or ``validation``.
    """
    overlapping = shared(settings)
    if n - count <= overlapping:
        mine, smaller = ("training samples", "a smaller validation-fraction, ") if what != "test" else ("samples", "")
        raise DataError(
            f'split = "time": client {client} has {n} {mine}, of which the last {count} are cut off for {what} and all '
            f"others overlap with these: use {smaller}a larger window-step (now {settings.window_step}), fewer clients "
            "or longer series"
        )
    return n - count - overlapping


def kept(sizes: Sequence[int], settings: DataSettings) -> list[int]:
    """Return how many of each owner's samples a cut by time keeps; 0 where it leaves none to train on."""
    overlapping = shared(settings)

    def of_owner(left: int) -> int:
        count = left - overlapping
        for share in (settings.test_fraction, settings.validation_fraction):
            off = held_out(left, share)
            left -= off + overlapping if off else 0
        return count if left > 0 else 0

    return [of_owner(size) for size in sizes]


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
