"""Data sets by name.

A newcomer is one function::

    @dataset("my-set", description="…", size="1,000", classes="10", shape="28×28×1", source="…")
    def my_set(settings: DataSettings) -> Dataset:
        return Dataset("my-set", x_train, y_train, num_classes=10)

Images stay uint8 in the layout samples × height × width × channels, texts the smallest whole numbers that hold their
tokens, everything else is float32; only the samples of one client at a time become tensors (see
:mod:`fedpfl.data.federation`).
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import importlib.util
import sys
import zipfile
import zlib
from dataclasses import dataclass as _dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, NamedTuple

import numpy as np

from ..core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from .settings import DataSettings

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# An embedding has a row for each token: more of them are a mistake.
MOST_TOKENS = 1_000_000
# A label beyond this without a list of class names is a mistake (an identifier, a pixel value), not a class.
MOST_CLASSES = 100_000
# Without a list of names so many times as many classes as there are different labels are a mistake, too.
GAPS = 2

_downloads = contextvars.ContextVar("downloads", default=True)


@contextlib.contextmanager
def no_downloads() -> Iterator[None]:
    """Let data sets that are not on this machine be a :class:`DataError` instead of a download."""
    token = _downloads.set(False)
    try:
        yield
    finally:
        _downloads.reset(token)


@_dataclass(frozen=True)
class Dataset:
    """A data set in memory, before it is divided.

    Parameters
    ----------
    name : str
        Name for messages and titles.
    x_train, x_test : ndarray
        Images: uint8, samples × height × width × channels. Texts: tokens 0 … ``vocabulary`` − 1 as whole numbers,
        samples × length. Other data: float32, samples × features or samples × channels × length. ``x_test`` is None
        where there is no test set.
    y_train, y_test : ndarray of int64
        Class numbers 0 … C−1.
    client_train, client_test : ndarray of int64, optional
        The natural owner of each sample, numbered from 0.
    num_classes : int
        C; by default the number of ``class_names``, or else the largest label + 1.
    class_names : tuple of str
        One name for each class; the numbers by default.
    vocabulary : int
        Number of different tokens of texts; 0 for data that are no texts.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    client_train: np.ndarray | None = None
    client_test: np.ndarray | None = None
    num_classes: int = 0
    class_names: tuple[str, ...] = ()
    vocabulary: int = 0

    def __post_init__(self) -> None:
        top = max(int(y.max(initial=-1)) for y in (self.y_train, self.y_test) if y is not None)
        count = self.num_classes or len(self.class_names) or top + 1
        object.__setattr__(self, "num_classes", count)
        object.__setattr__(self, "class_names", self.class_names or _numbered(count))

    @property
    def unnamed(self) -> bool:
        """Whether the classes have no names but their numbers."""
        return self.class_names == _numbered(self.num_classes)

    @property
    def missing(self) -> list[int]:
        """The classes of which there is no sample."""
        counts = sum(np.bincount(y, minlength=self.num_classes) for y in (self.y_train, self.y_test) if y is not None)
        return np.flatnonzero(np.asarray(counts) == 0).tolist()

    @property
    def is_image(self) -> bool:
        """Whether the samples are images (uint8)."""
        return self.x_train.dtype == np.uint8 and not self.vocabulary

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as models see it.

        (channels, height, width), (channels, length), (features,) or, of a text, (length,).
        """
        shape = self.x_train.shape[1:]
        return (shape[2], shape[0], shape[1]) if self.is_image else tuple(shape)


class DatasetInfo(NamedTuple):
    """One row of ``fedpfl datasets``."""

    name: str
    description: str
    size: str
    classes: str
    shape: str
    source: str
    download: bool
    owned: bool


Loader = Callable[["DataSettings"], Dataset]
_REGISTRY: dict[str, tuple[DatasetInfo, Loader]] = {}


def dataset(
    name: str,
    *,
    description: str,
    size: str,
    classes: str,
    shape: str,
    source: str,
    download: bool = False,
    owned: bool = False,
) -> Callable[[Loader], Loader]:
    """Register a loader under ``name``; the words are shown by ``fedpfl datasets``.

    Parameters
    ----------
    name : str
        The value of the setting ``dataset``.
    description, size, classes, shape, source : str
        What it is, samples (training + test), number of classes, height×width×channels, where it comes from.
    download : bool
        Whether files have to be fetched before it can be used.
    owned : bool
        Whether it may say whom a sample belongs to.
    """

    def register(loader: Loader) -> Loader:
        _REGISTRY[name] = (DatasetInfo(name, description, size, classes, shape, source, download, owned), loader)
        return loader

    return register


def names() -> list[str]:
    """Return the names of all data sets."""
    return list(_REGISTRY)


def table() -> list[DatasetInfo]:
    """Return the description of every data set, in the order of registration."""
    return [info for info, _ in _REGISTRY.values()]


def load(settings: DataSettings) -> Dataset:
    """Read the data set that ``settings`` names.

    ``<data-dir>/<name with underscores>.npz`` (for example ``fashion_mnist.npz``, in the layout of dataset ``npz``) is
    taken instead of a published data set's own files when it is there.

    Parameters
    ----------
    settings : DataSettings
        ``dataset``, ``data`` and ``data_dir`` are used.

    Returns
    -------
    Dataset

    Raises
    ------
    ConfigError
        The name is unknown or the path is missing.
    DataError
        The files are missing, damaged or not in the documented layout.
    """
    if settings.dataset not in _REGISTRY:
        raise ConfigError("dataset", settings.dataset, "must be one of " + ", ".join(names()))
    info, loader = _REGISTRY[settings.dataset]
    if info.download and _shortcut(settings).is_file():
        return read_npz(_shortcut(settings), info.name)
    return loader(settings)


def owners(settings: DataSettings) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return whom the training and the test samples belong to, without reading an npz file's samples.

    Returns
    -------
    tuple of (ndarray of int64, ndarray of int64 or None), or None
        Numbers of the owners, from 0; None where the data do not name them, or are not here yet.

    Raises
    ------
    ConfigError, DataError
        As :func:`load`.
    """
    info, loader = _REGISTRY[settings.dataset]
    path = _own_path(settings, "an npz file") if settings.dataset == "npz" else _shortcut(settings)
    if settings.dataset == "npz" or (info.download and path.is_file()):
        arrays = _read_arrays(path, ("y", "client"))
        parts = ("",) if "y" in arrays else ("_train", "_test")
        if any(f"y{part}" not in arrays for part in parts):
            return None  # what is wrong with the file is said where it is read
        train, *test = _owners(arrays, parts, [arrays[f"y{part}"] for part in parts], path)
    elif info.owned:
        data = loader(settings)
        train, test = data.client_train, [data.client_test]
    else:
        return None
    return None if train is None else (train, test[0] if test else None)


