"""Reading data sets: every layout, every error line, and the real files where they are at hand."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from real_data import real_data_dir

from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import Dataset, DataSettings, FederatedData, dataset, fetch, load, table
from fedpfl.data.datasets.client_files import own_data, read_own
from fedpfl.data.datasets.folder import read_image_folder
from fedpfl.data.datasets.npz import read_npz
from fedpfl.data.datasets.published import _TORCHVISION, EMNIST_BALANCED
from fedpfl.data.reading import owners
from fedpfl.data.registry import DATASETS, dataset_names


def images(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, *shape), dtype=np.uint8)


def save(path: Path, **arrays: object) -> Path:
    np.savez(path, **arrays)
    return path


GOOD = {"x": np.zeros((6, 4), np.float32), "y": np.arange(6) % 3}


# -- npz ---------------------------------------------------------------------------------------------------------------


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
    words = r"gaps.npz: 3 different labels, the largest 7: number the classes from 0, or set num-classes = 8 if"
    with pytest.raises(DataError, match=words):
        load(settings)
    assert load(replace(settings, num_classes=8)).num_classes == 8
    save(tmp_path / "gaps.npz", x=x, y=y, classes=[f"class {i}" for i in range(8)])
    assert load(settings).missing == [2, 3, 4, 5, 6]
    save(tmp_path / "gaps.npz", x=x, y=np.array([0, 1, 4, 3, 3, 1]))
    assert (load(settings).num_classes, load(settings).missing) == (5, [2])


def test_owners_are_read_without_the_samples(tmp_path: Path) -> None:
    mine = {"x": np.array("never read"), "y": np.zeros(4, int), "client": np.array(["b", "b", "a", "b"])}
    settings = DataSettings(dataset="npz", data=str(save(tmp_path / "a.npz", **mine)))
    train, test, overlap = owners(settings)
    assert train.tolist() == [1, 1, 0, 1] and test is None and not overlap
    both = {"y_train": np.zeros(2, int), "y_test": np.zeros(1, int), "client_train": [5, 3], "client_test": [4]}
    save(tmp_path / "a.npz", **both)
    train, test, overlap = owners(settings)
    assert (train.tolist(), test.tolist()) == ([2, 0], [1])
    save(tmp_path / "a.npz", **GOOD)
    assert owners(settings) is None and owners(DataSettings()) is None


@pytest.mark.parametrize(
    ("change", "words"),
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
        ({"y": np.array([0, 1, 10**6, 0, 0, 0])}, "label 1000000 is too large"),
        ({"y": np.arange(6), "classes": ["a", "b"]}, r"y\[5\] is 5: labels must be 0 … 1"),
        ({"classes": np.zeros((2, 2))}, "classes is float64 2×2: must be a list of names"),
        ({"client": np.zeros(5, int)}, "client is int64 5: must be one number or name for each sample"),
        ({"client": np.zeros(6)}, "client is float64 6: must be one number or name"),
    ],
)
def test_npz_errors_are_one_line(tmp_path: Path, change: dict[str, object], words: str) -> None:
    arrays = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    path = save(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=words) as caught:
        read_npz(path)
    assert "\n" not in str(caught.value) and "bad.npz" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x_test": np.zeros((3, 5), np.float32)}, "x_train is float32 6×4, x_test is float32 3×5"),
        ({"x_test": None}, "no array x_test"),
        ({"client_test": np.zeros(3, int)}, "has client_test without client_train"),
        ({"client_train": np.zeros(6, int), "client_test": ["a"] * 3}, "must both be numbers or both be names"),
        ({"y_test": [0, 1, 9], "classes": ["a", "b", "c"]}, r"y_test\[2\] is 9"),
    ],
)
def test_npz_errors_between_parts(tmp_path: Path, change: dict[str, object], words: str) -> None:
    good = {"x_train": GOOD["x"], "y_train": GOOD["y"], "x_test": np.zeros((3, 4), np.float32), "y_test": [0, 1, 2]}
    path = save(tmp_path / "bad.npz", **{k: v for k, v in {**good, **change}.items() if v is not None})
    with pytest.raises(DataError, match=words):
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


# -- folders of images -------------------------------------------------------------------------------------------------


def picture(path: Path, pixels: np.ndarray) -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels).save(path)


def test_image_folder(tmp_path: Path) -> None:
    x = images(4, 6, 5, 3)
    for i, where in enumerate(["cat/b.png", "cat/a.png", "dog/c.bmp", "dog/d.png"]):
        picture(tmp_path / where, x[i])
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "elk").mkdir()
    data = load(DataSettings(dataset="image-folder", data=str(tmp_path)))
    assert data.class_names == ("cat", "dog", "elk") and data.num_classes == 3 and data.x_test is None
    assert data.y_train.tolist() == [0, 0, 1, 1]
    assert np.array_equal(data.x_train, x[[1, 0, 2, 3]]) and data.input_shape == (3, 6, 5)


def test_image_folder_with_test_set_and_grey_images(tmp_path: Path) -> None:
    x = images(4, 6, 5)
    for i, where in enumerate(["train/a/0.png", "train/b/0.png", "test/b/0.png", "test/b/1.png"]):
        picture(tmp_path / where, x[i])
    data = read_image_folder(tmp_path)
    assert data.x_train.shape == (2, 6, 5, 1) and data.y_test.tolist() == [1, 1]
    assert np.array_equal(data.x_test[..., 0], x[2:])
    colour = images(1, 6, 5, 3)[0]
    picture(tmp_path / "test" / "a" / "2.png", colour)
    mixed = read_image_folder(tmp_path)
    assert mixed.x_train.shape == (2, 6, 5, 3) and (mixed.x_train[..., 0] == mixed.x_train[..., 2]).all()
    assert np.array_equal(mixed.x_test[0], colour)


def test_image_folder_errors(tmp_path: Path) -> None:
    def expect(words: str) -> None:
        with pytest.raises(DataError, match=words) as caught:
            read_image_folder(tmp_path / "root")
        assert "\n" not in str(caught.value)

    expect("no such folder")
    (tmp_path / "root" / "a").mkdir(parents=True)
    expect("at least two classes, found a")
    (tmp_path / "root" / "b").mkdir()
    expect("no images")
    picture(tmp_path / "root" / "a" / "0.png", images(1, 6, 5)[0])
    picture(tmp_path / "root" / "b" / "1.png", images(1, 7, 5)[0])
    expect(r"1.png is 5×7 pixels but 0.png is 5×6: image-size resizes all to one size")
    (tmp_path / "root" / "b" / "1.png").write_bytes(b"nothing")
    expect("1.png: not a readable image")
    picture(tmp_path / "root" / "b" / "1.png", np.zeros((6, 5), np.uint16))
    expect("1.png: only images of 8 bits a channel")
    for part in ("train/a", "train/b", "test/c"):
        (tmp_path / "root" / part).mkdir(parents=True)
    expect("test/c: no such class in")
    with pytest.raises(ConfigError, match="data = '': must be the path of a folder of images"):
        load(DataSettings(dataset="image-folder"))


def pictures(root: Path, *folders: str) -> Path:
    """Put two images, which differ by folder, into each folder."""
    for number, folder in enumerate(folders):
        for at in range(2):
            picture(root / folder / f"{at}.png", np.full((4, 4), 40 * number + at, np.uint8))
    return root


@pytest.mark.parametrize(("train", "test"), [("Train", "Test"), ("training", "testing"), ("TRAIN", "test")])
def test_parts_of_image_folders_have_several_names(tmp_path: Path, train: str, test: str) -> None:
    folders = [f"{part}/{kind}" for part in (train, test) for kind in ("cat", "dog")]
    data = read_image_folder(pictures(tmp_path, *folders))
    assert data.class_names == ("cat", "dog") and data.y_test.tolist() == [0, 0, 1, 1] and data.remarks == ()
    assert data.x_train[:, 0, 0, 0].tolist() == [0, 1, 40, 41] and data.x_test[:, 0, 0, 0].tolist() == [
        80,
        81,
        120,
        121,
    ]


@pytest.mark.parametrize("part", ["val", "valid", "Validation"])
def test_a_validation_part_is_used_or_named(tmp_path: Path, part: str) -> None:
    root = pictures(tmp_path / "pets", *(f"{one}/{kind}" for one in ("train", part) for kind in ("cat", "dog")))
    data = read_image_folder(root)
    assert len(data.y_test) == 4 and data.remarks == (f"there is no part test: {part} is the test set",)
    given = DataSettings(dataset="image-folder", data=str(root), min_samples=2, partitioner="iid")
    assert FederatedData(given, 2, seed=1).remarks == [f"pets: {data.remarks[0]}"]
    assert own_data(given, str(root), 0, 1).remarks == [f"pets: {data.remarks[0]}"]
    root = root.rename(tmp_path / "more")  # a process reads a folder once
    data = read_image_folder(pictures(root, "test/cat"))
    assert len(data.y_test) == 2 and not data.remarks and data.validation.tolist() == [False] * 4 + [True] * 4
    one = own_data(given, str(root), 0, 1)
    assert one.sizes(0) == (4, 2) and len(one.validation(0).y) == 4


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (["photo/cat", "photo/dog", "art/cat", "art/dog"], "holds art, photo, which hold cat, dog: it is unclear"),
        (["train/photo/cat", "train/photo/dog", "train/art/dog", "test/art/cat"], "art, photo, which hold cat, dog"),
        (["cat", "dog/puppies"], "holds cat, dog, which hold images, puppies"),
        (["train/cat", "train/dog"], "must have one folder called train and one called test; it has train$"),
        (["val/cat", "test/cat"], "must have one folder called train and one called test; it has test, val$"),
        (["train/cat", "Train/dog", "test/cat"], "one folder called train and one called test; it has Train, test, tr"),
        (["train", "test"], r"train/0\.png: lies next to the folders of the classes; expected are train/<class>/"),
        (["cat", "dog", "."], r"/0\.png: lies next to the folders of the classes"),
        (["train/cat", "train/dog", "test/cat", "train"], r"train/0\.png: lies next to the folders of the classes"),
    ],
)
def test_folders_of_another_layout_are_refused(tmp_path: Path, folders: list, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        read_image_folder(pictures(tmp_path, *folders))
    assert "\n" not in str(caught.value)


def test_parts_have_the_names_that_keys_of_a_dict_may_have(tmp_path: Path) -> None:
    data = read_image_folder(pictures(tmp_path, "training_set/cat", "training_set/dog", "test_set/cat", "dev/dog"))
    assert data.y_train.tolist().count(0) and len(data.y_test) and data.validation.any() and not data.remarks


def test_a_class_may_be_called_train_and_lie_deeper(tmp_path: Path) -> None:
    assert read_image_folder(pictures(tmp_path / "a", "bus", "train")).class_names == ("bus", "train")
    deeper = read_image_folder(pictures(tmp_path / "b", "bus/images", "car/images"))
    assert deeper.class_names == ("bus", "car") and deeper.y_train.tolist() == [0, 0, 1, 1]


def test_files_that_are_no_images_are_counted(tmp_path: Path) -> None:
    pictures(tmp_path / "pets", "cat", "dog", "__MACOSX/cat", ".thumbs")
    for name in ("cat/2.heic", "cat/3.HEIC", "dog/notes.txt", "dog/4", "dog/._0.png"):
        (tmp_path / "pets" / name).write_bytes(b"something")
    data = read_image_folder(tmp_path / "pets")
    assert len(data.y_train) == 4 and data.class_names == ("cat", "dog")
    assert data.remarks == ("files that are no images are left out: 1 without an ending, 2 .heic, 1 .txt",)


def test_a_client_may_have_images_of_one_class(tmp_path: Path) -> None:
    pictures(tmp_path, "ann/cat", "ben/cat", "ben/dog")
    data = load(DataSettings(dataset="clients", data=str(tmp_path)))
    assert data.class_names == ("cat", "dog") and data.y_train.tolist() == [0, 0, 0, 0, 1, 1]
    with pytest.raises(DataError, match="at least two classes, found cat"):
        read_own(tmp_path / "ann", DataSettings())


def test_an_image_of_another_format_starts_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, eps = pytest.importorskip("PIL.Image"), pytest.importorskip("PIL.EpsImagePlugin")
    monkeypatch.setattr(eps, "Ghostscript", lambda *given, **more: pytest.fail("Ghostscript was called"))
    pictures(tmp_path, "cat", "dog")
    for form in ("EPS", "DDS", "TGA", "ICO"):
        image.new("RGB", (16, 16)).save(tmp_path / "cat" / "0.png", form)
        with pytest.raises(DataError, match=r"0\.png: not a readable image of the formats BMP, GIF, JPEG, PNG"):
            read_image_folder(tmp_path)


@pytest.mark.parametrize("size", [0, 8])
@pytest.mark.parametrize("side", [10_000, 60_000])  # of the first Pillow only warns
def test_images_of_too_many_pixels_are_refused_before_they_are_decoded(tmp_path: Path, side: int, size: int) -> None:
    image = pytest.importorskip("PIL.Image")
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    content = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + b"\0\0\0\0IDAT"
    (pictures(tmp_path, "cat", "dog") / "cat" / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    with pytest.raises(DataError, match=rf"0\.png: has more than {image.MAX_IMAGE_PIXELS:,} pixels"):
        read_image_folder(tmp_path, size)


def test_damaged_images_are_one_line(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    file = pictures(tmp_path, "cat", "dog") / "cat" / "0.png"
    for form in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"):
        image.fromarray(rng.integers(0, 255, (4, 4), np.uint8)).save(file, form)
        whole = file.read_bytes()
        for _ in range(40):
            content = bytearray(whole[: rng.integers(10, len(whole) + 1)])
            for place in rng.integers(8, len(content), 4):
                content[place] = rng.integers(256)
            file.write_bytes(content)
            try:
                read_image_folder(tmp_path, 4)
            except DataError as error:
                assert "\n" not in str(error)


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


def test_damage_anywhere_in_an_npz_file_is_one_line(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "x.npz"
    for write in (np.savez, np.savez_compressed):
        write(path, x=rng.normal(size=(4, 3)), y=[0, 1, 0, 1])
        whole = path.read_bytes()
        for place in rng.choice(len(whole), 300, replace=False):
            path.write_bytes(whole[:place] + bytes([rng.integers(256)]) + whole[place + 1 :])
            try:
                read_npz(path)
            except DataError as error:
                assert "\n" not in str(error)


def test_a_sparse_matrix_of_scipy_is_one_line(tmp_path: Path) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_matrix(np.eye(3)))
    with pytest.raises(DataError, match=r"holds a sparse matrix of SciPy; save its toarray\(\) as x, with y"):
        read_npz(tmp_path / "x.npz")


def test_tiny_imagenet(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    settings = DataSettings(dataset="tiny-imagenet", data_dir=str(tmp_path))
    with pytest.raises(DataError, match=r"not found; unpack http://cs231n"):
        load(settings)
    for wnid, shade in (("n02", 250), ("n01", 5)):
        for i in range(2):
            picture(root / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", np.full((64, 64, 3), shade, np.uint8))
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    picture(root / "val" / "images" / "val_0.JPEG", np.full((64, 64), 250, np.uint8))
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t0\t63\t63\n")
    data = load(settings)
    assert data.class_names == ("n01", "n02") and data.input_shape == (3, 64, 64)
    assert data.y_train.tolist() == [0, 0, 1, 1] and data.y_test.tolist() == [1]
    assert [int(image.mean()) for image in data.x_train] == [5, 5, 250, 250] and int(data.x_test.mean()) == 250
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\n")
    with pytest.raises(DataError, match="does not name an image and one of the classes"):
        load(settings)


# -- published data sets -----------------------------------------------------------------------------------------------


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


def test_import_is_light() -> None:
    """A device without these packages can read its own data; nothing slow is imported before it is needed."""
    code = (
        "import sys, fedpfl.data; "
        "print([m for m in ('torch', 'torchvision', 'sklearn', 'PIL', 'matplotlib', 'flwr') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- registry ----------------------------------------------------------------------------------------------------------


def test_every_data_set_is_described() -> None:
    rows = table()
    assert [row.name for row in rows] == dataset_names()
    expected = {"digits", "mnist", "fashion-mnist", "emnist", "cifar10", "cifar100", "svhn", "tiny-imagenet", "npz"}
    own = {"npz", "image-folder", "table", "series", "huggingface", "clients"}
    assert expected | own | {"shakespeare", "ag-news"} == set(dataset_names())
    assert {row.name for row in rows if row.own} == own
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


# -- real files --------------------------------------------------------------------------------------------------------


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
    own = name in ("har", "femnist")
    settings = (
        DataSettings(dataset="npz", data=str(folder / f"{name}.npz"))
        if own
        else DataSettings(dataset=name, data_dir=str(folder))
    )
    data = load(settings)
    assert len(data.y_train) == train and data.num_classes == classes and data.input_shape == shape
    assert (data.client_train is not None) == own and (data.x_test is None) == own


def test_emnist_classes_are_torchvisions() -> None:
    reference = pytest.importorskip("torchvision").datasets.EMNIST
    assert list(EMNIST_BALANCED) == reference.classes_split_dict["balanced"]
