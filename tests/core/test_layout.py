from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpfl.core.errors import LayoutError
from fedpfl.core.layout import MAX_LAYOUT_BYTES, Layout, decode, encode

LAYOUT = Layout.of([("conv.weight", (2, 1, 3, 3)), ("conv.bias", (2,)), ("scale", ())])


def test_flatten_lays_arrays_end_to_end_and_unflatten_takes_them_apart():
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in LAYOUT.entries}
    flat = LAYOUT.flatten(arrays)
    assert flat.dtype == np.float32
    assert np.array_equal(flat, np.concatenate([arrays[name].ravel() for name in LAYOUT.names]))
    back = LAYOUT.unflatten(flat)
    assert all(np.array_equal(back[name], arrays[name]) and back[name].shape == arrays[name].shape for name in arrays)


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


@pytest.mark.parametrize("bad", [np.zeros((2, 2), np.float32), np.zeros(2, np.int64), np.zeros(2, "U3")])
def test_only_float_vectors_are_decoded(bad):
    with pytest.raises(LayoutError, match=r"expected a float vector"):
        decode(bad)


SPARSE = Layout.of([("u", (2,)), ("mu", (3, 3)), ("bias", (2,)), ("more.mu", (4,))], {"mu": 0.5, "more.mu": 0.0})


def test_of_sparse_arrays_only_what_is_large_enough_travels():
    flat = np.array([0, 1, 0.5, -0.5, 0.49, 2, 0, 0, 0, -3, 0, 0.1, 0, 1e-9, 0, 7, 0], np.float32)
    packed = SPARSE.pack(flat, "float32")
    sent = [0, 1, 0.5, -0.5, 2, -3, 0.1, 0, 1e-9, 7]  # u and bias whole, zeros too
    assert packed["shared"].tolist() == np.array(sent, np.float32).tolist()
    assert packed["shared-kept"].tolist() == [0b11010001, 0b01010000]
    back = SPARSE.unpack(packed)
    assert back.tolist() == np.where(flat == np.float32(0.49), 0, flat).tolist()


@given(
    hnp.arrays(np.float32, SPARSE.size, elements=st.floats(-4, 4, width=16)),
    st.sampled_from(["float32", "float16"]),
)
def test_what_travels_sparse_arrives_but_for_small_entries(flat, dtype):
    back = SPARSE.unpack(SPARSE.pack(flat, dtype))
    for name, place in SPARSE.slices().items():
        small = np.abs(flat[place]) < SPARSE.sparse.get(name, 0.0)
        assert np.array_equal(back[place], np.where(small, 0, flat[place]))


received = st.one_of(
    hnp.arrays(st.sampled_from([np.float32, np.uint8, np.int64, np.float16]), st.integers(0, 20)),
    hnp.arrays(np.uint8, 2),
    hnp.arrays(np.float32, st.integers(4, 17), elements=st.floats(width=32)),
    hnp.arrays(np.float32, (2, 3)),
)


@given(st.dictionaries(st.sampled_from(["shared", "shared-kept", "other"]), received))
@example({"shared": np.ones(17, np.float32), "shared-kept": np.full(2, 255, np.uint8)})
@example({"shared": np.ones(4, np.float32), "shared-kept": np.zeros(2, np.uint8)})
def test_whatever_arrives_becomes_a_vector_of_the_right_size_or_a_layout_error(arrays):
    try:
        flat = SPARSE.unpack(arrays)
    except LayoutError:
        return
    assert flat.shape == (SPARSE.size,)
    assert flat.dtype == np.float32
    bits = np.unpackbits(arrays["shared-kept"], count=13).sum()
    assert len(arrays["shared"]) == 4 + bits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shared-kept": None}, "a message without the array 'shared-kept' arrived"),
        ({"shared": None}, "a message without the array 'shared' arrived"),
        ({"shared-kept": np.zeros(3, np.uint8)}, "expected one bit for each of 13 sparse entries"),
        ({"shared-kept": np.zeros(2, np.int64)}, "int64 .* arrived, expected one bit"),
        ({"shared": np.zeros(5, np.float32)}, r"shape \(5,\) arrived, but its bits mark 4 entries"),
    ],
)
def test_what_is_wrong_with_a_sparse_vector_is_said(change, message):
    packed = {**SPARSE.pack(np.zeros(SPARSE.size, np.float32), "float32"), **change}
    with pytest.raises(LayoutError, match=message):
        SPARSE.unpack({name: array for name, array in packed.items() if array is not None})


def test_a_mask_marks_the_values_of_the_arrays_of_some_names():
    layout = Layout.of([("base.w", (2, 1)), ("head.w", (1,)), ("base.b", ())])
    assert layout.mask(lambda name: name.startswith("base.")).tolist() == [True, True, False, True]
