"""The scripts that make FEMNIST's file from LEAF's, and the subset of ImageNet from its folders."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpfl.data import DataSettings, load

FOLDER = Path(__file__).resolve().parents[2] / "experiments"


def run(script: str, *arguments: str | Path) -> tuple[str, str]:
    """Run a script in this process; return what it prints, and the line with which it ends the program."""
    said, ended = io.StringIO(), ""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(sys, "argv", [script, *map(str, arguments)])
        try:
            runpy.run_path(str(FOLDER / script), run_name="__main__")
        except SystemExit as end:
            ended = str(end.code)
    return said.getvalue(), ended


def write_leaf(path: Path, users: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"users": list(users), "num_samples": [], "user_data": users}))


def test_leaf_s_writers_become_clients(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5, 784))
    shares = (pixels / 255).tolist()
    write_leaf(tmp_path / "leaf/train/a.json", {"f0002": {"x": shares[:2], "y": [61, 0]}})
    write_leaf(tmp_path / "leaf/train/b.json", {"f0001": {"x": shares[2:4], "y": [5, 6]}})
    write_leaf(tmp_path / "leaf/test/a.json", {"f0002": {"x": shares[4:], "y": [10]}})
    said, ended = run("fedfac/leaf_femnist.py", tmp_path / "leaf", "--write", tmp_path / "femnist.npz")
    assert not ended and said.startswith("5 samples of 2 writers")
    data = load(DataSettings(dataset="npz", data=str(tmp_path / "femnist.npz")))
    assert data.client_train is not None and data.client_train.tolist() == [0, 0, 1, 1, 1]
    assert data.y_train.tolist() == [5, 6, 61, 0, 10] and data.num_classes == 62
    assert np.array_equal(data.x_train.reshape(5, 784), pixels[[2, 3, 0, 1, 4]])
    assert data.class_names[10] == "A" and data.is_image


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": [[0.5] * 783], "y": [1]}, "x must be lists of 784 numbers from 0 to 1"),
        ({"x": [[2.0] * 784], "y": [1]}, "x must be lists of 784 numbers from 0 to 1"),
        ({"x": [[0.5] * 784], "y": [62]}, "y must be 0 … 61"),
        ({"x": [[0.5] * 784], "y": [1, 2]}, "x must be lists"),
        ([], "x must be lists"),
    ],
)
def test_bad_leaf_files_are_one_line(tmp_path: Path, content: object, message: str) -> None:
    write_leaf(tmp_path / "train/a.json", {"f1": content})
    _, ended = run("fedfac/leaf_femnist.py", tmp_path, "--write", tmp_path / "femnist.npz")
    assert message in ended and "\n" not in ended
    assert not (tmp_path / "femnist.npz").exists()


def test_the_subset_has_as_many_images_of_each_class(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in ("n01", "n02", "n03"):
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(240):
            pixels = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / "train" / name / f"{number:03d}.png")
    arguments = ("--classes", "2", "--side", "8", "--write", tmp_path / "subset.npz")
    assert not run("feddecomp/imagenet_subset.py", tmp_path / "train", *arguments)[1]
    data = load(DataSettings(dataset="npz", data=str(tmp_path / "subset.npz")))
    assert data.x_train.shape == (400, 8, 8, 3) and data.x_test is not None and len(data.x_test) == 80
    assert np.bincount(data.y_train).tolist() == [200, 200] and set(data.class_names) < {"n01", "n02", "n03"}
    _, ended = run("feddecomp/imagenet_subset.py", tmp_path / "train", "--write", tmp_path / "other.npz")
    assert "has 3 folders, 400 classes are wanted" in ended
