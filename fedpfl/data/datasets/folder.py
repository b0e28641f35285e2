"""Images in folders."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Iterable, Iterator

import numpy as np

from ...core.errors import DataError, words_of
from ...core.name_lists import in_short
from ..dataset import Dataset
from ..registry import dataset
from ..settings import DataSettings
from .reading_helpers import (
    RGB,
    ChosenParts,
    chosen_parts,
    coloured,
    data_dir,
    is_part,
    need,
    of_parts,
    opened,
    own_path,
)

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Pillow has more, some of which start other programs.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# Modes whose images become the mode beside it without a loss, as long as no pixel is transparent.
_EXACT = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB"}
_AS_STORED = ("1", "L", "RGB")
# Of 16 bits a channel Pillow gives the upper 8, but for grey images.
_OF_16_BITS = re.compile(r";16[BLNRS]")
# What Pillow's decoders raise for damaged files.
_DAMAGED = (
    OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, IndexError, KeyError, TypeError,
    OverflowError, MemoryError, NotImplementedError,
)  # fmt: skip
# The field of EXIF that says how a photograph is to be turned; 1 is not at all.
ORIENTATION = 274
# Bytes of all images together in memory.
MAX_BYTES = 2**34
# Folders with more bytes of pixels are not held in memory: their images are decoded when they are needed.
MAX_HELD = 2**32
LAYOUT = "expected are train/<class>/ and test/<class>/ with images, or <class>/"


def read_image_folder(root: Path, size: int = 0, alone: bool = True, held: int = MAX_HELD) -> Dataset:
    """Read images from ``root/train/<class>/…`` and ``root/test/<class>/…``, or from ``root/<class>/…``.

    A class's folder may be empty, so that devices which lack it still agree on the numbers. Unless ``alone``, where
    other clients may have the other classes, there are at least two. More than ``held`` bytes of pixels are read later.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")
    names = [entry.name for entry in _entries(root) if entry.is_dir()]
    # A class may be called train: its folder holds images, and that of a part folders.
    parts = [name for name in names if is_part(name) and _is_of_folders(root / name)]
    chosen = ChosenParts(("",), ())
    if parts or (names and all(map(is_part, names))):
        chosen = chosen_parts(root, names, "folder")
    _refuse_images(root)
    others: Counter[str] = Counter()
    files = {part: _classes(root / part, others) for part in chosen.names}
    first, *tests = files
    classes = list(files[first])
    if len(classes) < (2 if alone else 1):
        folders = in_short(classes) or "none"
        raise DataError(f"{root / first}: needs a folder for each of at least two classes, found {folders}; {LAYOUT}")
    for part in tests:
        if unknown := sorted(files[part].keys() - files[first].keys()):
            raise DataError(f"{root / part / unknown[0]}: no such class in {root / first}")
    paths = {part: [path for images in files[part].values() for path in images] for part in files}
    for part in files:
        if not paths[part]:
            raise DataError(f"{root / part}: no images ({', '.join(IMAGE_SUFFIXES)})")
    said: dict[str, None] = {}
    pixels = _decode_or_defer([path for part in paths.values() for path in part], f"{root}", size, held, said)
    number = {name: label for label, name in enumerate(classes)}
    labels = np.array([number[name] for part in files.values() for name, some in part.items() for _ in some], np.int64)
    ends = np.cumsum([0, *map(len, paths.values())])
    xs, ys = ([samples[start:end] for start, end in zip(ends, ends[1:])] for samples in (pixels, labels))
    endings = in_short([f"{count} {suffix or 'without an ending'}" for suffix, count in sorted(others.items())])
    left = (f"files that are no images are left out: {endings}",) if others else ()
    return of_parts(root.name, xs, ys, class_names=tuple(classes), remarks=(*chosen.remarks, *left, *said))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, by name, without those that programs leave there: .DS_Store, __MACOSX."""
    return sorted((e for e in os.scandir(folder) if not e.name.startswith((".", "__"))), key=lambda entry: entry.name)


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in IMAGE_SUFFIXES


def _is_of_folders(folder: Path) -> bool:
    entries = _entries(folder)
    return any(entry.is_dir() for entry in entries) and not any(_is_image(entry.name) for entry in entries)


def _refuse_images(folder: Path) -> None:
    if stray := [entry.name for entry in _entries(folder) if entry.is_file() and _is_image(entry.name)]:
        raise DataError(f"{folder / stray[0]}: lies next to the folders of the classes; {LAYOUT}")


def _classes(part: Path, others: Counter[str]) -> dict[str, list[Path]]:
    """Return the images of each class; count, by their endings, the files that are none."""
    _refuse_images(part)
    inside: set[str] = set()
    images = {entry.name: _images(Path(entry), inside, others) for entry in _entries(part) if entry.is_dir()}
    # One folder such as <class>/images is no choice between classes.
    if len(inside) > 1:
        names, deeper = in_short(list(images)), in_short([name or "images" for name in sorted(inside)])
        raise DataError(
            f"{part}: holds {names}, which hold {deeper}: it is unclear which folders are the classes; {LAYOUT}. Where "
            'each folder is a client, use dataset = "clients"'
        )
    return images


def _images(folder: Path, inside: set[str], others: Counter[str], under: str = "") -> list[Path]:
    """Return the images of a folder and those in it; note below which names they are."""
    images = []
    for entry in _entries(folder):
        if entry.is_dir(follow_symlinks=False):
            images += _images(Path(entry), inside, others, f"{under}/{entry.name}".lstrip("/"))
        elif _is_image(entry.name):
            images.append(Path(entry))
            inside.add(under)
        else:
            others[Path(entry).suffix.lower()] += 1
    return images


def _decode_or_defer(paths: list[Path], why: str, size: int, held: int, said: dict[str, None]) -> Any:
    """Decode images, or look only at their sizes and colours if their pixels have more than ``held`` bytes."""
    w, h = (size, size) if size else _look(paths[0], why, {})[0]
    if len(paths) * w * h * RGB <= held:
        return decode(((str(path), path) for path in paths), len(paths), why, said, size)
    from .lazy import LazyArray

    grey = True
    for path in paths:
        shape, is_grey = _look(path, why, said)
        _require_size((size, size) if size else shape, (w, h), str(path), paths[0].name)
        grey = grey and is_grey

    def read(place: int) -> np.ndarray:
        with opened_image(paths[place], str(paths[place]), why) as image:
            one = pixels_of(image, str(paths[place]), why, {}, size)
        return one if grey else coloured(one[None])[0]

    return LazyArray([(len(paths), read)], np.empty((h, w, 1 if grey else RGB), np.uint8))


def _look(path: Path, why: str, said: dict[str, None]) -> tuple[tuple[int, int], bool]:
    """Return an image's width and height, and whether it is grey, without decoding it unless it may be transparent."""
    with opened_image(path, str(path), why) as image:
        _note_rest(image, said)
        return image.size, _mode_of(image, str(path), said) == "L"