def fetch(settings: DataSettings) -> None:
    """Download the data set if it is one of torchvision's and not in ``data_dir``; progress goes to standard error.

    Raises
    ------
    DataError
        It cannot be downloaded.
    """
    # A look at the names only: torchvision would read all of the files.
    if not _shortcut(settings).is_file() and not all(path.exists() for path in _downloaded(settings)):
        load(settings)


def data_dir(settings: DataSettings) -> Path:
    """Return the folder in which published data sets lie."""
    return Path(settings.data_dir).expanduser()


def _shortcut(settings: DataSettings) -> Path:
    """Return the file that takes the place of a published data set, where it is there."""
    return data_dir(settings) / (settings.dataset.replace("-", "_") + ".npz")


def _downloaded(settings: DataSettings) -> list[Path]:
    """Return where torchvision puts what it downloads; empty for what it does not."""
    return [data_dir(settings) / part for part in _TORCHVISION.get(settings.dataset, ())]


def _own_path(settings: DataSettings, what: str) -> Path:
    if not settings.data:
        raise ConfigError("data", "", f'must be the path of {what} for dataset = "{settings.dataset}"')
    return Path(settings.data).expanduser()


def _need(module: str, package: str, why: str) -> Any:
    """Import an optional package at the moment it is needed, so that a small device can do without it."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that does not fit torch
        raise DataError(f"{why} needs the package {package} (pip install {package}): {error}") from error


# ---------------------------------------------------------------------------------------------------------------------
# Arrays in an npz file
# ---------------------------------------------------------------------------------------------------------------------


def read_npz(path: Path, name: str = "", num_classes: int | None = None) -> Dataset:
    """Read a data set from an ``.npz`` file.

    The file has ``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test`` and ``y_test``; optionally ``client`` (or
    ``client_train``, ``client_test``), which says to whom each sample belongs, and ``classes``, the names of the
    classes. Images are uint8 of shape n×H×W or n×H×W×C; texts are whole numbers of shape n×length, and ``vocabulary``
    is then the number of different tokens; other data are floats of shape n×features or n×channels×length. Other arrays
    are ignored. Nothing in the file is ever unpickled.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        Name of the data set; the file's name by default.
    num_classes : int, optional
        Number of classes if the file does not name them (a device may lack the highest ones).

    Raises
    ------
    DataError
        The file is missing, damaged or not in this layout.
    """
    arrays = _read_arrays(path)
    if "x" in arrays and "x_train" in arrays:
        raise DataError(f"{path}: has both x and x_train; keep x, y or x_train, y_train, x_test, y_test")
    parts = ("",) if "x" in arrays else ("_train", "_test")
    for key in [f"{letter}{part}" for part in parts for letter in "xy"]:
        if key not in arrays:
            found = ", ".join(sorted(arrays)) or "nothing"
            raise DataError(f"{path}: no array {key}; needs x, y or x_train, y_train, x_test, y_test, found {found}")
    vocabulary = _vocabulary(arrays, path)
    xs = [_samples(arrays[f"x{part}"], f"{path}: x{part}", vocabulary) for part in parts]
    ys = [_labels(arrays[f"y{part}"], len(x), f"{path}: y{part}") for part, x in zip(parts, xs)]
    if len({(x.dtype.kind, x.shape[1:]) for x in xs}) > 1:
        raise DataError(f"{path}: x_train is {_show(xs[0])}, x_test is {_show(xs[1])}: must hold samples of one shape")
    class_names = _class_names(arrays.get("classes"), ys, path, num_classes)
    for part, y in zip(parts, ys):
        if y.max() >= len(class_names):
            at = int(y.argmax())
            raise DataError(f"{path}: y{part}[{at}] is {y[at]}: labels must be 0 … {len(class_names) - 1}")
    owners = _owners(arrays, parts, ys, path)
    return Dataset(
        name or path.stem,
        xs[0],
        ys[0],
        xs[1] if len(xs) > 1 else None,
        ys[1] if len(ys) > 1 else None,
        owners[0],
        owners[1] if len(parts) > 1 else None,
        len(class_names),
        class_names,
        vocabulary,
    )


ARRAYS = ("x", "y", "client", "classes", "vocabulary")


def _read_arrays(path: Path, names: tuple[str, ...] = ARRAYS) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: not an npz file (write it with numpy.savez)")
    try:
        with np.load(path, allow_pickle=False) as archive:
            wanted = [key for key in archive.files if key.split("_")[0] in names]
            return {key: archive[key] for key in wanted}
    except (ValueError, OSError, EOFError, KeyError, MemoryError, zlib.error, zipfile.BadZipFile) as error:
        reason = "it holds Python objects" if "allow_pickle" in str(error) else str(error) or type(error).__name__
        raise DataError(f"{path}: cannot be read: {' '.join(reason.split())}") from error


def _show(x: np.ndarray) -> str:
    return f"{x.dtype} {'×'.join(str(n) for n in x.shape)}"


def _vocabulary(arrays: dict[str, np.ndarray], path: Path) -> int:
    if "vocabulary" not in arrays:
        return 0
    given = arrays["vocabulary"]
    if given.size != 1 or given.dtype.kind not in "iu" or not 1 <= given.item() <= MOST_TOKENS:
        raise DataError(f"{path}: vocabulary must be the number of different tokens, 1 … {MOST_TOKENS}")
    return int(given.item())


def smallest_integers(tokens: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return tokens in the smallest type that holds them and that PyTorch has."""
    return tokens.astype(np.uint8 if vocabulary <= 2**8 else np.int16 if vocabulary <= 2**15 else np.int32)


