"""Features brought to one scale, and gaps filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ..core.inputs import Inputs
    from .dataset import Dataset


# What a client puts in place of gaps, next to the fields of its scaling, where both are stored.
FILL = "fill"


class Scaling(NamedTuple):
    """Mean and deviation of each feature or channel, float32; a constant one has deviation 1.

    Of several inputs, those of floats alone have any, one after the other.
    """

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, inputs: Inputs | None = None) -> Scaling:
        """Measure samples (n × features, n × channels × …) without their gaps; 0 and 1 where there is nothing else."""
        if inputs:
            each = [cls.of(part) for _, part in inputs.floats(x.view(np.ndarray))]
            return cls(*(np.concatenate([np.empty(0, np.float32), *numbers]) for numbers in zip(*each)))
        columns = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1).astype(np.float64)
        there = ~np.isnan(columns)
        count = np.maximum(1, there.sum(1))
        mean = np.where(there, columns, 0).sum(1) / count
        deviation = np.sqrt(np.square(np.where(there, columns - mean[:, None], 0)).sum(1) / count)
        # Of equal numbers the mean may be off by rounding.
        deviation[deviation <= 1e-6 * np.abs(mean)] = 1
        return cls(mean.astype(np.float32), deviation.astype(np.float32))

    def filled(self, x: np.ndarray, inputs: Inputs | None = None) -> np.ndarray:
        """Return samples with the mean in place of each gap."""
        if inputs:
            return self._each(x, inputs, Scaling.filled)
        return np.where(np.isnan(x), _broad(self.mean, x), x)

    def applied(self, x: np.ndarray, inputs: Inputs | None = None) -> np.ndarray:
        """Return samples brought to mean 0 and deviation 1."""
        if inputs:
            return self._each(x, inputs, Scaling.applied)
        scaled: np.ndarray = (x - _broad(self.mean, x)) / _broad(self.deviation, x)
        return scaled

    def _each(self, x: np.ndarray, inputs: Inputs, change: Callable[[Scaling, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return rows in which each input of floats is changed by its own numbers."""
        changed, start = np.array(x), 0
        for _, part in inputs.floats(changed):
            place = slice(start, start + part.shape[1])
            start = place.stop
            part[...] = change(Scaling(self.mean[place], self.deviation[place]), part)
        return changed


def features_of(shape: tuple[int, ...]) -> int:
    """Return the number of features or channels of samples of a shape, of several inputs those of floats."""
    floats = getattr(shape, "floats", None)
    return shape[0] if floats is None else sum((*part.shape, 1)[0] for part, _ in floats(np.empty((0, *shape))))


def _broad(of_features: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return an array of the features so that it broadcasts over samples."""
    return of_features.reshape(1, -1, *[1] * (x.ndim - 2))


def has_gaps(data: Dataset) -> bool:
    """Tell whether a table lacks a number; a lazy data set has no gaps."""
    parts = [part for part in (data.x_train, data.x_test) if isinstance(part, np.ndarray)]
    return not (data.is_image or data.vocabulary) and any(bool(np.isnan(part).any()) for part in parts)
