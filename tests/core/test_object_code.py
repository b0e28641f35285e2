"""A function, class or object that a program hands over is known by what it computes."""

import sys
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fedpfl.core.object_code import handed_over
from fedpfl.core.references import objects

SCALE, TABLE, CALLS = 1, np.ones(2), 0
WEIGHTS = torch.ones(2, dtype=torch.bfloat16)
LAYERS, SEEN = [8, 8], []


def half(value):
    return torch.as_tensor(value) / SCALE * WEIGHTS * LAYERS[0]


def counted(x):
    global CALLS
    CALLS += 1
    SEEN.append(x)
    return x


class Scaled:
    part = half

    def __init__(self, factor, log=()):
        self.factor, self.calls, self.log = factor, 0, [*log]

    def __call__(self, x):
        self.calls += 1
        self.log.append(x)
        return self.factor * x

    def method(self, x):
        return self(x)


@dataclass
class Width:
    of: int


def hashed(thing):
    objects["python:thing"] = thing
    try:
        return handed_over([("loss", "python:thing")])
    finally:
        del objects["python:thing"]


def around(value, **named):
    def inner(x, *, also=named):
        return value, x

    inner.__kwdefaults__ = {"also": named.get("also")}
    return inner


OTHERS = {
    "an argument of a partial": (partial(half, value=1), partial(half, value=2)),
    "a function in a partial": (partial(half), partial(counted)),
    "a default by name": (around(1, also=1), around(1, also=2)),
    "a value around it": (around(1), around(2)),
    "an array around it": (around(np.ones(2)), around(np.zeros(2))),
    "a tensor in a tuple": (around((torch.ones(2),)), around((torch.zeros(2),))),
    "a function around it": (around(around(1)), around(around(2))),
    "an attribute": (Scaled(1), Scaled(2)),
    "an attribute of a library's object": (nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss()),
    "a method": (Scaled(1).method, Scaled(2).method),
    "a list around it": (around([1, [2]]), around([1, [3]])),
    "a dict by default": (around(1, also={"a": 1}), around(1, also={"a": 2})),
    "a set around it": (around({1, "a"}), around({1, "b"})),
    "a tensor in a loss": (
        nn.CrossEntropyLoss(weight=torch.ones(2)),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2])),
    ),
    "a loss in a loss": (nn.ModuleList([nn.L1Loss()]), nn.ModuleList([nn.L1Loss(reduction="sum")])),
    "settings around it": (around(SimpleNamespace(width=1)), around(SimpleNamespace(width=2))),
    "an object of the user's around it": (around(Width(1)), around(Width(2))),
    "a lambda": (lambda x: x, lambda x: 2 * x),
}


@pytest.mark.parametrize("what", OTHERS)
def test_something_else_has_another_hash(what):
    first, second = OTHERS[what]
    assert hashed(first) == hashed(first) != hashed(second) and hashed(first).keys() == hashed(second).keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCALE", 2),
        ("TABLE", np.zeros(2)),
        ("WEIGHTS", torch.zeros(2)),
        ("half", lambda value: value),
        ("LAYERS", [8, 4]),
    ],
)
@pytest.mark.parametrize("thing", [lambda x: half(x) * TABLE, type("Net", (), {"of": lambda self: half(TABLE)})])
def test_what_code_finds_in_its_module_counts(monkeypatch, thing, name, value):
    before = hashed(thing)
    monkeypatch.setitem(globals(), name, value)
    assert hashed(thing) != before


def test_the_same_once_more_and_what_is_counted_on_the_way_change_nothing():
    for make in (lambda: around((1, "a")), lambda: partial(Scaled(1), x=2), lambda: Scaled(1, [3]), lambda: counted):
        thing, before = make(), hashed(make())
        thing(2) if not isinstance(thing, partial) else thing()
        assert hashed(thing) == before


def test_a_module_of_the_users_counts_by_its_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    hashes = []
    for width in (1, 2, 2):
        (tmp_path / "parts_of_mine.py").write_text(f"WIDTH = {width}  # {'x' * width}\n")
        sys.modules.pop("parts_of_mine", None)
        monkeypatch.setitem(globals(), "parts", __import__("parts_of_mine"))
        hashes.append(hashed(lambda x: x * parts.WIDTH))  # noqa: F821  a name of this module now
    assert hashes[0] != hashes[1] == hashes[2]
