"""What travels alongside the shared vector: as declared, or refused in one line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import FEW_SAMPLES, LocalGrid, federation, simulate, simulate_and_listen
from torch import nn

import fedpfl.setup.all_settings
import fedpfl.setup.config
from fedpfl.client.engines import _engines
from fedpfl.client.options import privacy as client_privacy
from fedpfl.client.options.privacy import private_reply
from fedpfl.core.errors import ConfigError, FedpflError, LayoutError
from fedpfl.core.extra_arrays import ANY, BOTH, CLIENT, RECEIVED, SERVER, SHARED, Extra, Extras
from fedpfl.core.payload import Payload
from fedpfl.methods import Method
from fedpfl.methods.base import Aggregation
from fedpfl.rules.mean import Mean

DECLARED = (
    Extra("table", BOTH, "a table", (2, 3), required=False),
    Extra("rows", CLIENT, "any number of rows", (ANY, SHARED)),
    Extra("mask", SERVER, "a mask", lambda model: (model.in_features,), exact="uint8", required=False),
    Extra("weight", SERVER, "a copy", copy_of=lambda model: "weight", required=False),
)


def extras(wire_dtype="float32"):
    return Extras(DECLARED, nn.Linear(5, 4), 7, wire_dtype)


@pytest.mark.parametrize("wire_dtype", ["float32", "float16"])
def test_arrays_arrive_in_their_shapes_and_floats_in_the_wire_s_type(wire_dtype):
    made, rng = extras(wire_dtype), np.random.default_rng(0)
    up = {"table": rng.normal(size=(2, 3)), "mask": np.array([0, 1, 255, 7, 9], np.uint8), "weight": np.ones((4, 5))}
    down = {"table": rng.normal(size=(2, 3)).astype(np.float32), "rows": rng.normal(size=(3, 7))}
    for arrays, end in ((up, SERVER), (down, CLIENT)):
        sent = made.pack(arrays, end)
        assert {array.ndim for array in sent.values()} == {1}
        assert {a.dtype.name for name, a in sent.items()} == {wire_dtype, *({"uint8"} if end == SERVER else ())}
        for name, array in made.read(sent, end).items():
            assert array.shape == arrays[name].shape
            assert array.dtype == (np.uint8 if name == "mask" else np.float32)
            np.testing.assert_array_equal(array, arrays[name].astype(wire_dtype if name != "mask" else "uint8"))


@pytest.mark.parametrize(
    ("name", "array", "end"),
    [
        ("table", np.zeros((3, 2)), SERVER), ("table", np.zeros(6), CLIENT), ("rows", np.zeros((2, 6)), CLIENT),
        ("rows", np.zeros((2, 7)), SERVER), ("mask", np.zeros(5), SERVER), ("mask", np.zeros(5, np.uint8), CLIENT),
        ("weight", np.zeros(20), SERVER), ("other", np.zeros(1), SERVER), ("shared", np.zeros(7), SERVER),
    ],
)  # fmt: skip
def test_what_is_not_as_declared_is_not_sent(name, array, end):
    with pytest.raises(LayoutError, match=f"array '{name}'"):
        extras().pack({name: array}, end)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"table": np.zeros(5, "f4")}, r"'table' is to be 2 × 3 values of float32 or float16; float32 of shape \(5,\)"),
        ({"table": np.zeros((2, 3), "f4")}, r"shape \(2, 3\) arrived"),
        ({"table": np.zeros(6, "f8")}, "float64 of shape"),
        ({"table": np.full(6, np.nan, "f4")}, "array 'table' arrived with values that are not finite"),
        ({"mask": np.zeros(5, np.int8)}, "'mask' is to be 5 values of uint8; int8 of"),
        ({"mask": np.zeros(4, np.uint8)}, r"uint8 of shape \(4,\)"),
        ({"rows": np.zeros(7, "f4")}, "'rows': the method declares none of this name that goes to the server"),
        ({"more": np.zeros(7, "f4")}, "array 'more': the method declares none"),
    ],
)
def test_what_arrives_otherwise_is_refused_in_one_line(arrays, message):
    with pytest.raises(LayoutError, match=message) as caught:
        extras().read(arrays, SERVER)
    assert "\n" not in str(caught.value)


def test_only_replies_have_to_be_complete():
    made = Extras([Extra("a", BOTH, "a", (1,)), Extra("b", SERVER, "b", (1,), required=False)])
    assert made.read({}, CLIENT) == {}
    with pytest.raises(LayoutError, match="a reply without the array 'a' arrived"):
        made.read({"b": np.zeros(1, np.float32)}, SERVER)


anything = st.one_of(
    hnp.arrays(st.sampled_from([np.float32, np.uint8, np.int64, np.float16]), st.integers(0, 25)),
    hnp.arrays(np.float32, (2, 3)),
    hnp.arrays(np.float32, st.sampled_from([6, 7, 14, 20]), elements=st.floats(width=32)),
)


@given(st.dictionaries(st.sampled_from(["table", "rows", "mask", "weight", "shared", "x"]), anything, max_size=3))
def test_whatever_arrives_has_its_declared_shape_or_is_a_layout_error(arrays):
    for end in (SERVER, CLIENT):
        try:
            read = extras().read(arrays, end)
        except LayoutError:
            continue
        assert read.keys() == arrays.keys() - {"shared"}
        for name, array in read.items():
            shape = {"table": (2, 3), "mask": (5,), "weight": (4, 5)}.get(name, (array.shape[0], 7))
            assert array.shape == shape
            assert np.isfinite(array).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"to": "moon"}, "'moon', not server, client or both"),
        ({"name": "shared"}, "the shared vector travels under this name"),
        ({"exact": "U8"}, "is not a number type"),
        ({"private_from": "moon"}, "not zeros or received"),
        ({"private_from": RECEIVED}, "needs an array that the server sends"),
    ],
)
def test_a_wrong_declaration_says_so_at_once(wrong, message):
    with pytest.raises(ValueError, match=message):
        Extra(**{"name": "a", "to": SERVER, "about": "a", **wrong})
    with pytest.raises(ValueError, match="'table' is declared twice"):
        Extras([DECLARED[0], DECLARED[0]])


# -- a method with a vector that goes both ways ----------------------------------------------------------------------


class MeanOfCounts(Mean):
    counts = np.zeros(0)

    def attachments(self, client, kind):
        if not self.counts.size:
            self.counts = np.zeros(self.layout.size, np.float32)
        return Payload(arrays={"counts": self.counts}) if kind == "train" else Payload()

    def add(self, client, shared, reply):
        super().add(client, shared, reply)
        self.arrived = reply.arrays["counts"]

    def finish(self):
        super().finish()
        self.counts = self.arrived


class Counting(Method):
    """Every client adds 1 to each value of a vector as long as the shared one, which the server averages."""

    name, paper, shares = "fedavg", "", ""
    extras = (Extra("counts", BOTH, "rounds", (SHARED,), private_from=RECEIVED),)
    seen: list[dict] = []  # noqa: RUF012

    def conclude(self, local):
        arrays = local.by_name(local.received("counts"))
        assert {name: tuple(a.shape) for name, a in arrays.items()} == dict(local.layout.entries)
        self.seen.append({name: float(array.mean()) for name, array in arrays.items()})
        first = next(iter(arrays))
        return Payload(arrays={"counts": local.as_vector({first: arrays[first] + 1.0})})

    @property
    def aggregation(self):
        return Aggregation(MeanOfCounts)


@pytest.fixture
def counting(monkeypatch):
    _engines.clear()
    for module in (fedpfl.setup.config, fedpfl.setup.all_settings):
        monkeypatch.setattr(module, "find", lambda name: Counting)
    monkeypatch.setattr(Counting, "seen", [])
    yield {"method": "fedavg", "num_server_rounds": 2, "local_epochs": 1, **FEW_SAMPLES}
    _engines.clear()


@pytest.mark.parametrize("wire_dtype", ["float32", "float16"])
def test_a_method_gets_and_sends_shaped_arrays_and_encodes_nothing(tmp_path, counting, wire_dtype):
    run, grid = simulate_and_listen(tmp_path, 2, wire_dtype=wire_dtype, **counting)
    assert "failed" not in run.metrics()[1]
    sent = [one.arrays for _, *both in grid.training() for one in both]
    assert {arrays["counts"].dtype.name for arrays in sent} == {wire_dtype}
    first = next(iter(Counting.seen[0]))
    assert [seen[first] for seen in Counting.seen] == [0, 0, 1, 1]
    assert {value for seen in Counting.seen for name, value in seen.items() if name != first} == {0}


def test_an_extra_that_comes_back_is_bounded_from_what_was_received(tmp_path, counting, monkeypatch):
    starts = []

    def spied(received, trained, origin, besides, *rest):
        starts.append(origin["counts"].copy())
        return private_reply(received, trained, origin, besides, *rest)

    monkeypatch.setattr(client_privacy, "private_reply", spied)
    _, grid = simulate_and_listen(tmp_path, 1, dp_noise_multiplier=0.01, dp_clip_norm=0.05, **counting)
    received = [message.arrays["counts"] for _, message, _ in grid.training()]
    assert received[1].any()
    for start, arrived in zip(starts, received, strict=True):
        np.testing.assert_array_equal(start, arrived)


def test_a_method_that_sends_what_it_does_not_declare_fails_with_its_name(tmp_path, counting, monkeypatch):
    monkeypatch.setattr(Counting, "conclude", lambda self, local: Payload(arrays={"secret": np.zeros(3)}))
    with pytest.raises(FedpflError, match="array 'secret': the method declares none of this name"):
        simulate(tmp_path, 1, LocalGrid, **counting)


@pytest.mark.parametrize("exact", ["uint8", "float64"])
def test_what_no_noise_can_be_added_to_is_refused_with_privacy(tmp_path, counting, monkeypatch, exact):
    monkeypatch.setattr(Counting, "extras", (Extra("mask", SERVER, "a mask", (3,), exact=exact),))
    federation(tmp_path, 1, **counting)
    with pytest.raises(
        ConfigError, match=f"must be 0 with fedavg: its clients send 'mask' as {exact}, which cannot carry noise"
    ):
        federation(tmp_path, 1, dp_noise_multiplier=1.0, **counting)
