"""Published data sets: their files, and what happens without the network."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from real_data import real_data_dir

from fedpfl.core.errors import DataError
from fedpfl.data import DataSettings, fetch, load, table
from fedpfl.data.datasets.published import _TORCHVISION


def images(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, *shape), dtype=np.uint8)


def save(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


def test_digits_lose_nothing() -> None:
    reference = pytest.importorskip("sklearn.datasets").load_digits()
    data = load(DataSettings(dataset="digits"))
    assert data.x_train.shape == (1797, 8, 8, 1) and data.input_shape == (1, 8, 8)
    assert np.array_equal(np.rint(data.x_train[..., 0] / 255 * 16), reference.images)
    assert np.array_equal(data.y_train, reference.target)


def test_idx_files(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    x, y = images(20, 4, 4), (np.arange(20) % 10).astype(np.uint8)
    for part, piece in (("train", slice(0, 15)), ("t10k", slice(15, 20))):
        for name, array in ((f"{part}-images-idx3-ubyte", x[piece]), (f"{part}-labels-idx1-ubyte", y[piece])):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (raw / name).write_bytes(header + array.tobytes())
    settings = DataSettings(dataset="mnist", data_dir=str(tmp_path))
    data = load(settings)
    assert np.array_equal(data.x_train[..., 0], x[:15]) and np.array_equal(data.y_test, y[15:])
    (raw / "t10k-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03\0\0")
    with pytest.raises(DataError, match="not a complete IDX file; remove it"):
        load(settings)


def test_an_npz_file_in_the_data_folder_is_taken(tmp_path: Path) -> None:
    save(
        tmp_path / "fashion_mnist.npz",
        x_train=images(9, 4, 4),
        y_train=np.arange(9),
        x_test=images(2, 4, 4),
        y_test=[9, 1],
    )
    data = load(DataSettings(dataset="fashion-mnist", data_dir=str(tmp_path)))
    assert data.name == "fashion-mnist" and data.num_classes == 10 and len(data.x_test) == 2


@pytest.mark.parametrize("name", ["mnist", "emnist", "cifar10", "svhn"])
def test_no_network_is_one_line(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchvision")
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: (_ for _ in ()).throw(OSError("no network")))
    with pytest.raises(DataError, match=rf"{name}: not in .* and could not be downloaded .*{name}.npz with") as caught:
        load(DataSettings(dataset=name, data_dir=str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_what_is_missing_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision = pytest.importorskip("torchvision")
    downloads = []

    def mnist(root: str, train: bool, download: bool) -> None:
        if not download:
            raise RuntimeError("Dataset not found.")
        downloads.append(train)
        raw = Path(root) / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        part = "train" if train else "t10k"
        for content, shape in (("images-idx3-ubyte", (10, 2, 2)), ("labels-idx1-ubyte", (10,))):
            head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            (raw / f"{part}-{content}").write_bytes(head + bytes(np.prod(shape)))

    monkeypatch.setattr(torchvision.datasets, "MNIST", mnist)
    settings = DataSettings(dataset="mnist", data_dir=str(tmp_path))
    fetch(settings)
    assert downloads == [True, False]
    monkeypatch.setattr(torchvision.datasets, "MNIST", None)
    fetch(settings)
    fetch(DataSettings(dataset="digits"))
    (tmp_path / "cifar10.npz").write_bytes(b"the clients read it")
    fetch(DataSettings(dataset="cifar10", data_dir=str(tmp_path)))


def test_fetch_knows_all_that_torchvision_downloads() -> None:
    assert set(_TORCHVISION) == {row.name for row in table() if row.download and "torchvision" in row.source}


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pytest.importorskip("torchvision")
    with pytest.raises(DataError, match="cifar10: not in"):
        load(DataSettings(dataset="cifar10", data_dir=str(tmp_path / "file" / "data")))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(
        DataError, match=r'dataset = "cifar10" needs the package torchvision \(pip install torchvision\)'
    ):
        load(DataSettings(dataset="cifar10", data_dir=str(tmp_path)))


@pytest.mark.parametrize(("name", "kind"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_real_idx_files_are_what_torchvision_reads(name: str, kind: str) -> None:
    torchvision = pytest.importorskip("torchvision")
    folder = real_data_dir()
    data = load(DataSettings(dataset=name, data_dir=str(folder)))
    for part, x, y in ((True, data.x_train, data.y_train), (False, data.x_test, data.y_test)):
        reference = getattr(torchvision.datasets, kind)(str(folder), train=part, download=False)
        assert np.array_equal(x[..., 0], reference.data.numpy()) and np.array_equal(y, reference.targets.numpy())
        if name != "mnist":
            assert data.class_names == tuple(reference.classes)
