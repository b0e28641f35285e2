"""Euclidean norms of vectors, and what is usual of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..core.layout import Layout

# Values that are squared at a time: they stay in a core's cache.
BLOCK = 1 << 14


def distance(vector: np.ndarray, start: np.ndarray | None = None) -> float:
    """Return ‖vector − start‖ (‖vector‖ without a start), computed in float64 without a copy of the whole."""
    block, other = np.empty((2, min(vector.size, BLOCK)), np.float64)
    total = 0.0
    for at in range(0, vector.size, BLOCK):
        values = vector[at : at + BLOCK]
        difference = block[: len(values)]
        difference[...] = values
        if start is not None:
            origin = other[: len(values)]
            origin[...] = start[at : at + BLOCK]
            np.subtract(difference, origin, out=difference)
        total += float(np.einsum("i,i->", difference, difference))
    return math.sqrt(total)


def fresh_norm(layout: Layout, selected: Callable[[str], bool]) -> float:
    """Return the norm of the selected arrays if their values had a standard deviation of ½ / √fan-in."""
    shapes = [shape for name, shape in layout.entries if selected(name)]
    return math.sqrt(sum(shape[0] if len(shape) > 1 else math.prod(shape) for shape in shapes)) / 2
