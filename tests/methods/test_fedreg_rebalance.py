"""FedReG's rebalanced sets: their sizes, what is in them, and what happens to the copies."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpfl.core.errors import ConfigError
from fedpfl.core.pixels import scale
from fedpfl.core.samples import Samples
from fedpfl.methods.fedreg import THRESHOLDS, effective_samples, quota, rebalance


def images(counts: list[int], channels: int = 1, side: int = 8) -> Samples:
    """Make random images, ``counts[c]`` of class c, in mixed order."""
    rng = np.random.default_rng(1)
    y = rng.permutation(np.repeat(np.arange(len(counts)), counts))
    pixels = rng.integers(0, 256, (len(y), channels, side, side), dtype=np.uint8)
    return Samples(scale(torch.from_numpy(pixels)), torch.from_numpy(y))


def rebalanced(samples: Samples, q: int, augmentation: str = "simple", seed: int = 0) -> Samples:
    return rebalance(samples, q, augmentation, np.random.default_rng(seed))


def rows(x: torch.Tensor) -> set[bytes]:
    return {row.numpy().tobytes() for row in x.contiguous()}


@pytest.mark.parametrize(("mode", "t"), [("average", 20), ("median", 10), ("max", 60), ("second-min", 6)])
def test_thresholds_of_five_sizes(mode: str, t: float) -> None:
    assert THRESHOLDS[mode]([60, 6, 10, 20, 4]) == t


@pytest.mark.parametrize(
    ("counts", "t", "q"), [([5, 0, 5], 9, 5), ([1, 1, 1], 10, 3), ([1, 1, 1], 1, 1), ([0, 0], 9, 9)]
)
def test_a_class_gets_its_share_of_the_threshold(counts: list[int], t: float, q: int) -> None:
    assert quota(np.array(counts), t, 20.0) == q  # classes that the client lacks get nothing; ½ goes up; at least 1


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.floats(0.1, 100))
@settings(deadline=None, max_examples=60)
def test_a_rebalanced_set_has_q_of_each_class_and_its_effective_samples_follow_the_formula(
    counts: list[int], t: float
) -> None:
    samples, q = images(counts, side=2), quota(np.array(counts), t, 20.0)
    made = rebalanced(samples, q, "none")
    of_class = np.bincount(made.y.numpy(), minlength=len(counts))
    assert of_class.tolist() == [q if n else 0 for n in counts]
    formula = sum(q if n >= q else n for n in counts)  # Equation 6, written out
    assert effective_samples(np.array(counts), q) == formula
    # 2×2 random pixels are all different: the samples that are no copies can be counted.
    assert len(rows(made.x)) == formula == len(rows(made.x) & rows(samples.x))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("augmentation", ["simple", "auto"])
def test_only_copies_are_augmented_and_the_same_numbers_give_the_same_copies(augmentation: str, channels: int) -> None:
    pytest.importorskip("torchvision")
    samples = images([12, 3], channels, side=16)
    made = rebalanced(samples, 8, augmentation)
    assert made.x.shape == (16, channels, 16, 16)
    assert made.x.is_contiguous(memory_format=torch.channels_last)
    assert made.x.abs().max() <= 1
    assert rows(made.x[:11]) <= rows(samples.x)
    assert made.y[11:].tolist() == [1] * 5
    assert len(rows(made.x[11:]) - rows(samples.x)) >= 3  # AutoAugment may leave an image alone
    before = torch.random.get_rng_state()
    assert torch.equal(made.x, rebalanced(samples, 8, augmentation).x)
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.equal(made.x, rebalanced(samples, 8, augmentation, seed=1).x)


@pytest.mark.parametrize(("channels", "seen"), [(1, False), (3, True), (4, False)])
def test_only_colour_images_see_colour_jitter(monkeypatch: pytest.MonkeyPatch, channels: int, seen: bool) -> None:
    pytest.importorskip("torchvision")
    from torchvision.transforms import v2

    calls: list[Any] = []
    inner = v2.ColorJitter.transform
    monkeypatch.setattr(v2.ColorJitter, "transform", lambda *args: (calls.append(1), inner(*args))[1])
    rebalanced(images([4], channels), 6)
    assert bool(calls) == seen


@pytest.mark.parametrize("shape", [(5,), (3, 20)])
def test_data_that_are_no_images_are_repeated(shape: tuple[int, ...]) -> None:
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    made = rebalanced(Samples(x, torch.tensor([0, 0, 0, 1])), 3)
    assert torch.equal(made.x[:4], x)
    assert made.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert all(torch.equal(row, x[3]) for row in made.x[4:])


def test_without_torchvision_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.transforms", None)
    with pytest.raises(ConfigError, match=r"augmentation = 'simple': needs torchvision 0\.15 or later"):
        rebalanced(images([1, 3]), 2)
    assert len(rebalanced(images([1, 3]), 2, "none").y) == 4


def test_autoaugment_names_the_images_that_it_cannot_take() -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(ConfigError, match=r"augmentation = 'auto'.*these have 4 channels"):
        rebalanced(images([1, 3], channels=4), 2, "auto")
