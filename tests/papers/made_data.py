"""Data of the papers' shapes, sizes and numbers of classes, made where the real ones are not at hand.

What a class looks like is drawn once, and every sample has noise of its own on top: a network can learn it, and what it
learns says nothing of the real data. Files are written once, into a folder of the system's temporary directory that has
the version of this module in its name, and in layouts that the loaders read.
"""

from __future__ import annotations

import json
import os
import string
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.lib.format import read_array_header_1_0, read_magic
from numpy.random import Generator
from real_data import real_data_dir

from fedpfl import models
from fedpfl.data import table
from fedpfl.data.datasets.text import VOCABULARY, WORDS

VERSION = 1  # of what is made: a higher number makes it anew
CHUNK = 4096  # samples that are made at a time
# LEAF's FEMNIST as FedFac uses it: writers and classes are the paper's, 227 samples a writer the mean of LEAF's.
WRITERS, WRITER_SAMPLES, CHARACTERS = 1079, 227, 62
# FedDecomp's subset of ImageNet, as imagenet_subset.py makes it: training and test samples, classes, side.
SUBSET, SUBSET_CLASSES, SUBSET_SIDE = (80_000, 16_000), 400, 64
# LEAF's Shakespeare: speakers and letters.
ROLES, LETTERS = 1129, 4_226_158
# Places that experiments name.
HOME = "~/.fedpfl/data/"
# Of what torchvision stores in a folder, that folder.
FOLDERS = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw", "emnist": "EMNIST/raw"}


def data_dir(dataset: str) -> tuple[Path, bool]:
    """Return the folder in which a data set lies, and whether it is the real one.

    Parameters
    ----------
    dataset : str
        The value of the setting ``dataset``, or ``femnist`` or ``imagenet-subset``.
    """
    real, folder = real_folder(), made_folder()
    if dataset == "digits":  # part of scikit-learn, and not in any folder
        return folder, True
    if real is not None and _is_complete(dataset, real):
        return real, True
    if dataset == "shakespeare":
        _once(folder / "shakespeare.json", _write_plays)
    else:
        name = dataset.replace("-", "_") + ".npz"
        _once(folder / name, lambda path: _save(path, make(dataset)))
    return folder, False


def place(path: str) -> tuple[Path, bool]:
    """Return a file that an experiment names below ``~/.fedpfl/data``, and whether it is the real one."""
    name = path.removeprefix(HOME)
    if name in ("femnist.npz", "imagenet-subset.npz"):
        folder, is_real = data_dir(name[: -len(".npz")])
        name = name.replace("-", "_")
        return folder / name, is_real
    real = real_folder()
    if real is not None and (real / name).is_file():
        return real / name, True
    _once(made_folder() / name, lambda path: torch.save(weights(name), path))
    return made_folder() / name, False


def real_folder() -> Path | None:
    """Return the folder of real data; None where there are none."""
    try:
        return real_data_dir()
    except pytest.skip.Exception:
        return None


def made_folder() -> Path:
    """Return the folder of made data."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir()) / f"fedpfl-made-data-{user}-{VERSION}"
    folder.mkdir(exist_ok=True)
    return folder


def sizes(dataset: str) -> tuple[int, int]:
    """Return the numbers of training and test samples that a data set has; 0 test samples where it has no test set."""
    if dataset == "femnist":
        return WRITERS * WRITER_SAMPLES, 0
    if dataset == "imagenet-subset":
        return SUBSET
    info = next(info for info in table() if info.name == dataset)
    train, *test = (int(n.replace(",", "")) for n in info.size.split(" + "))
    return train, test[0] if test else 0


def make(dataset: str, share: float = 1.0) -> dict[str, np.ndarray]:
    """Return made data in the layout of an npz file.

    Parameters
    ----------
    dataset : str
        A published data set of images, ``ag-news``, ``femnist`` or ``imagenet-subset``.
    share : float
        How much of it: tests of this module need little.
    """
    rng = np.random.default_rng([VERSION, *dataset.encode()])
    train, test = (round(n * share) for n in sizes(dataset))
    if dataset == "ag-news":
        return _news(rng, train, test)
    if dataset == "femnist":
        owner = np.sort(np.arange(train) % WRITERS)
        x, y = _images(rng, train, 0, (28, 28, 1), CHARACTERS)[:2]
        return {"x": x[..., 0], "y": y, "client": owner}
    if dataset == "imagenet-subset":
        shape, classes = (SUBSET_SIDE, SUBSET_SIDE, 3), SUBSET_CLASSES
    else:
        info = next(info for info in table() if info.name == dataset)
        height, width, channels = map(int, info.shape.split("×"))
        shape, classes = (height, width, channels), int(info.classes)
    x, y, x_test, y_test = _images(rng, train, test, shape, classes)
    # The partitioner `domains` goes by CIFAR-100's own numbers of classes, which names do not change.
    return {"x_train": x, "y_train": y, "x_test": x_test, "y_test": y_test, "classes": np.arange(classes)}


def weights(name: str) -> dict[str, torch.Tensor]:
    """Return weights that stand for ImageNet's: those that a network starts with, under the names of the real file."""
    torch.manual_seed(VERSION)
    if name.startswith("resnet10"):
        return dict(models.build("resnet10", (3, 32, 32), 1000).state_dict())
    import torchvision.models

    build: Callable[..., torch.nn.Module] = getattr(torchvision.models, name.split("-")[0])
    return dict(build(weights=None).state_dict())


