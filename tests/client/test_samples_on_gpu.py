"""Samples that stay where a model computes: the same numbers, and no more bytes than there is room for."""

import pytest
import torch

from fedpfl.client.samples_on_gpu import MIN_BYTES, PlacedSamples
from fedpfl.core.pixels import HALF, NORMALIZATIONS, scale
from fedpfl.core.samples import Samples


def images(normalize=HALF, count=MIN_BYTES // (3 * 16 * 16 * 4) + 1):
    """Return images that have every brightness in every channel."""
    pixels = (torch.arange(count * 3 * 16 * 16) % 256).to(torch.uint8).reshape(count, 16, 16, 3).permute(0, 3, 1, 2)
    return Samples(scale(pixels, normalize), torch.zeros(count, dtype=torch.int64))


def never():
    raise AssertionError("read twice")


@pytest.mark.parametrize("normalize", NORMALIZATIONS)
def test_large_images_are_kept_in_a_quarter_of_the_bytes_and_come_back_as_they_were(normalize):
    samples = images(normalize)
    placed = PlacedSamples("cpu", 10 * MIN_BYTES, normalize)
    first, again = placed.get("train", lambda: samples), placed.get("train", never)
    for loaded in (first, again):
        assert torch.equal(loaded.x, samples.x) and torch.equal(loaded.y, samples.y)
        assert loaded.x.stride() == samples.x.stride()
    assert 10 * MIN_BYTES - placed.room == samples.x.nbytes // 4 + samples.y.nbytes


@pytest.mark.parametrize(
    ("samples", "normalize"),
    [
        (images(count=2), HALF),  # small
        (images(), None),  # no images
        (Samples(images().x + 1e-3, images().y), HALF),  # changed after they were scaled
    ],
)
def test_other_samples_are_kept_as_they_are(samples, normalize):
    placed = PlacedSamples("cpu", 10 * MIN_BYTES, normalize)
    assert torch.equal(placed.get("train", lambda: samples).x, samples.x)
    assert placed.get("train", never).x is samples.x
    assert 10 * MIN_BYTES - placed.room == samples.x.nbytes + samples.y.nbytes


def test_what_has_no_room_is_read_each_time_and_takes_no_room_from_others():
    large, small = images(), images(count=2)
    placed = PlacedSamples("cpu", small.x.nbytes + small.y.nbytes, None)
    for _ in range(2):
        assert placed.get("large", lambda: large).x is large.x
    assert placed.get("small", lambda: small).x is small.x
    assert placed.get("small", never).x is small.x
    assert placed.room == 0
