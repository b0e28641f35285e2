"""Euclidean norms of vectors, and what is usual of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.layout import Layout

# Values that are squared at a time: they stay in a core's cache, and BLAS uses one thread.
BLOCK = 1 << 13


def distance(vector: np.ndarray, start: np.ndarray | None = None) -> float:
    """Return ‖vector − start‖ (‖vector‖ without a start) of flat vectors, without a copy of the whole."""
    total = _squares(vector, start, np.float32) if vector.dtype == np.float32 else math.inf
    # What is too large for float32 is rare, and never usual.
    return math.sqrt(total if math.isfinite(total) else _squares(vector, start, np.float64))


def _squares(vector: np.ndarray, start: np.ndarray | None, dtype: type[np.floating[Any]]) -> float:
    block, total = np.empty(min(vector.size, BLOCK), dtype), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for at in range(0, vector.size, BLOCK):
            values = vector[at : at + BLOCK]
            difference = block[: len(values)]
            if start is None:
                difference[...] = values
            else:
                np.subtract(values, start[at : at + BLOCK], out=difference, dtype=dtype, casting="unsafe")
            total += float(np.dot(difference, difference))
    return total


def fresh_norm(layout: Layout, selected: Callable[[str], bool]) -> float:
    """Return the norm of the selected arrays if their values had a standard deviation of ½ / √fan-in."""
    shapes = [shape for name, shape in layout.entries if selected(name)]
    return math.sqrt(sum(shape[0] if len(shape) > 1 else math.prod(shape) for shape in shapes)) / 2
