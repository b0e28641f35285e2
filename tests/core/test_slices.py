"""Slices of the shared arrays: which values they have, and what is no slice."""

from __future__ import annotations

import numpy as np
import pytest

from fedpfl.core.errors import LayoutError
from fedpfl.core.layout import Layout
from fedpfl.core.slices import places, slice_layout

# A convolution of 4 channels on 2, whose 2×3 pixels go to 4 units, then two classes.
WHOLE = Layout.of([
    ("conv.weight", (4, 2, 1, 1)), ("conv.bias", (4,)), ("fc.weight", (6, 24)), ("fc.bias", (6,)),
    ("head.weight", (2, 6)),
])  # fmt: skip
HALF = [("conv.weight", (2, 2, 1, 1)), ("conv.bias", (2,)), ("fc.weight", (3, 12)), ("fc.bias", (3,)),
        ("head.weight", (2, 3))]  # fmt: skip


@pytest.mark.parametrize("moved", [0, 1, 3, 11])
def test_a_slice_has_the_same_channels_wherever_they_stand(moved):
    channels, units = [(moved + k) % 4 for k in range(2)], [(moved + k) % 6 for k in range(3)]
    pixels = [6 * channel + pixel for channel in channels for pixel in range(6)]
    arrays = WHOLE.unflatten(np.arange(WHOLE.size))
    expected = [
        arrays["conv.weight"][channels], arrays["conv.bias"][channels], arrays["fc.weight"][np.ix_(units, pixels)],
        arrays["fc.bias"][units], arrays["head.weight"][:, units],
    ]  # fmt: skip
    positions = places(WHOLE, Layout.of(HALF), moved)
    assert positions.tolist() == np.concatenate([array.ravel() for array in expected]).tolist()
    assert places(WHOLE, WHOLE, moved).tolist() == list(range(WHOLE.size))


def test_a_layout_of_a_slice_keeps_what_is_a_buffer():
    whole = Layout.of([("norm.weight", (4,)), ("norm.centre", (4,))], buffers=["norm.centre"])
    part = slice_layout(whole, Layout.of([("norm.weight", (2,)), ("norm.centre", (2,))]).to_text())
    assert [part.is_parameter(name) for name in part.names] == [True, False]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([*HALF[:-1], ("head.weight", (2, 7))], "'head.weight' of shape .2, 7. arrived, expected a slice of shape"),
        ([*HALF[:-1], ("head.weight", (2, 0))], "expected a slice of shape"),
        ([*HALF[:-1], ("head.weight", (6,))], "expected a slice of shape"),
        ([*HALF[:-1], ("head.bias", (2,))], "array 'head.bias' arrived, expected a slice of array 'head.weight'"),
        (HALF[:-1], "array None arrived, expected a slice of array 'head.weight'"),
        ([*HALF, ("more", (2,))], "array 'more' arrived, expected a slice of array None"),
    ],
)
def test_what_is_no_slice_is_refused(entries, message):
    with pytest.raises(LayoutError, match=message):
        slice_layout(WHOLE, Layout.of(entries).to_text())
