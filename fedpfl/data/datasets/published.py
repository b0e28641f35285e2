"""Published image data sets, as torchvision stores them."""

from __future__ import annotations

import math
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any, Callable, Iterable

import numpy as np

from ...core.errors import DataError, words_of
from ...core.files import locked
from ..dataset import Dataset, numbered
from ..registry import dataset
from ..settings import DataSettings
from .npz import labels_of, samples_of
from .reading_helpers import content_of, data_dir, need, shortcut


def downloaded(settings: DataSettings) -> list[Path]:
    """Return the places of torchvision's downloads; empty for other data sets."""
    return [data_dir(settings) / part for part in _TORCHVISION.get(settings.dataset, ())]


_IDX = tuple(f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
# What torchvision downloads, and where in ``data_dir`` it is then.
_TORCHVISION = {
    "mnist": tuple(f"MNIST/raw/{name}" for name in _IDX),
    "fashion-mnist": tuple(f"FashionMNIST/raw/{name}" for name in _IDX),
    "emnist": tuple(f"EMNIST/raw/emnist-balanced-{name.replace('t10k', 'test')}" for name in _IDX),
    "cifar10": ("cifar-10-batches-py",),
    "cifar100": ("cifar-100-python",),
    "svhn": ("train_32x32.mat", "test_32x32.mat"),
}


def _torchvision(settings: DataSettings, by_hand: str, parts: Iterable[dict[str, Any]], kind: str) -> list[Any]:
    """Return torchvision's data sets of a ``kind`` (its class) from ``data_dir``, downloading what is not there.

    ``parts`` are the arguments that tell the training from the test set; ``by_hand`` tells the user what to put where
    without a network.
    """
    name, folder = settings.dataset, data_dir(settings)
    make = getattr(need("torchvision.datasets", "torchvision", f'dataset = "{name}"'), kind)
    parts = list(parts)
    try:
        return [make(str(folder), download=False, **part) for part in parts]
    except RuntimeError:  # torchvision's word for "not there"
        pass
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The processes of one run would otherwise download the same file over each other.
        with locked(folder / ".download.lock"):
            print(f"{name}: not in {folder}, downloading it (once)", file=sys.stderr, flush=True)
            return [make(str(folder), download=True, **part) for part in parts]
    except (RuntimeError, OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        reason = words_of(error)
        raise DataError(
            f"{name}: not in {folder} and could not be downloaded ({reason}); put {by_hand} there, or "
            f"{shortcut(settings).name} with x_train, y_train, x_test, y_test"
        ) from error


# EMNIST's largest file has 0.6 GB.
MAX_IDX = 2**31


def _read_idx(path: Path) -> np.ndarray:
    """Read the IDX format: two zero bytes, type (8 = uint8), number of axes, sizes (big-endian 32 bit), values."""
    raw = content_of(path, MAX_IDX)
    ndim = raw[3] if len(raw) >= 4 and raw[:3] == b"\0\0\x08" else 0
    start = 4 + 4 * ndim
    shape = tuple(int(n) for n in np.frombuffer(raw[4:start], ">u4")) if len(raw) >= start else ()
    if not ndim or len(shape) != ndim or len(raw) - start != math.prod(shape):
        raise DataError(f"{path}: not a complete IDX file; remove it, so that it is downloaded again")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _idx_set(settings: DataSettings, kind: str, classes: tuple[str, ...], **extra: str) -> Dataset:
    # The files are read here, not by torchvision: importing that takes longer than reading them, in every process,
    # and a device that has the files then does not need it.
    paths = downloaded(settings)
    if not all(path.is_file() for path in paths):
        by_hand = f"{', '.join(path.name for path in paths)} in {kind}/raw"
        _torchvision(settings, by_hand, [{"train": True, **extra}, {"train": False, **extra}], kind)
    x_train, y_train, x_test, y_test = (_read_idx(path) for path in paths)
    if kind == "EMNIST":  # stored transposed
        x_train, x_test = x_train.swapaxes(1, 2), x_test.swapaxes(1, 2)
    return Dataset.of(
        settings.dataset,
        samples_of(x_train, str(paths[0])),
        labels_of(y_train, len(x_train), str(paths[1])),
        samples_of(x_test, str(paths[2])),
        labels_of(y_test, len(x_test), str(paths[3])),
        class_names=classes,
    )


FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
# Lower-case letters that look like their capital share its class in the balanced split.
EMNIST_BALANCED = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")


def _cifar(settings: DataSettings, kind: str) -> Dataset:
    (folder,) = downloaded(settings)
    train, test = _torchvision(settings, f"the folder {folder.name}", [{"train": True}, {"train": False}], kind)
    labels, labels_test = (np.array(part.targets, np.int64) for part in (train, test))
    return Dataset.of(
        settings.dataset, train.data, labels, test.data, labels_test, class_names=tuple(train.classes)
    )  # fmt: skip


def _svhn(settings: DataSettings) -> Dataset:
    need("scipy.io", "scipy", 'dataset = "svhn"')  # torchvision reads the files with it
    parts = [{"split": "train"}, {"split": "test"}]
    train, test = _torchvision(settings, " and ".join(_TORCHVISION["svhn"]), parts, "SVHN")
    x, x_test = (np.ascontiguousarray(part.data.transpose(0, 2, 3, 1)) for part in (train, test))
    labels, labels_test = (part.labels.astype(np.int64) for part in (train, test))
    return Dataset.of("svhn", x, labels, x_test, labels_test, class_names=numbered(10))


# By name: the loader, what it is, samples (training + test), classes, shape, and whose it is.
_SETS: dict[str, tuple[Callable[[DataSettings], Dataset], str, str, str, str, str]] = {
    "mnist": (
        lambda settings: _idx_set(settings, "MNIST", numbered(10)), "handwritten digits", "60,000 + 10,000", "10",
        "28×28×1", "(LeCun, Cortes, Burges)",
    ),
    "fashion-mnist": (
        lambda settings: _idx_set(settings, "FashionMNIST", FASHION), "articles of clothing", "60,000 + 10,000", "10",
        "28×28×1", "(Xiao, Rasul, Vollgraf 2017)",
    ),
    "emnist": (
        lambda settings: _idx_set(settings, "EMNIST", EMNIST_BALANCED, split="balanced"),
        "handwritten digits and letters, the balanced split", "112,800 + 18,800", "47", "28×28×1",
        "(Cohen et al. 2017); a download of 560 MB",
    ),
    "cifar10": (
        lambda settings: _cifar(settings, "CIFAR10"), "photographs of 10 classes", "50,000 + 10,000", "10",
        "32×32×3", "(Krizhevsky 2009)",
    ),
    "cifar100": (
        lambda settings: _cifar(settings, "CIFAR100"), "photographs of 100 classes", "50,000 + 10,000", "100",
        "32×32×3", "(Krizhevsky 2009)",
    ),
    "svhn": (_svhn, "house numbers", "73,257 + 26,032", "10", "32×32×3", "(Netzer et al. 2011)"),
}  # fmt: skip
for _name, (_load, _what, _size, _classes, _shape, _by) in _SETS.items():
    dataset(
        _name, description=_what, size=_size, classes=_classes, shape=_shape, source=f"torchvision {_by}", download=True
    )(_load)  # fmt: skip
