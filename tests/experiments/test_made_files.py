"""The scripts in experiments/ that make data, from files or out of nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from in_process import call_program
from real_data import real_data_dir
from safetensors.torch import load_file

from fedpfl.data import DataSettings, load
from fedpfl.models import build

FOLDER = Path(__file__).resolve().parents[2] / "experiments"


def run(script: str, *arguments: str | Path) -> tuple[str, str]:
    return call_program(FOLDER / script, *arguments)


def made(script: str, file: Path, *arguments: str) -> dict[str, np.ndarray]:
    """Return the arrays that a script writes into a folder, in the file that it calls so."""
    run(script, *arguments, "--write", file.parent)
    with np.load(file) as arrays:
        return dict(arrays)


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


def halves(x: np.ndarray, which: int) -> set[bytes]:
    return {half.tobytes() for half in np.split(np.ascontiguousarray(x), 2, axis=2)[which]}


def check_har(data: dict[str, np.ndarray], windows: int) -> None:
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


def test_no_window_of_a_test_is_half_seen_in_training(tmp_path: Path) -> None:
    first, again, other = (
        made("comparisons/har_by_person.py", tmp_path / str(i) / "har.npz", "--seed", seed)
        for i, seed in enumerate("112")
    )
    check_har(first, 4 * 3 * 4 * 6)
    assert first["x_train"].shape[1:] == (3, 64) and first["x_train"].dtype == np.float32
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["x_test"], other["x_test"])


def test_the_windows_of_uci_har_are_divided_so(tmp_path: Path) -> None:
    real = str(real_data_dir() / "har.npz")
    data = made("comparisons/har_by_person.py", tmp_path / "made" / "har.npz", "--data", real)
    check_har(data, 10299)
    assert len(data["classes"]) == 6


def bars(x: np.ndarray) -> np.ndarray:
    """Return the row of each image that stands out, by its distance from the image's median."""
    rows = x.mean(axis=2)
    return np.abs(rows - np.median(rows, axis=1, keepdims=True)).argmax(axis=1) - 2


def test_cameras_change_values_and_groups_change_numbers(tmp_path: Path) -> None:
    sensors, meanings = (
        made("comparisons/skewed_images.py", tmp_path / kind / "images.npz", "--kind", kind)
        for kind in ("sensors", "meanings")
    )
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


def test_roles_and_a_decoder_that_has_read_other_plays(tmp_path: Path) -> None:
    data, _ = (
        made("comparisons/plays.py", tmp_path / folder / "roles.npz", "--steps", "3", "--seed", "2")
        for folder in ("first", "again")
    )
    assert set(data["client_train"]) == set(data["client_test"]) and len(set(data["client_train"])) == 3
    assert np.array_equal(data["x_train"], data["y_train"]) and data["x_test"].shape[1] == 80
    weights, again = (load_file(tmp_path / folder / "decoder.safetensors") for folder in ("first", "again"))
    build("decoder", (80,), 100, int(data["vocabulary"])).load_state_dict(weights)
    assert all(torch.equal(array, again[name]) for name, array in weights.items())