def _tokens(x: np.ndarray, where: str, vocabulary: int) -> np.ndarray:
    if x.dtype.kind not in "iu" or x.ndim != 2:
        raise DataError(f"{where} is {_show(x)}: with a vocabulary it must be whole numbers n×length")
    outside = np.argwhere((x < 0) | (x >= vocabulary))
    if len(outside):
        row, place = outside[0]
        raise DataError(f"{where}[{row}, {place}] is {x[row, place]}: tokens must be 0 … {vocabulary - 1}")
    return smallest_integers(x, vocabulary)


def _samples(x: np.ndarray, where: str, vocabulary: int = 0) -> np.ndarray:
    """Check an array of samples and bring it into the inner layout."""
    allowed = (
        "must be uint8 n×H×W or n×H×W×C (images), float32 n×features or n×channels×length, or, "
        "with an array vocabulary, whole numbers n×length"
    )
    if vocabulary:
        x = _tokens(x, where, vocabulary)
    elif x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 4 and x.shape[3] > 4 >= x.shape[1]:
            raise DataError(f"{where} is {_show(x)}: channels must come last (n×H×W×C)")
        x = x.reshape(*x.shape, 1) if x.ndim == 3 else x
    elif x.dtype.kind == "f" and x.ndim in (2, 3):
        x = x.astype(np.float32, copy=False)
        if not np.isfinite(x).all():
            raise DataError(f"{where} holds a value that is not finite (NaN or infinity)")
    else:
        raise DataError(f"{where} is {_show(x)}: {allowed}")
    if 0 in x.shape:
        raise DataError(f"{where} is {_show(x)}: no samples")
    return np.ascontiguousarray(x)


