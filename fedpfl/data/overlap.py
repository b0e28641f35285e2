"""Samples that are cut from one series or text, and share rows or characters with the next ones."""

from __future__ import annotations

from typing import Sequence

from ..core.errors import DataError
from .dataset import Dataset
from .partitioners import held_out
from .settings import DataSettings


def overlap_of(length: int, step: int) -> int:
    """Return how many samples after one overlap with it, where one of ``length`` rows starts every ``step`` rows."""
    return max(0, -(-length // step) - 1)


def first_apart(n: int, count: int, overlap: int, settings: DataSettings, client: int, what: str) -> int:
    """Return how many of the first of a client's n samples share nothing with the last ``count``.

    ``DataError`` if none does. ``overlap`` is the data set's. ``what`` is the purpose of the last ones: ``test`` or
    ``validation``.
    """
    if n - count <= overlap:
        mine, smaller = ("training samples", "a smaller validation-fraction, ") if what != "test" else ("samples", "")
        raise DataError(
            f'split = "time": client {client} has {n} {mine}, of which the last {count} are cut off for {what} and all '
            f"others overlap with these: use {smaller}{larger_step(settings, ', ')}fewer clients or longer series"
        )
    return n - count - overlap


def larger_step(settings: DataSettings, end: str) -> str:
    """Return an error's advice to let samples overlap less; nothing where ``window-step`` is not set."""
    return f"a larger window-step (now {settings.window_step}){end}" if settings.window_step else ""


def kept(sizes: Sequence[int], overlap: int, settings: DataSettings) -> list[int]:
    """Return how many of each owner's samples a cut by time keeps; 0 where it leaves none to train on."""

    def of_owner(left: int) -> int:
        count = left - overlap
        for share in (settings.test_fraction, settings.validation_fraction):
            off = held_out(left, share)
            left -= off + overlap if off else 0
        return count if left > 0 else 0

    return [of_owner(size) for size in sizes]


def remark(data: Dataset) -> str:
    """Return a line on overlapping samples that are divided into training and test at random."""
    samples, parts = ("texts", "characters") if data.vocabulary else ("windows", "rows")
    if data.y_test is not None:
        way = 'split = "given"'
    else:
        way = 'split = "time" or ' + ("a larger window-step" if data.vocabulary else "a column split")
    return (
        f"{data.name}: {samples} overlap, so test {samples} share {parts} with training {samples}; {way} keeps them "
        "apart"
    )