def _is_complete(dataset: str, folder: Path) -> bool:
    """Say whether a folder has all of a data set."""
    if dataset == "shakespeare":
        return (folder / "shakespeare.json").is_file() or (folder / "shakespeare").is_dir()
    if dataset == "ag-news":
        return (folder / "AG_NEWS" / "train.csv").is_file()
    path = folder / (dataset.replace("-", "_") + ".npz")
    if path.is_file():
        with np.load(path) as archive:  # reads nothing but the list of names
            labels = [name for name in archive.files if name.startswith("y")]
            return sum(_length(archive, name) for name in labels) >= sum(sizes(dataset))
    own = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python", "svhn": "train_32x32.mat"}
    named = {**own, **FOLDERS, "tiny-imagenet": "tiny-imagenet-200"}.get(dataset)
    return named is not None and (folder / named).exists()


def _length(archive: np.lib.npyio.NpzFile, name: str) -> int:
    with archive.zip.open(f"{name}.npy") as file:  # type: ignore[union-attr]
        read_magic(file)
        shape: tuple[int, ...] = read_array_header_1_0(file)[0]
        return shape[0]


def _images(
    rng: Generator, train: int, test: int, shape: tuple[int, int, int], classes: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw a coarse pattern of 0 … 127 for each class; a sample is its class's pattern and noise of 0 … 127."""
    height, width, channels = shape
    coarse = rng.integers(0, 128, (classes, 4, 4, channels), dtype=np.uint8)
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    patterns = coarse[:, rows][:, :, columns]
    found = []
    for n in (train, test):
        y = rng.permutation(np.arange(n) % classes)
        x = np.empty((n, *shape), np.uint8)
        for at in range(0, n, CHUNK):
            part = x[at : at + CHUNK]
            part[:] = patterns[y[at : at + CHUNK]]
            part += np.frombuffer(rng.bytes(part.size), np.uint8).reshape(part.shape) >> 1
        found += [x, y]
    return found[0], found[1], found[2], found[3]


def _news(rng: Generator, train: int, test: int, classes: int = 4) -> dict[str, np.ndarray]:
    """Draw texts of 20 to 64 words, a quarter of them from 100 words that a class prefers, the others from all."""
    preferred = rng.integers(1, VOCABULARY, (classes, 100))
    found: dict[str, np.ndarray] = {}
    for part, n in (("train", train), ("test", test)):
        y = rng.permutation(np.arange(n) % classes)
        common = rng.integers(1, VOCABULARY, (n, WORDS))
        own = preferred[y[:, None], rng.integers(0, 100, (n, WORDS))]
        x = np.where(rng.random((n, WORDS)) < 0.25, own, common)
        x[np.arange(WORDS) >= rng.integers(20, WORDS + 1, (n, 1))] = 0
        found |= {f"x_{part}": x.astype(np.int16), f"y_{part}": y}
    return {**found, "vocabulary": np.array(VOCABULARY)}


def _write_plays(path: Path) -> None:
    """Write a text for each role: words of a vocabulary of 200, of which each role uses 50."""
    rng = np.random.default_rng([VERSION, *b"shakespeare"])
    letters = np.array(list(string.ascii_lowercase))
    words = ["".join(rng.choice(letters, rng.integers(2, 9))) for _ in range(200)]
    lengths = np.maximum(200, rng.lognormal(0, 1.5, ROLES))
    lengths = np.maximum(200, lengths * (LETTERS / lengths.sum())).astype(int)
    texts = {}
    for role, length in enumerate(lengths):
        own = rng.choice(words, 50, replace=False)
        text = " ".join(own[rng.integers(0, 50, length // 3)])
        texts[f"play / role {role}"] = text[:length]
    path.write_text(json.dumps(texts), encoding="utf-8")


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with path.open("wb") as file:  # a name would get .npz behind it
        np.savez(file, **arrays)


def _once(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file unless it is there, whole or not at all."""
    if not path.is_file():
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        write(part)
        part.replace(path)