def _labels(y: np.ndarray, n: int, where: str) -> np.ndarray:
    if y.dtype.kind not in "iu" or y.ndim != 1:
        raise DataError(f"{where} is {_show(y)}: must be whole numbers, one for each sample")
    if len(y) != n:
        raise DataError(f"{where} has {len(y)} labels for {n} samples")
    y = y.astype(np.int64)
    if y.min() < 0:
        at = int(y.argmin())
        raise DataError(f"{where}[{at}] is {y[at]}: labels must be 0 … C−1")
    return y


def _class_names(
    given: np.ndarray | None, ys: list[np.ndarray], path: Path, num_classes: int | None
) -> tuple[str, ...]:
    if given is None:
        count = num_classes or 1 + max(int(y.max()) for y in ys)
        if count > MOST_CLASSES:
            raise DataError(f"{path}: label {count - 1} is too large: labels must be 0 … C−1")
        return _numbered(count)
    if given.ndim != 1 or given.dtype.kind not in "USiu":
        raise DataError(f"{path}: classes is {_show(given)}: must be a list of names")
    if num_classes not in (None, len(given)):
        raise DataError(f"{path}: has {len(given)} classes, the federation has {num_classes}")
    return tuple(c.decode("utf-8", "replace") if isinstance(c, bytes) else str(c) for c in given.tolist())


def _owners(
    arrays: dict[str, np.ndarray], parts: tuple[str, ...], ys: list[np.ndarray], path: Path
) -> list[np.ndarray | None]:
    """Give the natural clients numbers from 0, in the order of their sorted names."""
    found = [arrays.get(f"client{part}") for part in parts]
    for part, owner, y in zip(parts, found, ys):
        if owner is not None and (owner.ndim != 1 or owner.dtype.kind not in "iuUS" or len(owner) != len(y)):
            raise DataError(f"{path}: client{part} is {_show(owner)}: must be one number or name for each sample")
    if found[0] is None:
        if len(found) > 1 and found[1] is not None:
            raise DataError(f"{path}: has client_test without client_train")
        return [None] * len(parts)
    given = [owner for owner in found if owner is not None]
    if len({owner.dtype.kind in "iu" for owner in given}) > 1:
        raise DataError(f"{path}: client_train and client_test must both be numbers or both be names")
    _, number = np.unique(np.concatenate(given), return_inverse=True)
    pieces = np.split(number.reshape(-1).astype(np.int64), np.cumsum([len(owner) for owner in given])[:-1])
    return [pieces.pop(0) if owner is not None else None for owner in found]


