from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpfl.errors import LayoutError
from fedpfl.wire import MAX_LAYOUT_BYTES, Layout, decode, encode

LAYOUT = Layout.of([("conv.weight", (2, 1, 3, 3)), ("conv.bias", (2,)), ("scale", ())])


def test_flatten_lays_arrays_end_to_end_and_unflatten_takes_them_apart():
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in LAYOUT.entries}
    flat = LAYOUT.flatten(arrays)
    assert flat.dtype == np.float32
    assert np.array_equal(flat, np.concatenate([arrays[name].ravel() for name in LAYOUT.names]))
    back = LAYOUT.unflatten(flat)
    assert all(np.array_equal(back[name], arrays[name]) and back[name].shape == arrays[name].shape for name in arrays)


def test_flatten_reads_arrays_in_any_memory_order():
    array = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert Layout.of([("w", (2, 3))]).flatten({"w": array}).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ([("conv.weight", (2, 1, 3, 3)), ("conv.bias", (3,)), ("scale", ())], r"'conv.bias' of shape \(3,\) arrived"),
        ([("conv.weight", (2, 1, 3, 3)), ("bias", (2,)), ("scale", ())], "'bias' of shape"),
        ([("conv.weight", (2, 1, 3, 3)), ("conv.bias", (2,))], "'scale' of shape () is missing"),
        ([*LAYOUT.entries, ("more", (1,))], r"'more' of shape \(1,\) is unexpected"),
    ],
)
def test_require_names_the_first_array_that_differs(other, message):
    import re

    pattern = message if "\\" in message else re.escape(message)
    with pytest.raises(LayoutError, match=pattern):
        LAYOUT.require(Layout.of(other))


def test_require_accepts_the_same_layout():
    LAYOUT.require(Layout.from_text(LAYOUT.to_text()))


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", "[[]]", '[["a", -1]]', '[["a", 1.5]]', '[["a", true]]', '[[1, 2]]', "[" * 100_000,
     "x" * (MAX_LAYOUT_BYTES + 1), '[["a", 99999999999999999999]]'],
)  # fmt: skip
def test_damaged_layouts_are_refused_in_one_line(text):
    with pytest.raises(LayoutError) as error:
        Layout.from_text(text)
    assert "\n" not in str(error.value)


@given(st.text(max_size=200))
def test_any_text_is_a_layout_or_a_layout_error(text):
    try:
        Layout.from_text(text)
    except LayoutError:
        return
    assert isinstance(Layout.from_text(text), Layout)


@given(st.lists(st.tuples(st.text(max_size=8), st.lists(st.integers(0, 5), max_size=3)), max_size=5))
def test_layouts_survive_the_network(entries):
    layout = Layout.of(entries)
    assert Layout.from_text(layout.to_text()) == layout


def test_wrong_lengths_and_missing_arrays_are_named():
    with pytest.raises(LayoutError, match=r"shape \(3,\) arrived, expected \(21,\)"):
        LAYOUT.unflatten(np.zeros(3, np.float32))
    with pytest.raises(LayoutError, match=r"'conv.bias' is missing"):
        LAYOUT.flatten({"conv.weight": np.zeros((2, 1, 3, 3), np.float32)})
    with pytest.raises(LayoutError, match=r"'conv.weight' has shape"):
        LAYOUT.flatten({"conv.weight": np.zeros((2, 1, 3, 2), np.float32)})


def test_float16_travels_and_refuses_what_it_cannot_hold():
    sent = encode(np.array([0.5, -3.25], np.float32), "float16")
    assert sent.dtype == np.float16
    assert decode(sent).tolist() == [0.5, -3.25]
    with pytest.raises(LayoutError, match=r"1e\+06 does not fit"):
        encode(np.array([1e6], np.float32), "float16")


def test_float32_is_exact():
    flat = np.random.default_rng(1).normal(size=100).astype(np.float32)
    assert np.array_equal(decode(encode(flat, "float32")), flat)


@pytest.mark.parametrize("bad", [np.zeros((2, 2), np.float32), np.zeros(2, np.int64), np.zeros(2, "U3")])
def test_only_float_vectors_are_decoded(bad):
    with pytest.raises(LayoutError, match=r"expected a float vector"):
        decode(bad)
