"""Slices of the shared arrays: a client with a narrower model has a part of each array, of the same name.

A slice has some channels of each axis along which the narrower model is narrower. Which ones the server alone knows:
the client has a layout of small arrays, and nothing in it says where they lie in the large ones.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

import numpy as np

from .errors import LayoutError
from .layout import Layout


def slice_layout(whole: Layout, text: str) -> Layout:
    """Return a slice's layout from the network: the whole's names and axes, none longer or empty (``LayoutError``)."""
    received = Layout.from_text(text)
    for expected, name in zip_longest(whole.names, received.names):
        if name != expected:
            raise LayoutError(f"array {name!r} arrived, expected a slice of array {expected!r}")
    replace(whole, entries=received.entries).require(received)
    for (name, large), (_, small) in zip(whole.entries, received.entries):
        if len(small) != len(large) or not all(min(1, most) <= size <= most for size, most in zip(small, large)):
            raise LayoutError(f"array {name!r} of shape {small} arrived, expected a slice of shape {large}")
    return replace(received, buffers=whole.buffers)


def places(whole: Layout, part: Layout, moved: int = 0) -> np.ndarray:
    """Return where the values of a slice lie in the flat vector of the whole arrays: int64, shape (part.size,).

    A narrower axis has the channels from ``moved`` on, modulo their number: k of K from ``moved % K``. So axes with the
    same channels have the same of them. The flattened output of a convolution has some values for each channel.

    Examples
    --------
    >>> whole = Layout.of([("weight", (3, 2)), ("bias", (3,))])
    >>> part = Layout.of([("weight", (2, 2)), ("bias", (2,))])
    >>> places(whole, part).tolist(), places(whole, part, moved=2).tolist()
    ([0, 1, 2, 3, 6, 7], [4, 5, 0, 1, 8, 6])
    """
    made: list[np.ndarray] = []
    channels: list[tuple[int, int]] = []  # of the layers so far: all, and those in the slice
    shapes = dict(part.entries)
    for (name, large), place in zip(whole.entries, whole.slices().values()):
        small = shapes[name]
        axes = [
            _window(sizes, _values_a_channel(sizes, channels) if axis else 1, moved)
            for axis, sizes in enumerate(zip(large, small))
        ]
        channels[:0] = list(zip(large, small))[:1]
        numbers = np.arange(place.start, place.stop).reshape(large)
        made.append(numbers[np.ix_(*axes)].reshape(-1) if axes else numbers.reshape(-1))
    return np.concatenate(made) if made else np.zeros(0, np.int64)


def _values_a_channel(sizes: tuple[int, int], channels: list[tuple[int, int]]) -> int:
    """Return how many values of an input axis are of one channel of the layer before: the latest that fits."""
    for count, kept in [] if sizes in channels else channels:
        if sizes[0] % count == 0 and sizes[1] == sizes[0] // count * kept:
            return sizes[0] // count
    return 1


def _window(sizes: tuple[int, int], values: int, moved: int) -> np.ndarray:
    """Return the positions on an axis, which has so many values a channel."""
    size, kept = sizes
    if kept == size:
        return np.arange(size)
    count = size // values
    chosen = (moved + np.arange(kept // values)) % count
    return (chosen[:, None] * values + np.arange(values)).reshape(-1)
