"""Images in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterable

import numpy as np

from ...core.errors import DataError
from ..dataset import Dataset
from ..registry import dataset
from ..settings import DataSettings
from .places import data_dir, need, own_path

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Bytes of all images together in memory.
MAX_BYTES = 2**34


def read_image_folder(root: Path, size: int = 0) -> Dataset:
    """Read images from ``root/train/<class>/…`` and ``root/test/<class>/…``, or from ``root/<class>/…``.

    Classes are numbered in the order of their folders' names; a folder may be empty, so that devices which lack a class
    still agree on the numbers. All images must have one size, or are brought to squares of ``size`` pixels. They become
    grey if all of them are, else RGB. ``DataError`` names the folder or image that is wrong.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")
    has_split = (root / "train").is_dir() and (root / "test").is_dir()
    parts = [root / "train", root / "test"] if has_split else [root]
    classes = _folders(parts[0])
    if len(classes) < 2:
        found = ", ".join(classes) or "none"
        raise DataError(f"{parts[0]}: needs a folder for each of at least two classes, found {found}")
    if has_split:
        unknown = sorted(set(_folders(parts[1])) - set(classes))
        if unknown:
            raise DataError(f"{parts[1] / unknown[0]}: no such class in {parts[0]}")
    files = [[(path, label) for label, name in enumerate(classes) for path in _images(part / name)] for part in parts]
    for part, found_files in zip(parts, files):
        if not found_files:
            raise DataError(f"{part}: no images ({', '.join(IMAGE_SUFFIXES)})")
    pixels = _decode([path for part in files for path, _ in part], f"{root}", size)
    labels = np.array([label for part in files for _, label in part], np.int64)
    n = len(files[0])
    x_test, y_test = (pixels[n:], labels[n:]) if has_split else (None, None)
    return Dataset(root.name, pixels[:n], labels[:n], x_test, y_test, class_names=tuple(classes))


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())


def _decode(paths: list[Path], why: str, size: int = 0) -> np.ndarray:
    return decode(((str(path), path) for path in paths), len(paths), why, size)


def decode(files: Iterable[tuple[str, Any]], count: int, why: str, size: int = 0) -> np.ndarray:
    """Decode images of one size to uint8 n×H×W×C, grey if all of them are; raise ``DataError`` for a wrong one.

    ``files`` has what errors call an image, and its path or binary file; ``why`` is what needs Pillow, if that is
    missing. With a ``size`` above 0 the largest square in the middle of each image is scaled to so many pixels a side.
    """
    image_module, image_ops = need("PIL.Image", "Pillow", why), need("PIL.ImageOps", "Pillow", why)
    pixels: np.ndarray[Any, Any] = np.empty(0, np.uint8)
    first = ""
    for i, (where, file) in enumerate(files):
        try:
            with image_module.open(file) as image:
                if image.mode.startswith(("I", "F")):
                    raise DataError(f"{where}: only images of 8 bits a channel can be read, not mode {image.mode}")
                grey = image.mode in ("1", "L")
                whole = image.convert("L" if grey else "RGB")
                one = np.asarray(image_ops.fit(whole, (size, size)) if size else whole, np.uint8)
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise DataError(f"{where}: not a readable image: {error}") from error
        one = one.reshape(one.shape[0], one.shape[1], -1)
        if i == 0:
            if count * one.size > MAX_BYTES:
                raise DataError(f"{why}: {count} images like {where} need more than {MAX_BYTES >> 30} GiB")
            pixels, first = np.empty((count, *one.shape), np.uint8), where
        if one.shape[:2] != pixels.shape[1:3]:
            (h, w), (h0, w0) = one.shape[:2], pixels.shape[1:3]
            raise DataError(
                f"{where} is {w}×{h} pixels but {Path(first).name} is {w0}×{h0}: image-size resizes all to one size"
            )
        if one.shape[2] > pixels.shape[3]:  # the first images were grey, this one is not
            pixels = np.repeat(pixels, 3, axis=3)
        pixels[i] = one
    return pixels


@dataset(
    "image-folder",
    description="your own images",
    shape="any, all images of one size, or image-size",
    source="the folder named by `data`: train/<class>/… and test/<class>/…, or <class>/…",
    own=True,
)
def _image_folder(settings: DataSettings) -> Dataset:
    return read_image_folder(own_path(settings, "a folder of images"), settings.image_size)


@dataset(
    "tiny-imagenet",
    description="photographs of 200 classes",
    size="100,000 + 10,000",
    classes="200",
    shape="64×64×3",
    source="http://cs231n.stanford.edu/tiny-imagenet-200.zip, unpacked in data-dir (Le and Yang 2015)",
    download=True,
)
def _tiny_imagenet(settings: DataSettings) -> Dataset:
    root = data_dir(settings) / "tiny-imagenet-200"
    notes = root / "val" / "val_annotations.txt"
    if not (root / "train").is_dir() or not notes.is_file():
        raise DataError(
            f"{root}: not found; unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip in {root.parent} "
            "(train/<wnid>/images, val/val_annotations.txt, val/images)"
        )
    classes = _folders(root / "train")
    number = {wnid: label for label, wnid in enumerate(classes)}
    train = [(path, number[wnid]) for wnid in classes for path in _images(root / "train" / wnid)]
    test = []
    for line in notes.read_text().splitlines():
        file, wnid = [*line.split("\t"), ""][:2]
        if wnid not in number:
            raise DataError(f"{notes}: {line[:60]!r} does not name an image and one of the classes of train")
        test.append((root / "val" / "images" / file, number[wnid]))
    if not train or not test:
        raise DataError(f"{root}: no images in {'val' if train else 'train'}")
    pixels = _decode([path for path, _ in train + test], "tiny-imagenet")
    labels = np.array([label for _, label in train + test], np.int64)
    n = len(train)
    return Dataset("tiny-imagenet", pixels[:n], labels[:n], pixels[n:], labels[n:], class_names=tuple(classes))