@dataset(
    "npz",
    description="your own arrays",
    size="any",
    classes="any",
    shape="images, features, series or tokens",
    source="the file named by `data`: x, y or x_train, y_train, x_test, y_test; optionally client, classes, vocabulary",
    owned=True,
)
def _npz(settings: DataSettings) -> Dataset:
    path = _own_path(settings, "an npz file")
    data = read_npz(path, num_classes=settings.num_classes or None)
    found = len(np.unique(np.concatenate([y for y in (data.y_train, data.y_test) if y is not None])))
    # Numbers that mean something else than places in a list would make a model of mostly useless outputs.
    if not settings.num_classes and data.unnamed and data.num_classes >= GAPS * found:
        raise DataError(
            f"{path}: {found} different labels, the largest {data.num_classes - 1}: number the classes from 0, or say "
            f"num-classes = {data.num_classes} if there are as many"
        )
    return data


# ---------------------------------------------------------------------------------------------------------------------
# Images in folders
# ---------------------------------------------------------------------------------------------------------------------


def read_image_folder(root: Path) -> Dataset:
    """Read images from ``root/train/<class>/…`` and ``root/test/<class>/…``, or from ``root/<class>/…``.

    Classes are numbered in the order of their folders' names; a folder may be empty, so that devices which lack a class
    still agree on the numbers. All images must have one size. They become grey if all of them are, else RGB.

    Raises
    ------
    DataError
        No such folder, fewer than two classes, an unreadable image, or images of different sizes.
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
    pixels = _decode([path for part in files for path, _ in part], f"{root}")
    labels = np.array([label for part in files for _, label in part], np.int64)
    n = len(files[0])
    x_test, y_test = (pixels[n:], labels[n:]) if has_split else (None, None)
    return Dataset(
        root.name, pixels[:n], labels[:n], x_test, y_test, num_classes=len(classes), class_names=tuple(classes)
    )


def _folders(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())


def _decode(paths: list[Path], why: str) -> np.ndarray:
    """Decode image files of one size to uint8 n×H×W×C, grey if all of them are."""
    image_module = _need("PIL.Image", "Pillow", why)
    pixels: np.ndarray[Any, Any] = np.empty(0, np.uint8)
    for i, path in enumerate(paths):
        try:
            with image_module.open(path) as image:
                if image.mode.startswith(("I", "F")):
                    raise DataError(f"{path}: only images of 8 bits a channel can be read, not mode {image.mode}")
                grey = image.mode in ("1", "L")
                one = np.asarray(image.convert("L" if grey else "RGB"), np.uint8)
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise DataError(f"{path}: not a readable image: {error}") from error
        one = one.reshape(one.shape[0], one.shape[1], -1)
        if i == 0:
            pixels = np.empty((len(paths), *one.shape), np.uint8)
        if one.shape[:2] != pixels.shape[1:3]:
            (h, w), (h0, w0) = one.shape[:2], pixels.shape[1:3]
            raise DataError(f"{path} is {w}×{h} pixels but {paths[0].name} is {w0}×{h0}: bring all images to one size")
        if one.shape[2] > pixels.shape[3]:  # the first images were grey, this one is not
            pixels = np.repeat(pixels, 3, axis=3)
        pixels[i] = one
    return pixels


@dataset(
    "image-folder",
    description="your own images",
    size="any",
    classes="any",
    shape="any, all images of one size",
    source="the folder named by `data`: train/<class>/… and test/<class>/…, or <class>/…",
)
def _image_folder(settings: DataSettings) -> Dataset:
    return read_image_folder(_own_path(settings, "a folder of images"))


@dataset(
    "tiny-imagenet",
    description="photographs of 200 classes",
    size="100,000 + 10,000",
    classes="200",
    shape="64×64×3",
    source="http://cs231n.stanford.edu/tiny-imagenet-200.zip, unpacked in data-dir",
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
    return Dataset(
        "tiny-imagenet", pixels[:n], labels[:n], pixels[n:], labels[n:], None, None, len(classes), tuple(classes)
    )


# ---------------------------------------------------------------------------------------------------------------------
# Published data sets
# ---------------------------------------------------------------------------------------------------------------------


@dataset(
    "digits",
    description="handwritten digits, small enough for a first try",
    size="1,797",
    classes="10",
    shape="8×8×1",
    source="part of scikit-learn",
)
def _digits(settings: DataSettings) -> Dataset:
    # Importing scikit-learn takes seconds in every process, its file of 65 numbers a line a few hundredths.
    found = importlib.util.find_spec("sklearn")
    table = Path(found.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if found else Path()
    if table.is_file():
        rows = np.loadtxt(table, delimiter=",")
        values, labels = rows[:, :64].reshape(-1, 8, 8), rows[:, 64]
    else:
        bunch = _need("sklearn.datasets", "scikit-learn", 'dataset = "digits"').load_digits()
        values, labels = bunch.images, bunch.target
    # 17 grey levels 0 … 16 spread over 0 … 255: still 17 different values, so nothing is lost.
    pixels = np.rint(values * (255 / 16)).astype(np.uint8)[..., None]
    return Dataset("digits", pixels, labels.astype(np.int64), num_classes=10)


_IDX = tuple(f"{part}-{of}" for part in ("train", "t10k") for of in ("images-idx3-ubyte", "labels-idx1-ubyte"))
# What torchvision downloads, and where in ``data_dir`` it is then.
_TORCHVISION = {
    "mnist": tuple(f"MNIST/raw/{name}" for name in _IDX),
    "fashion-mnist": tuple(f"FashionMNIST/raw/{name}" for name in _IDX),
    "emnist": tuple(f"EMNIST/raw/emnist-balanced-{name.replace('t10k', 'test')}" for name in _IDX),
    "cifar10": ("cifar-10-batches-py",),
    "cifar100": ("cifar-100-python",),
    "svhn": ("train_32x32.mat", "test_32x32.mat"),
}


def _numbered(n: int) -> tuple[str, ...]:
    return tuple(str(c) for c in range(n))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock on ``folder``: the processes of one run would otherwise download the same file over each other."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / ".download.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _torchvision(settings: DataSettings, by_hand: str, parts: Iterable[dict[str, Any]], kind: str) -> list[Any]:
    """Return torchvision's data sets from ``data_dir``, downloading what is not there.

    Parameters
    ----------
    by_hand : str
        What to put where if there is no network.
    parts : iterable of dict
        The arguments that tell the training from the test set.
    kind : str
        Name of torchvision's class.
    """
    name, folder = settings.dataset, data_dir(settings)
    make = getattr(_need("torchvision.datasets", "torchvision", f'dataset = "{name}"'), kind)
    parts = list(parts)
    try:
        return [make(str(folder), download=False, **part) for part in parts]
    except RuntimeError:  # torchvision's word for "not there"
        if not _downloads.get():
            raise DataError(f"{name}: not in {folder}") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            print(f"{name}: not in {folder}, downloading it (once)", file=sys.stderr, flush=True)
            return [make(str(folder), download=True, **part) for part in parts]
    except (RuntimeError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        reason = " ".join(str(error).split())[:160]
        raise DataError(
            f"{name}: not in {folder} and not to be downloaded ({reason}); "
            f"put {by_hand} there, or {_shortcut(settings).name} with x_train, y_train, x_test, y_test"
        ) from error


def _read_idx(path: Path) -> np.ndarray:
    """Read the IDX format: two zero bytes, type (8 = uint8), number of axes, sizes (big-endian 32 bit), values."""
    raw = path.read_bytes()
    ndim = raw[3] if len(raw) >= 4 and raw[:3] == b"\0\0\x08" else 0
    start = 4 + 4 * ndim
    shape = tuple(int(n) for n in np.frombuffer(raw[4:start], ">u4")) if len(raw) >= start else ()
    if not ndim or len(shape) != ndim or len(raw) - start != np.prod(shape, dtype=np.int64):
        raise DataError(f"{path}: not a complete IDX file; remove it, so that it is downloaded again")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _idx_set(settings: DataSettings, kind: str, classes: tuple[str, ...], **extra: str) -> Dataset:
    # The files are read here, not by torchvision: importing that takes longer than reading them, in every process,
    # and a device that has the files then does not need it.
    paths = _downloaded(settings)
    if not all(path.is_file() for path in paths):
        by_hand = f"{', '.join(path.name for path in paths)} in {kind}/raw"
        _torchvision(settings, by_hand, [{"train": True, **extra}, {"train": False, **extra}], kind)
    x_train, y_train, x_test, y_test = (_read_idx(path) for path in paths)
    if kind == "EMNIST":  # stored transposed
        x_train, x_test = x_train.swapaxes(1, 2), x_test.swapaxes(1, 2)
    return Dataset(
        settings.dataset,
        _samples(x_train, str(paths[0])),
        _labels(y_train, len(x_train), str(paths[1])),
        _samples(x_test, str(paths[2])),
        _labels(y_test, len(x_test), str(paths[3])),
        num_classes=len(classes),
        class_names=classes,
    )


@dataset(
    "mnist",
    description="handwritten digits",
    size="60,000 + 10,000",
    classes="10",
    shape="28×28×1",
    source="torchvision (LeCun, Cortes, Burges)",
    download=True,
)
def _mnist(settings: DataSettings) -> Dataset:
    return _idx_set(settings, "MNIST", _numbered(10))


FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@dataset(
    "fashion-mnist",
    description="articles of clothing",
    size="60,000 + 10,000",
    classes="10",
    shape="28×28×1",
    source="torchvision (Xiao, Rasul, Vollgraf 2017)",
    download=True,
)
def _fashion_mnist(settings: DataSettings) -> Dataset:
    return _idx_set(settings, "FashionMNIST", FASHION)


# Lower-case letters that look like their capital share its class in the balanced split.
EMNIST_BALANCED = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")


@dataset(
    "emnist",
    description="handwritten digits and letters, the balanced split",
    size="112,800 + 18,800",
    classes="47",
    shape="28×28×1",
    source="torchvision (Cohen et al. 2017); a download of 560 MB",
    download=True,
)
def _emnist(settings: DataSettings) -> Dataset:
    return _idx_set(settings, "EMNIST", EMNIST_BALANCED, split="balanced")


def _cifar(settings: DataSettings, kind: str) -> Dataset:
    (folder,) = _downloaded(settings)
    train, test = _torchvision(settings, f"the folder {folder.name}", [{"train": True}, {"train": False}], kind)
    return Dataset(
        settings.dataset,
        train.data,
        np.array(train.targets, np.int64),
        test.data,
        np.array(test.targets, np.int64),
        num_classes=len(train.classes),
        class_names=tuple(train.classes),
    )


@dataset(
    "cifar10",
    description="photographs of 10 classes",
    size="50,000 + 10,000",
    classes="10",
    shape="32×32×3",
    source="torchvision (Krizhevsky 2009)",
    download=True,
)
def _cifar10(settings: DataSettings) -> Dataset:
    return _cifar(settings, "CIFAR10")


@dataset(
    "cifar100",
    description="photographs of 100 classes",
    size="50,000 + 10,000",
    classes="100",
    shape="32×32×3",
    source="torchvision (Krizhevsky 2009)",
    download=True,
)
def _cifar100(settings: DataSettings) -> Dataset:
    return _cifar(settings, "CIFAR100")


@dataset(
    "svhn",
    description="house numbers",
    size="73,257 + 26,032",
    classes="10",
    shape="32×32×3",
    source="torchvision (Netzer et al. 2011)",
    download=True,
)
def _svhn(settings: DataSettings) -> Dataset:
    _need("scipy.io", "scipy", 'dataset = "svhn"')  # torchvision reads the files with it
    parts = [{"split": "train"}, {"split": "test"}]
    train, test = _torchvision(settings, " and ".join(_TORCHVISION["svhn"]), parts, "SVHN")
    pixels = [np.ascontiguousarray(part.data.transpose(0, 2, 3, 1)) for part in (train, test)]
    return Dataset(
        "svhn",
        pixels[0],
        train.labels.astype(np.int64),
        pixels[1],
        test.labels.astype(np.int64),
        num_classes=10,
        class_names=_numbered(10),
    )