def _mode_of(image: Any, where: str, said: dict[str, None]) -> str:
    """Return the mode, grey or RGB, in which an image loses nothing; ``DataError`` for one that would.

    What becomes of another mode is a key of ``said``.
    """
    if image.mode.startswith(("I", "F")):
        raise DataError(f"{where}: only images of 8 bits a channel can be read, not mode {image.mode}")
    if any(_is_deep(tile[3]) for tile in getattr(image, "tile", ())):
        raise DataError(f"{where}: only images of 8 bits a channel can be read, not mode {image.mode} of 16 bits")
    if image.mode not in _EXACT:
        message = f"mode {image.mode} does not become RGB without a loss: convert it, or give arrays (.npz)"
        raise DataError(f"{where}: {message}")
    if _is_transparent(image):
        message = f"mode {image.mode} with transparent pixels, whose colour is open: lay it on a background"
        raise DataError(f"{where}: {message} and convert it to RGB, or give arrays (.npz)")
    mode = _EXACT[image.mode]
    if image.mode not in _AS_STORED:
        said[f"images of mode {image.mode} become {mode}; no pixel of theirs is transparent"] = None
    return mode


def _is_transparent(image: Any) -> bool:
    if image.mode not in ("LA", "RGBA") and "transparency" not in image.info:
        return False
    return bool(image.convert("RGBA").getchannel("A").getextrema()[0] < 255)


def _is_deep(arguments: Any) -> bool:
    """Tell from the arguments of a decoder of Pillow's whether an image has more than 8 bits a channel."""
    kind, *more = arguments if isinstance(arguments, tuple) else (arguments,)
    brightest = more[0] if kind in ("L", "RGB") and len(more) == 1 and isinstance(more[0], int) else 0  # of PPM
    return brightest > 255 or bool(_OF_16_BITS.search(str(kind)))


