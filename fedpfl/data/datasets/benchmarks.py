"""Folders of other benchmarks: PFLlib's and LEAF's."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, Callable

import numpy as np

from ...core.errors import DataError, words_of
from ..dataset import Dataset
from ..npy import UNREADABLE
from .npz import labels_of, samples_of
from .pickled_arrays import MAX_BYTES, read_restricted
from .text import users_of

# x and y of each client of a part, by its name.
Part = dict  # type: ignore[type-arg]


def reader_of(root: Path) -> Callable[[Path, int | None], Dataset] | None:
    """Return the reader of a folder, if it is one of a benchmark's."""
    if (root / "train").is_dir() and (root / "test").is_dir():
        if (root / "train" / "0.npz").is_file():
            return read_pfllib
        if any((root / "train").glob("*.json")):
            return read_leaf
    return None


def read_pfllib(root: Path, num_classes: int | None = None) -> Dataset:
    """Read PFLlib's ``train/0.npz``, …, ``test/0.npz``, …: each holds a dict of x and y as a Python object.

    Images are floats n×C×H×W, as PFLlib has scaled them.
    """
    parts = []
    for name in ("train", "test"):
        files = sorted((root / name).glob("*.npz"), key=lambda path: (len(path.stem), path.stem))
        parts.append({path.stem: _pair(_object(path), str(path)) for path in files})
    return _joined(root, parts, num_classes)


def read_leaf(root: Path, num_classes: int | None = None) -> Dataset:
    """Read LEAF's ``train/*.json`` and ``test/*.json`` with the samples of users: numbers as x, whole numbers as y.

    Its texts are read as ``dataset = "shakespeare"``. Rows of 784 numbers stay rows.
    """
    parts = [
        {user: _pair(content, where) for where, user, content in users_of(root / name)} for name in ("train", "test")
    ]
    return _joined(root, parts, num_classes)


def _object(path: Path) -> Any:
    """Return the object ``data`` of a file."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("data.npy") as file:
            content = file.read(MAX_BYTES + 1)
    except UNREADABLE as error:
        raise DataError(f"{path}: is not a file of PFLlib's: {words_of(error)}") from error
    # NumPy's header: magic, version, its length, the text.
    size = int.from_bytes(content[8:10], "little") + 10
    if content[:8] != b"\x93NUMPY\x01\x00" or b"'|O'" not in content[10:size] or b"'shape': ()" not in content[10:size]:
        raise DataError(f"{path}: its array data is not the one Python object of PFLlib's files")
    return read_restricted(content[size:], path)


def _pair(content: Any, where: str) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(content, dict) or not {"x", "y"} <= content.keys():
        raise DataError(f"{where}: must have x and y")
    arrays = []
    for name in "xy":
        try:
            values = np.asarray(content[name])
        except ValueError:
            raise DataError(f"{where}: the rows of {name} have different lengths") from None
        if values.dtype.kind not in "iufb":
            raise DataError(f"{where}: {name} must be numbers; LEAF's texts are read as dataset = shakespeare")
        arrays.append(values)
    x, y = arrays
    x = x if x.dtype == np.uint8 and x.ndim > 2 else x.astype(np.float32)
    y = y.astype(np.int64) if y.dtype.kind == "f" and not np.mod(y, 1).any() else y
    x = samples_of(x, f"{where}: x", planes=True, empty=True)
    return x, labels_of(y, len(x), f"{where}: y")


def _joined(root: Path, parts: list[Any], num_classes: int | None) -> Dataset:
    names = list(dict.fromkeys([*parts[0], *parts[1]]))
    arrays: list[np.ndarray] = []
    owners = []
    first = next(iter(parts[0].values()), None)
    if first is None or not parts[1]:
        raise DataError(f"{root}: has no clients in train or test")
    for part in parts:
        for name, (x, y) in part.items():
            if (x.dtype, x.shape[1:], y.dtype) != (first[0].dtype, first[0].shape[1:], first[1].dtype):
                raise DataError(f"{root}: client {name[:40]} has samples {x.shape[1:]}, others {first[0].shape[1:]}")
        arrays += map(np.concatenate, zip(*part.values()))
        owners.append(np.repeat([names.index(name) for name in part], [len(y) for _, y in part.values()]))
    x_train, y_train, x_test, y_test = arrays
    return Dataset.of(
        root.name, x_train, y_train, x_test, y_test, owners[0], owners[1], num_classes or 0,
        client_names=tuple(names),
    )  # fmt: skip
