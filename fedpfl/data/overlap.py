"""Samples that are cut from one series or text, and share rows or characters with the next ones."""

from __future__ import annotations

from ..core.errors import DataError
from .settings import DataSettings


def cuts_plays(settings: DataSettings) -> bool:
    """Return whether ``window-step`` counts the characters of plays."""
    return settings.dataset == "shakespeare" or (settings.dataset == "clients" and not settings.window_length)


def shared(settings: DataSettings) -> int:
    """Return how many samples after one share rows or characters with it."""
    length, step = settings.window_length, settings.window_step
    if step and cuts_plays(settings):
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
