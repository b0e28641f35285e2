"""npz files: every form of samples, every error line, and the real files where they are available."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from real_data import real_data_dir

from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import Dataset, DataSettings, dataset, load, table
from fedpfl.data.datasets.npz import read_npz
from fedpfl.data.datasets.published import EMNIST_BALANCED
from fedpfl.data.registry import DATASETS, dataset_names


def images(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, *shape), dtype=np.uint8)


def save(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


GOOD = {"x": np.zeros((6, 4), np.float32), "y": np.arange(6) % 3}


@pytest.mark.parametrize(
    ("x", "inner", "seen"),
    [
        (images(6, 5, 4), (6, 5, 4, 1), (1, 5, 4)),
        (images(6, 5, 4, 3), (6, 5, 4, 3), (3, 5, 4)),
        (np.ones((6, 7), np.float32), (6, 7), (7,)),
        (np.ones((6, 9, 128), np.float32), (6, 9, 128), (9, 128)),
        (np.ones((6, 7), np.float64), (6, 7), (7,)),
    ],
)
def test_npz_kinds_of_samples(tmp_path: Path, x: np.ndarray, inner: tuple[int, ...], seen: tuple[int, ...]) -> None:
    data = read_npz(save(tmp_path / "own.npz", x=x, y=np.arange(6, dtype=np.uint8) % 3))
    assert data.x_train.shape == inner and data.input_shape == seen
    assert data.x_train.dtype == (np.uint8 if x.dtype == np.uint8 else np.float32)
    assert data.y_train.dtype == np.int64 and data.num_classes == 3 and data.class_names == ("0", "1", "2")
    assert data.name == "own" and data.x_test is None and data.client_train is None
    assert np.array_equal(data.x_train.reshape(x.shape), x)


def test_npz_with_test_set_owners_and_names(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.npz",
        x_train=images(5, 4, 4), y_train=[0, 1, 1, 0, 3], x_test=images(3, 4, 4), y_test=[2, 1, 0],
        client_train=["b", "b", "a", "c", "a"], client_test=["c", "a", "d"], classes=["k", "l", "m", "n"], extra=[1],
    )  # fmt: skip
    data = load(DataSettings(dataset="npz", data=str(path)))
    assert data.class_names == ("k", "l", "m", "n") and data.num_classes == 4
    assert data.client_train.tolist() == [1, 1, 0, 2, 0] and data.client_test.tolist() == [2, 0, 3]
    assert data.x_test.shape == (3, 4, 4, 1) and data.y_test.tolist() == [2, 1, 0]


def test_number_of_classes_can_be_given(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", **GOOD)
    assert read_npz(path, num_classes=10).num_classes == 10
    with pytest.raises(DataError, match="labels must be 0 … 1"):
        read_npz(path, num_classes=2)
    named = save(tmp_path / "b.npz", **GOOD, classes=["a", "b", "c"])
    with pytest.raises(DataError, match="has 3 classes, the federation has 10"):
        read_npz(named, num_classes=10)


def test_labels_that_are_no_places_in_a_list_are_refused(tmp_path: Path) -> None:
    x, y = np.zeros((6, 4), np.float32), np.array([0, 1, 7, 0, 1, 7])
    settings = DataSettings(dataset="npz", data=str(save(tmp_path / "gaps.npz", x=x, y=y)))
    message = r"gaps.npz: 3 different labels, the largest 7: number the classes from 0, or set num-classes = 8 if"
    with pytest.raises(DataError, match=message):
        load(settings)
    assert load(replace(settings, num_classes=8)).num_classes == 8
    save(tmp_path / "gaps.npz", x=x, y=y, classes=[f"class {i}" for i in range(8)])
    assert load(settings).missing == [2, 3, 4, 5, 6]
    save(tmp_path / "gaps.npz", x=x, y=np.array([0, 1, 4, 3, 3, 1]))
    assert (load(settings).num_classes, load(settings).missing) == (5, [2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "no array x_train; needs x, y or x_train, y_train, x_test, y_test, found y"),
        ({"y": None}, "no array y; needs"),
        ({"x_train": np.zeros((2, 2), np.float32)}, "has both x and x_train"),
        ({"x": np.zeros((6, 4), np.int64)}, "x is int64 6×4: must be uint8 n×H×W or n×H×W×C"),
        ({"x": np.zeros((6, 4), np.uint8)}, "x is uint8 6×4: must be uint8 n×H×W or n×H×W×C"),
        ({"x": np.zeros((6, 2, 2, 3, 2), np.float32)}, "x is float32 6×2×2×3×2: must be"),
        ({"x": np.zeros((6, 3, 32, 32), np.uint8)}, "channels must come last"),
        ({"x": np.full((6, 4), np.nan, np.float32)}, "not finite"),
        ({"x": np.zeros((0, 4), np.float32), "y": np.zeros(0, int)}, "x is float32 0×4: no samples"),
        ({"x": np.array([{}] * 6, object)}, "cannot be read: it holds Python objects"),
        ({"y": np.zeros(5)}, "y has 5 targets for 6 samples"),
        ({"y": np.full(6, np.inf)}, "y holds a value that is not finite"),
        ({"y": np.zeros((6, 2), int)}, "y is int64 6×2: must be whole numbers, one for each sample; targets of more"),
        ({"y": np.zeros(5, int)}, "y has 5 labels for 6 samples"),
        ({"y": np.array([0, 1, -1, 0, 0, 0])}, r"y\[2\] is -1: labels must be 0"),
        ({"y": np.array([0, 1, 10**6, 0, 0, 0])}, "has label 1000000: labels must be 0 … 99999"),
        ({"y": np.arange(6), "classes": ["a", "b"]}, "y_train has label 5: labels must be 0 … 1"),
        ({"classes": np.zeros((2, 2))}, "classes is float64 2×2: must be a list of names"),
        ({"client": np.zeros(5, int)}, "client is int64 5: must be one number or name for each sample"),
        ({"client": np.zeros(6)}, "client is float64 6: must be one number or name"),
    ],
)
def test_npz_errors_are_one_line(tmp_path: Path, change: dict[str, object], message: str) -> None:
    arrays = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    path = save(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=message) as caught:
        read_npz(path)
    assert "\n" not in str(caught.value) and "bad.npz" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_test": np.zeros((3, 5), np.float32)}, "x_test and x_train must be alike: float32"),
        ({"x_test": None}, "no array x_test"),
        ({"client_test": np.zeros(3, int)}, "has client_test without client_train"),
        ({"client_train": np.zeros(6, int), "client_test": ["a"] * 3}, "must both be numbers or both be names"),
        ({"client_train": np.full(6, 2**63, np.uint64)}, "client_train has owner 9223372036854775808: numbers of"),
        ({"y_test": [0, 1, 9], "classes": ["a", "b", "c"]}, "y_test has label 9"),
    ],
)
def test_npz_errors_between_parts(tmp_path: Path, change: dict[str, object], message: str) -> None:
    good = {"x_train": GOOD["x"], "y_train": GOOD["y"], "x_test": np.zeros((3, 4), np.float32), "y_test": [0, 1, 2]}
    path = save(tmp_path / "bad.npz", **{k: v for k, v in {**good, **change}.items() if v is not None})
    with pytest.raises(DataError, match=message):
        read_npz(path)


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.npz: no such file"):
        read_npz(tmp_path / "nothing.npz")
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(DataError, match=r"text\.npz: not an npz file"):
        read_npz(text)
    whole = save(tmp_path / "whole.npz", x=images(50, 9, 9), y=np.zeros(50, int)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:3000])
    with pytest.raises(DataError, match=r"cut\.npz: not an npz file"):
        read_npz(tmp_path / "cut.npz")
    damaged = bytearray(whole)
    damaged[200:2000] = bytes(1800)
    (tmp_path / "damaged.npz").write_bytes(damaged)
    with pytest.raises(DataError, match=r"damaged\.npz: cannot be read"):
        read_npz(tmp_path / "damaged.npz")
    with pytest.raises(ConfigError, match="data = '': must be the path of an npz file"):
        load(DataSettings(dataset="npz"))


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    marker = tmp_path / "executed"

    class Evil:
        def __reduce__(self) -> object:
            return (Path.touch, (marker,))

    save(tmp_path / "evil.npz", x=np.array([Evil()], object), y=[0])
    with pytest.raises(DataError, match="it holds Python objects"):
        read_npz(tmp_path / "evil.npz")
    assert not marker.exists()


def test_an_npz_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path, stream = tmp_path / "x.npz", io.BytesIO()
    np.save(stream, np.ones((2, 300), np.float32))
    x = stream.getvalue()

    def with_x(content: bytes, kind: int = zipfile.ZIP_STORED, name: str = "x.npy") -> bytes:
        with zipfile.ZipFile(path, "w", kind) as archive:
            archive.writestr(name, content)
        return path.read_bytes()

    def changed(offset: int, to: int) -> bytes:
        content = bytearray(with_x(x))
        content[offset] = content[content.index(b"PK\1\2") + offset + 2] = to
        return bytes(content)

    plain, packed = with_x(x), with_x(x, zipfile.ZIP_LZMA)
    damaged = {
        "encrypted": changed(6, 1),
        "of an unknown compression": changed(8, 77),
        "LZMA, damaged": packed[:60] + b"\xff" * 20 + packed[80:],
        "damaged": plain[:1000] + b"\xff" * 20 + plain[1020:],
        "without NumPy's header": with_x(b"only bytes"),
        "not npy": with_x(b"only bytes", name="x"),
        "a header of nonsense": with_x(b"\x93NUMPY\1\0\x08\0{'a': (}"),
        "an immense array": with_x(x.replace(b"(2, 300)", b"(2**50,)")),
        "an immense number": with_x(x.replace(b"(2, 300), }", b"(1" + b"0" * 15 + b",)}")),
    }
    for what, content in damaged.items():
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x\.npz: ") as caught:
            read_npz(path)
        assert "\n" not in str(caught.value), what


@pytest.mark.parametrize("content", [b"", b"junk", b"\x93NUMPY\1\0\x08\0{'a': (}"])
def test_a_damaged_array_that_is_not_used_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = save(tmp_path / "x.npz", **GOOD)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("read me", "not an array")
    assert len(read_npz(path).y_train) == 6
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("extra.npy", content)
    with pytest.raises(DataError, match=r"x\.npz: cannot be read"):
        read_npz(path)


def test_a_sparse_matrix_of_scipy_is_one_line(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_matrix(np.eye(3)))
    with pytest.raises(DataError, match=r"holds a sparse matrix of SciPy; save its toarray\(\) as x, with y"):
        read_npz(tmp_path / "x.npz")


def test_import_is_light() -> None:
    """A device without these packages can read its own data; nothing slow is imported before it is needed."""
    code = (
        "import sys, fedpfl.data; "
        "print([m for m in ('torch', 'torchvision', 'sklearn', 'PIL', 'matplotlib', 'flwr') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_data_set_is_described() -> None:
    rows = table()
    assert [row.name for row in rows] == dataset_names()
    expected = {"digits", "mnist", "fashion-mnist", "emnist", "cifar10", "cifar100", "svhn", "tiny-imagenet", "npz"}
    from_paths = {"npz", "image-folder", "table", "series", "huggingface", "clients"}
    assert expected | from_paths | {"shakespeare", "ag-news"} == set(dataset_names())
    assert {row.name for row in rows if row.from_path} == from_paths
    assert all(all(row[:6]) for row in rows)
    assert not {row.name for row in rows if row.download} & {"digits", "npz", "image-folder"}


def test_a_new_data_set_is_one_function() -> None:
    @dataset("blobs", description="d", size="4", classes="2", shape="3", source="here")
    def blobs(settings: DataSettings) -> Dataset:
        return Dataset.of("blobs", np.zeros((4, 3), np.float32), np.array([0, 1, 0, 1]))

    try:
        data = load(DataSettings(dataset="blobs"))
        assert data.num_classes == 2 and data.class_names == ("0", "1") and data.input_shape == (3,)
    finally:
        del DATASETS._entries["blobs"]
    with pytest.raises(ConfigError, match="dataset = 'blobs': must be one of npz"):
        load(DataSettings(dataset="blobs"))


@pytest.mark.parametrize(
    ("name", "train", "classes", "shape"),
    [
        ("cifar10", 50000, 10, (3, 32, 32)),
        ("cifar100", 6910, 100, (3, 32, 32)),
        ("har", 10299, 6, (9, 128)),
        ("femnist", 5997, 10, (1, 28, 28)),
    ],
)
def test_real_npz_files(name: str, train: int, classes: int, shape: tuple[int, ...]) -> None:
    folder = real_data_dir()
    by_owner = name in ("har", "femnist")
    settings = (
        DataSettings(dataset="npz", data=str(folder / f"{name}.npz"))
        if by_owner
        else DataSettings(dataset=name, data_dir=str(folder))
    )
    data = load(settings)
    assert len(data.y_train) == train and data.num_classes == classes and data.input_shape == shape
    assert (data.client_train is not None) == by_owner and (data.x_test is None) == by_owner


def test_emnist_classes_are_torchvisions() -> None:
    reference = pytest.importorskip("torchvision").datasets.EMNIST
    assert list(EMNIST_BALANCED) == reference.classes_split_dict["balanced"]
