"""Lengths of vectors, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from fedpfl.rules.norms import distance


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("size", [0, 1, 8192, 20_001])
def test_distances_are_numpy_s(dtype, size):
    rng = np.random.default_rng(size)
    vector, start = (100 * rng.normal(size=(2, size))).astype(dtype)
    expected = np.linalg.norm(np.float64(vector) - start)
    assert distance(vector, start) == pytest.approx(expected, rel=1e-5)
    assert distance(vector) == pytest.approx(np.linalg.norm(np.float64(vector)), rel=1e-5)


def test_distances_of_values_whose_squares_are_too_large_for_float32_are_finite():
    large = np.full(4, 3e38, np.float32)
    assert distance(large, -large) == pytest.approx(12e38)
