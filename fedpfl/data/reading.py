"""Data sets by name."""

from __future__ import annotations

import contextlib
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..core import references
from ..core.errors import ConfigError, DataError
from ..core.files import files_below, stamp_of
from .dataset import Dataset
from .datasets.reading_helpers import shortcut
from .registry import DATASETS, DatasetInfo, Loader, table
from .settings import DataSettings

# Without a list of names so many times as many classes as there are different labels are a mistake, too.
GAPS = 2


def entry(name: str) -> tuple[DatasetInfo, Loader]:
    """Return the entry of a registered name, or of a custom data set that it refers to; else raise ``ConfigError``."""
    if name in DATASETS and name not in references.entry_point_names("dataset"):
        return DATASETS[name]
    from fedpfl.data.datasets.python_objects import entry as _entry

    custom_entry: tuple[DatasetInfo, Loader] = _entry(name)
    return custom_entry


def load(settings: DataSettings, seed: int = 0) -> Dataset:
    """Read the data set that ``settings`` names; ``ConfigError`` or ``DataError`` tell what is missing or wrong.

    Code of the user's that draws at random does so from ``seed``, or from ``partition-seed`` if that is set. A file
    ``<data-dir>/<name with underscores>.npz`` takes the place of a published data set's own files.
    """
    info, loader = entry(settings.dataset)
    if settings.data and not info.from_path:
        names = ", ".join(one.name for one in table() if one.from_path)
        raise ConfigError("data", settings.data, f'is not used with dataset = "{settings.dataset}"; use one of {names}')
    if info.download and shortcut(settings).is_file():
        from fedpfl.data.datasets.npz import read_npz

        data: Dataset = read_npz(shortcut(settings), name=info.name)
        return data
    drawn = {"seed": settings.partition_seed or seed} if getattr(loader, "draws", False) else {}
    data = loader(settings, **drawn)
    if settings.dataset in DATASETS and info.from_path:
        _require_no_gaps(data, settings)
    return data


def _require_no_gaps(data: Dataset, settings: DataSettings) -> None:
    """Refuse labels that are most likely no indices of classes: a model of mostly useless outputs would come of it."""
    if data.has_targets or settings.num_classes or not data.unnamed:
        return
    count = len(np.unique(np.concatenate([y for y in (data.y_train, data.y_test) if y is not None])))
    if data.num_classes >= GAPS * count:
        raise DataError(
            f"{Path(settings.data).expanduser()}: {count} different labels, the largest {data.num_classes - 1}: number "
            f"the classes from 0, or set num-classes = {data.num_classes} if there are that many"
        )


def load_once(settings: DataSettings, seed: int = 0) -> Dataset:
    """Return the data set of :func:`load`, read once in a process, however it is divided."""
    if references.is_custom("dataset", settings.dataset):
        return load(settings, seed)  # which keeps it: a user's function may look at any setting
    return _load_once(settings.read(), state_of_files(settings))


@lru_cache(maxsize=2)
def _load_once(settings: DataSettings, files: int) -> Dataset:
    return load(settings)


def state_of_files(settings: DataSettings) -> int:
    """Return a number of the names, sizes and times of a user's files: another one once they have changed."""
    state = 0
    for place in filter(None, (settings.data, settings.division_file, settings.tokenizer)):
        root = Path(place).expanduser()
        for path in files_below(root) if root.is_dir() else [root]:
            with contextlib.suppress(OSError):  # what reads it tells
                state = zlib.crc32(f"{path}/{stamp_of(path)}".encode(errors="replace"), state)
    return state


def owners(settings: DataSettings, seed: int = 0) -> tuple[np.ndarray, np.ndarray | None, int] | None:
    """Return the owners of training and test samples, and the data's ``overlap``; None if the data name no owners."""
    info, _ = entry(settings.dataset)
    if not info.owned and not (info.download and shortcut(settings).is_file()):
        return None
    data = load_once(settings, seed)
    return None if data.client_train is None else (data.client_train, data.client_test, data.overlap)


def fetch(settings: DataSettings) -> None:
    """Download the data set if it is one of torchvision's and not in ``data_dir``; progress goes to standard error."""
    if not entry(settings.dataset)[0].download or shortcut(settings).is_file():
        return
    # A look at the names only: torchvision would read all of the files.
    from fedpfl.data.datasets.published import downloaded

    if not all(path.exists() for path in downloaded(settings)):
        load(settings)
