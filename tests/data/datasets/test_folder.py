"""Folders of images: every layout, every error line, and damaged images."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import DataSettings, FederatedData, load
from fedpfl.data.datasets.client_files import own_data, read_own
from fedpfl.data.datasets.folder import read_image_folder


def images(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, 256, (n, *shape), dtype=np.uint8)


def picture(path: Path, pixels: np.ndarray) -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.fromarray(pixels).save(path)


def pictures(root: Path, *folders: str) -> Path:
    """Put two images, which differ by folder, into each folder."""
    for number, folder in enumerate(folders):
        for index in range(2):
            picture(root / folder / f"{index}.png", np.full((4, 4), 40 * number + index, np.uint8))
    return root


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
    def expect(message: str) -> None:
        with pytest.raises(DataError, match=message) as caught:
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


def of_16_bits(channels: int) -> bytes:
    """A PNG file of 4×4 pixels of 16 bits a channel."""
    rows = b"".join(b"\0" + bytes(8 * channels) for _ in range(4))
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", 4, 4, 16, kind, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part)) for name, part in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("held", [2**32, 0])
@pytest.mark.parametrize(("mode", "kept"), [("LA", "L"), ("P", "RGB"), ("RGBA", "RGB")])
def test_modes_without_a_loss_are_converted_with_a_remark(tmp_path: Path, mode: str, kept: str, held: int) -> None:
    image = pytest.importorskip("PIL.Image")
    pictures(tmp_path, "a", "b")
    one = image.fromarray(images(1, 4, 4, 3)[0]).convert(mode)
    one.save(tmp_path / "a" / "0.png")
    data = read_image_folder(tmp_path, held=held)
    assert data.remarks == (f"images of mode {mode} become {kept}; no pixel of theirs is transparent",)
    first = data.x_train[0] if held else data.x_train.read(0)
    np.testing.assert_array_equal(first.squeeze(), np.asarray(one.convert(kept)))


@pytest.mark.parametrize("held", [2**32, 0])
@pytest.mark.parametrize(
    ("mode", "name", "message"),
    [
        ("RGBA", "0.png", "mode RGBA with transparent pixels"), ("LA", "0.png", "mode LA with transparent pixels"),
        ("P", "0.png", "mode P with transparent pixels"), ("L", "0.png", "mode L with transparent pixels"),
        ("CMYK", "0.jpg", "mode CMYK does not become RGB without a loss"), ("I", "0.tif", "not mode I$"),
        ("LAB", "0.tif", "mode LAB does not become RGB without a loss"),
    ],
)  # fmt: skip
def test_modes_with_a_loss_are_refused(tmp_path: Path, mode: str, name: str, message: str, held: int) -> None:
    image = pytest.importorskip("PIL.Image")
    pictures(tmp_path, "a", "b")
    (tmp_path / "a" / "0.png").unlink()
    more = {"transparency": 0} if mode in ("L", "P") else {}
    image.new(mode, (4, 4)).save(tmp_path / "a" / name, **more)
    with pytest.raises(DataError, match=rf"a/{name}: .*{message}"):
        read_image_folder(tmp_path, held=held)


@pytest.mark.parametrize("held", [2**32, 0])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, "ppm"])
def test_more_than_8_bits_a_channel_are_refused(tmp_path: Path, channels: int | str, held: int) -> None:
    pictures(tmp_path, "a", "b")
    path = tmp_path / "a" / ("0.ppm" if channels == "ppm" else "0.png")
    path.write_bytes(b"P6 4 4 1023\n" + bytes(96) if channels == "ppm" else of_16_bits(channels))
    with pytest.raises(DataError, match=rf"a/{path.name}: only images of 8 bits a channel can be read, not mode"):
        read_image_folder(tmp_path, held=held)


def test_the_first_of_several_frames_counts_with_a_remark(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pictures(tmp_path, "a", "b")
    frames = [image.fromarray(one) for one in images(2, 4, 4)]
    frames[0].save(tmp_path / "a" / "0.tif", save_all=True, append_images=frames[1:])
    assert read_image_folder(tmp_path).remarks == ("of images with several frames the first one counts",)


@pytest.mark.parametrize("held", [0, 2**20])
@pytest.mark.parametrize(("turn", "told"), [(6, True), (1, False)])
def test_an_orientation_is_not_applied_with_a_remark(tmp_path: Path, turn: int, told: bool, held: int) -> None:
    image = pytest.importorskip("PIL.Image")
    pictures(tmp_path, "a", "b")
    exif = image.Exif()
    exif[274] = turn
    pixels = images(1, 4, 4)[0]
    image.fromarray(pixels).save(tmp_path / "a" / "0.png", exif=exif)
    data = read_image_folder(tmp_path, held=held)
    first = data.x_train[0] if held else data.x_train.read(0)
    assert first[..., 0].tolist() == pixels.tolist()
    assert [said for said in data.remarks if "orientation that their EXIF names is not applied" in said] == [
        "images are read as they are stored; the orientation that their EXIF names is not applied"
    ] * told


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
    options = DataSettings(dataset="image-folder", data=str(root), min_samples=2, partitioner="iid")
    assert FederatedData(options, 2, seed=1).remarks == [f"pets: {data.remarks[0]}"]
    assert own_data(options, str(root), 0, 1).remarks == [f"pets: {data.remarks[0]}"]
    root = root.rename(tmp_path / "more")  # a process reads a folder once
    data = read_image_folder(pictures(root, "test/cat"))
    assert len(data.y_test) == 2 and not data.remarks and data.validation.tolist() == [False] * 4 + [True] * 4
    one = own_data(options, str(root), 0, 1)
    assert one.sizes(0) == (4, 2) and len(one.validation(0).y) == 4


@pytest.mark.parametrize(
    ("folders", "message"),
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
def test_folders_of_another_layout_are_refused(tmp_path: Path, folders: list, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_image_folder(pictures(tmp_path, *folders))
    assert "\n" not in str(caught.value)


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
    monkeypatch.setattr(eps, "Ghostscript", lambda *arguments, **more: pytest.fail("Ghostscript was called"))
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
