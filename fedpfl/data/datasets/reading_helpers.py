"""Needs of readers of data sets: packages, downloads, files and the names of a data set's parts."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Iterable, Iterator, NamedTuple, Sequence

import numpy as np

from ...core.errors import ConfigError, DamagedFile, DataError
from ...core.files import open_regular, read_regular
from ...core.name_lists import in_short
from ..dataset import Dataset
from ..settings import DataSettings

# Channels of images that are not grey.
RGB = 3
# Characters of a line, bytes of which are read before anything can be said of them.
MAX_CHARACTERS = 2**24
# Size of a file of JSON, which takes several times as much memory.
MAX_JSON = 2**31
PARTS = TRAIN, TEST, _ = "train", "test", "val"
# What a missing name is as a text. "Nan" is somebody's name.
NO_NAMES = ("", "nan", "NaN")
# What the parts of a data set are called: folders, tables, splits or keys.
_PART = re.compile(
    r"(?:(train|training)|(test|testing)|(val|valid|validation|dev|eval))[ _-]?(?:set|data|dataset|loader|split)?"
    r"(?:\.csv|\.parquet)?",
    re.IGNORECASE,
)


class ChosenParts(NamedTuple):
    """The parts of a data set by their names, and what there is to say of others."""

    names: tuple[str, ...]  # training, perhaps test, and with that perhaps validation
    remarks: tuple[str, ...]


def part_of(name: str) -> str | None:
    """Return the part of a data set that a name such as Training or valid.csv means; None for other names."""
    match = _PART.fullmatch(name)
    return PARTS[match.lastindex - 1] if match and match.lastindex else None


def is_part(name: str) -> bool:
    """Tell whether a name is one of a part of a data set, such as Train."""
    return part_of(name) is not None


def chosen_parts(
    where: Path, names: Iterable[str], what: str, alone: bool = False, of_clients: str = ""
) -> ChosenParts:
    """Choose the parts of a data set by their names; ``DataError`` if it is unclear which they are.

    A validation part is the test set where there is no other. ``what`` is what errors call a part; with ``alone`` a
    training part is enough. ``of_clients`` is the advice where each name may be a client's.
    """
    names = sorted(names)
    by_part = [[name for name in names if part_of(name) == part] for part in PARTS]
    train, test, validation = by_part
    chosen = [*train, *test, *validation]
    if not train or max(map(len, by_part)) > 1 or (len(chosen) < 2 and not alone):
        parts = f"one {what} called {TRAIN} and {'perhaps ' * alone}one called {TEST}"
        per_client = f"; {of_clients}" if of_clients and not train + test and len(names) > 1 else ""
        raise DataError(f"{where}: must have {parts}; it has {in_short(names) or 'none'}{per_client}")
    remarks = []
    if validation and not test:
        remarks.append(f"there is no part {TEST}: {chosen[1]} is the test set")
    if unused := [name for name in names if name not in chosen]:
        remarks.append(f"used are {' and '.join(chosen)}, and not {in_short(unused)}")
    return ChosenParts(tuple(chosen), tuple(remarks))


def data_dir(settings: DataSettings) -> Path:
    """Return the folder in which published data sets lie."""
    return Path(settings.data_dir).expanduser()


def shortcut(settings: DataSettings) -> Path:
    """Return the file that takes the place of a published data set, where it is there."""
    return data_dir(settings) / (settings.dataset.replace("-", "_") + ".npz")


def own_path(settings: DataSettings, what: str) -> Path:
    """Return the path of a user's own data, the setting ``data``; ``ConfigError``, with ``what``, if it is empty."""
    if not settings.data:
        raise ConfigError("data", "", f'must be the path of {what} for dataset = "{settings.dataset}"')
    return Path(settings.data).expanduser()


def need(module: str, package: str, why: str) -> Any:
    """Import an optional package at the moment it is needed, so that a small device can do without it."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that does not fit torch
        raise DataError(f"{why} needs the package {package} (pip install {package}): {error}") from error


def opened(path: Path) -> IO[bytes]:
    """Open a regular file; ``DataError`` for a folder, a pipe or a device, which may never give its end."""
    try:
        return open_regular(path)
    except DamagedFile as error:
        raise DataError(f"{path}: cannot be read: {error.more}") from None


def bounded(file: Any, path: Path) -> Iterator[str]:
    """Yield the lines of a text file; ``DataError`` for one that is too long."""
    number = 0
    while True:
        line = file.readline(MAX_CHARACTERS)
        number += 1
        if not line:
            return
        if len(line) == MAX_CHARACTERS:
            raise DataError(f"{path}, line {number}: longer than {MAX_CHARACTERS} characters")
        yield line


def content_of(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes."""
    try:
        return read_regular(path, most)
    except DamagedFile as error:
        raise DataError(f"{path}: cannot be read: {error.more}") from None


def coloured(x: Any) -> Any:
    """Return grey images, uint8 n×H×W×1, as RGB; others as they are."""
    return np.repeat(x, RGB, axis=3) if x.dtype == np.uint8 and x.shape[3:] == (1,) else x


def of_parts(
    name: str, xs: Sequence[Any], ys: Sequence[Any], owners: Sequence[np.ndarray | None] = (), where: object = "",
    **more: Any,
) -> Dataset:  # fmt: skip
    """Return a data set whose parts are for training, perhaps for tests, and with these perhaps for validation.

    ``where`` is what an error calls it, and ``more`` what else it has.
    """
    if any(x.dtype == np.uint8 and x.shape[3:] == (RGB,) for x in xs):
        xs = [*map(coloured, xs)]
    for word, arrays in (("x", xs), ("y", ys)):
        for part, values in zip(PARTS, arrays):
            if (values.dtype.kind, values.shape[1:]) != (arrays[0].dtype.kind, arrays[0].shape[1:]):
                shown = (f"{array.dtype} {array.shape[1:]}" for array in (values, arrays[0]))
                raise DataError(f"{where or name}: {word}_{part} and {word}_train must be alike: {' and '.join(shown)}")
    columns, held = [[*xs], [*ys], [*owners] or [None] * len(xs)], None
    if len(xs) > 2:
        held = np.repeat([False, True], (len(xs[0]), len(xs[2])))
        for column in columns:
            last = column.pop()
            if (last is None) != (column[0] is None):
                raise DataError("of the parts for training and for validation only one names the owners of its samples")
            column[0] = None if last is None else np.concatenate([column[0], last])
    (x, y, owner), (x_test, y_test, owner_test) = [*zip(*columns), (None, None, None)][:2]
    made = Dataset.of(str(where) or name, x, y, x_test, y_test, owner, owner_test, validation=held, **more)
    return replace(made, name=name)