def _note_rest(image: Any, said: dict[str, None]) -> None:
    """Tell what a file has besides the pixels that are read: more frames, or a turn for those who look at it."""
    if getattr(image, "n_frames", 1) > 1:
        said["of images with several frames the first one counts"] = None
    # Only if there is EXIF: to look for it Pillow decodes a whole PNG. Damage in it harms no pixel.
    with contextlib.suppress(*_DAMAGED):
        if "exif" in image.info and image.getexif().get(ORIENTATION, 1) != 1:
            said["images are read as they are stored; the orientation that their EXIF names is not applied"] = None


def _require_size(size: tuple[int, int], first: tuple[int, int], where: str, whose: str) -> None:
    if size != first:
        (w, h), (w0, h0) = size, first
        raise DataError(f"{where} is {w}×{h} pixels but {whose} is {w0}×{h0}: image-size resizes all to one size")


def pixels_of(image: Any, where: str, why: str, said: dict[str, None], size: int = 0) -> np.ndarray:
    """Decode an image to uint8 H×W×C, grey if it is; what becomes of its mode is a key of ``said``."""
    whole = image.convert(_mode_of(image, where, said))
    if size:
        whole = need("PIL.ImageOps", "Pillow", why).fit(whole, (size, size))
    pixels: np.ndarray = np.asarray(whole, np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)


@contextlib.contextmanager
def opened_image(file: Any, where: str, why: str) -> Iterator[Any]:
    """Open an image of a known format, without decoding it; whatever is wrong until it is closed is a ``DataError``."""
    pillow = need("PIL.Image", "Pillow", why)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            stream = opened(file) if isinstance(file, Path) else contextlib.nullcontext(file)
            with stream as source, pillow.open(source, formats=_FORMATS) as image:
                yield image
    except pillow.UnidentifiedImageError as error:  # its words name a Python object
        raise DataError(f"{where}: not a readable image of the formats {', '.join(_FORMATS)}") from error
    except (pillow.DecompressionBombWarning, pillow.DecompressionBombError) as error:
        raise DataError(f"{where}: has more than {pillow.MAX_IMAGE_PIXELS:,} pixels") from error
    except _DAMAGED as error:
        raise DataError(f"{where}: not a readable image: {words_of(error)}") from error


def decode(files: Iterable[tuple[str, Any]], count: int, why: str, said: dict[str, None], size: int = 0) -> np.ndarray:
    """Decode images of one size to uint8 n×H×W×C, grey if all of them are; ``size`` brings them to squares.

    ``files`` has what errors call an image, and its path or binary file; ``why`` is what needs Pillow. What users
    should know of the images becomes a key of ``said``.
    """
    pixels: np.ndarray[Any, Any] = np.empty(0, np.uint8)
    first = ""
    for i, (where, file) in enumerate(files):
        with opened_image(file, where, why) as image:
            w, h = (size, size) if size else image.size
            if i == 0 and count * w * h > MAX_BYTES:
                raise DataError(f"{why}: {count} images like {where} need more than {MAX_BYTES >> 30} GiB")
            if i:
                _require_size((w, h), (pixels.shape[2], pixels.shape[1]), where, Path(first).name)
            _note_rest(image, said)
            one = pixels_of(image, where, why, said, size)
        if i == 0:
            pixels, first = np.empty((count, *one.shape), np.uint8), where
        if one.shape[2] > pixels.shape[3]:  # the first images were grey, this one is not
            pixels = np.repeat(pixels, 3, axis=3)
        pixels[i] = one
    return pixels


@dataset(
    "image-folder",
    description="your own images",
    shape="any, all images of one size, or image-size",
    source="the folder named by `data`: train/<class>/… and test/<class>/…, or <class>/…",
    from_path=True,
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
    images = _classes(root / "train", Counter())
    classes = list(images)
    number = {wnid: label for label, wnid in enumerate(classes)}
    train = [(path, number[wnid]) for wnid, paths in images.items() for path in paths]
    test = []
    for line in notes.read_text().splitlines():
        file, wnid = [*line.split("\t"), ""][:2]
        if wnid not in number:
            raise DataError(f"{notes}: {line[:60]!r} does not name an image and one of the classes of train")
        test.append((root / "val" / "images" / file, number[wnid]))
    if not train or not test:
        raise DataError(f"{root}: no images in {'val' if train else 'train'}")
    pixels = _decode_or_defer([path for path, _ in train + test], "tiny-imagenet", 0, MAX_HELD, {})
    labels = np.array([label for _, label in train + test], np.int64)
    n = len(train)
    return Dataset.of("tiny-imagenet", pixels[:n], labels[:n], pixels[n:], labels[n:], class_names=tuple(classes))
