"""Features brought to one scale, and gaps filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .dataset import Dataset


# What a client puts in place of gaps, next to the fields of its scaling, where both are stored.
FILL = "fill"


class Scaling(NamedTuple):
    """Mean and deviation of each feature or channel, float32; a constant one has deviation 1."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray) -> Scaling:
        """Measure samples (n × features, n × channels × …) without their gaps; 0 and 1 where there is nothing else."""
        columns = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1).astype(np.float64)
        there = ~np.isnan(columns)
        count = np.maximum(1, there.sum(1))
        mean = np.where(there, columns, 0).sum(1) / count
        deviation = np.sqrt(np.square(np.where(there, columns - mean[:, None], 0)).sum(1) / count)
        # Of equal numbers the mean may be off by rounding.
        deviation[deviation <= 1e-6 * np.abs(mean)] = 1
        return cls(mean.astype(np.float32), deviation.astype(np.float32))

    def filled(self, x: np.ndarray) -> np.ndarray:
        """Return samples with the mean in place of each gap."""
        return np.where(np.isnan(x), _broad(self.mean, x), x)

    def applied(self, x: np.ndarray) -> np.ndarray:
        """Return samples brought to mean 0 and deviation 1."""
        scaled: np.ndarray = (x - _broad(self.mean, x)) / _broad(self.deviation, x)
        return scaled


def _broad(of_features: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return an array of the features so that it broadcasts over samples."""
    return of_features.reshape(1, -1, *[1] * (x.ndim - 2))


def has_gaps(data: Dataset) -> bool:
    """Tell whether a table lacks a number; a lazy data set has no gaps."""
    parts = [part for part in (data.x_train, data.x_test) if isinstance(part, np.ndarray)]
    return not (data.is_image or data.vocabulary) and any(bool(np.isnan(part).any()) for part in parts)
