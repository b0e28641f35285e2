"""The script that divides UCI HAR by stretches: no window of a test is half seen in training."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from real_data import real_data_dir

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "comparisons" / "har_by_person.py"


def made(folder: Path, *arguments: str) -> dict[str, np.ndarray]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(SCRIPT), *arguments, "--write", str(folder)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
    with np.load(folder / "har.npz") as file:
        return dict(file)


def halves(x: np.ndarray, which: int) -> set[bytes]:
    return {half.tobytes() for half in np.split(np.ascontiguousarray(x), 2, axis=2)[which]}


def check(data: dict[str, np.ndarray], windows: int) -> None:
    train, test = data["x_train"], data["x_test"]
    assert len(train) + len(test) == windows
    assert len(test) == pytest.approx(windows / 4, rel=0.05)
    assert not halves(train, 0) & halves(test, 1) and not halves(train, 1) & halves(test, 0)
    np.testing.assert_allclose(train.mean(axis=(0, 2)), 0, atol=1e-3)
    np.testing.assert_allclose(train.std(axis=(0, 2)), 1, atol=1e-3)
    for person in np.unique(data["client_train"]):
        activities = {
            part: np.unique(data[f"y_{part}"][data[f"client_{part}"] == person]).tolist() for part in ("train", "test")
        }
        assert activities["train"] == activities["test"], "every activity of a person is trained and tested"


def test_made_up_windows(tmp_path: Path) -> None:
    first, again, other = (made(tmp_path / str(i), "--seed", seed) for i, seed in enumerate("112"))
    check(first, 4 * 3 * 4 * 6)
    assert first["x_train"].shape[1:] == (3, 64) and first["x_train"].dtype == np.float32
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["x_test"], other["x_test"])


def test_the_real_ones(tmp_path: Path) -> None:
    data = made(tmp_path / "made", "--data", str(real_data_dir() / "har.npz"))
    check(data, 10299)
    assert len(data["classes"]) == 6
