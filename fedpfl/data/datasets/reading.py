"""Data sets by name: read them, or only the owners of their samples."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ...core import custom
from ...core import settings as s
from ...core.errors import ConfigError
from ..dataset import Dataset
from ..registry import table
from ..settings import READING, DataSettings
from .custom import CustomLoader, entry
from .npz import owners_of, read_arrays, read_npz
from .places import own_path, shortcut
from .published import downloaded


def load(settings: DataSettings, seed: int = 0) -> Dataset:
    """Read the data set that ``settings`` names; ``ConfigError`` or ``DataError`` tell what is missing or wrong.

    Code of the user's that draws at random does so from ``seed``, or from ``partition-seed`` if that is set.

    ``<data-dir>/<name with underscores>.npz`` (for example ``fashion_mnist.npz``, in the layout of dataset ``npz``) is
    taken instead of a published data set's own files when it is there.
    """
    info, loader = entry(settings.dataset)
    if settings.data and not info.own:
        names = ", ".join(one.name for one in table() if one.own)
        raise ConfigError("data", settings.data, f'is not used with dataset = "{settings.dataset}"; use one of {names}')
    if info.download and shortcut(settings).is_file():
        return read_npz(shortcut(settings), info.name)
    drawn = {"seed": settings.partition_seed or seed} if isinstance(loader, CustomLoader) else {}
    found: Dataset = loader(settings, **drawn)
    return found


def load_once(settings: DataSettings, seed: int = 0) -> Dataset:
    """Return what :func:`load` reads, read once in a process, however it is divided."""
    if custom.is_custom("dataset", settings.dataset):
        return load(settings, seed)  # which keeps it: a user's function may look at any setting
    return _load_once(s.parse(type(settings), {key: value for key, value in s.items(settings) if key in READING}))


@lru_cache(maxsize=2)
def _load_once(settings: DataSettings) -> Dataset:
    return load(settings)


def owners(settings: DataSettings, seed: int = 0) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Return the owners of training and test samples, numbered from 0, without reading an npz file's samples.

    None where the data do not name them, or are not here yet; errors are those of :func:`load`.
    """
    info, _ = entry(settings.dataset)
    path = own_path(settings, "an npz file") if settings.dataset == "npz" else shortcut(settings)
    if settings.dataset == "npz" or (info.download and path.is_file()):
        arrays = read_arrays(path, ("y", "client"))
        parts = ("",) if "y" in arrays else ("_train", "_test", *(["_val"] if "y_val" in arrays else []))
        if any(f"y{part}" not in arrays for part in parts):
            return None  # errors of the file are raised where it is read
        train, *test = owners_of(arrays, parts, [arrays[f"y{part}"] for part in parts], path)
    elif info.owned:
        data = load_once(settings, seed)
        train, test = data.client_train, [data.client_test]
    else:
        return None
    return None if train is None else (train, test[0] if test else None)


def fetch(settings: DataSettings) -> None:
    """Download the data set if it is one of torchvision's and not in ``data_dir``; progress goes to standard error."""
    # A look at the names only: torchvision would read all of the files.
    if not shortcut(settings).is_file() and not all(path.exists() for path in downloaded(settings)):
        load(settings)
