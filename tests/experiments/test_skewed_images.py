"""The script of images from other cameras and of classes in other orders: what differs is what it says."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "comparisons" / "skewed_images.py"


def made(folder: Path, kind: str) -> dict[str, np.ndarray]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), "--kind", kind, "--write", str(folder)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
    with np.load(folder / "images.npz") as file:
        return dict(file)


def bars(x: np.ndarray) -> np.ndarray:
    """Return the row of each image that stands out, by its distance from the image's median."""
    rows = x.mean(axis=2)
    return np.abs(rows - np.median(rows, axis=1, keepdims=True)).argmax(axis=1) - 2


def test_cameras_change_values_and_groups_change_numbers(tmp_path: Path) -> None:
    sensors, meanings = made(tmp_path / "sensors", "sensors"), made(tmp_path / "meanings", "meanings")
    for part, count in (("train", 150), ("test", 100)):
        for data in (sensors, meanings):
            assert np.bincount(data[f"client_{part}"]).tolist() == [count] * 20
        assert np.array_equal(bars(sensors[f"x_{part}"]), sensors[f"y_{part}"]), "a camera changes no class"
    spread = [np.ptp(sensors["x_train"][sensors["client_train"] == client]) for client in range(20)]
    assert len(set(spread)) > 10, "contrasts differ"
    shown, number, group = bars(meanings["x_train"]), meanings["y_train"], meanings["client_train"] % 4
    orders = {g: [set(number[(group == g) & (shown == c)].tolist()) for c in range(10)] for g in range(4)}
    assert all(len(numbers) == 1 for order in orders.values() for numbers in order), "one numbering a group"
    assert len({str(order) for order in orders.values()}) == 4, "and another one for each"
