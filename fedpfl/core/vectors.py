"""Operations on whole shared vectors."""

from __future__ import annotations

import numpy as np

from .layout import Layout


def is_finite(array: np.ndarray) -> bool:
    """Tell whether all values are finite, without a copy: a NaN among them is largest and smallest."""
    return not array.size or bool(np.isfinite(array.max()) and np.isfinite(array.min()))


def largest_of(array: np.ndarray) -> float:
    """Return the largest distance of a value from 0."""
    return float(max(array.max(), -array.min())) if array.size else 0.0


def clipped(received: np.ndarray, trained: np.ndarray, norm: float) -> np.ndarray:
    """Return trained − received as float64, scaled down to an L2 norm of at most ``norm`` (C)."""
    update: np.ndarray = trained.astype(np.float64) - received
    length = float(np.sqrt(np.sum(np.square(update))))
    return update if length <= norm else update * (norm / length)


def without_negative_variances(layout: Layout, vector: np.ndarray) -> np.ndarray:
    """Raise BatchNorm's variances to 0 where noise has made them negative, in place; return the vector."""
    for name, place in layout.slices().items():
        if "running_var" in name:
            np.maximum(vector[place], 0, out=vector[place])
    return vector
