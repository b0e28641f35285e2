"""A user's own data of any kind: those of a device, or an entry of a folder with an entry for each client."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import AbstractSet, Hashable

from ...core import references
from ...core.errors import ConfigError, DataError
from ...core.rng import generator
from ...core.settings import by_key, items
from ..dataset import Dataset
from ..federation import FederatedData, require_possible_alone
from ..reading import load_once, state_of_files
from ..registry import dataset
from ..settings import DataSettings
from .benchmarks import reader_of
from .categories import with_words
from .columns import (  # fmt: skip
    SUFFIXES,
    column_names,
    holds_tables,
    listed,
    require_ignored,
    sources_of,
    table_files,
    words_in,
)
from .folder import MAX_HELD, read_image_folder
from .huggingface import is_saved, read_saved
from .joining import joined
from .npz import read_npz
from .reading_helpers import own_path
from .table import has_steps, read_table
from .text import read_news, read_plays


def read_own(
    path: Path, settings: DataSettings, num_classes: int | None = None, alone: bool = True, held: int = MAX_HELD
) -> Dataset:
    """Read a file or folder by what it is; raise ``ConfigError`` or ``DataError`` if it is none of these.

    Of a folder of images at most ``held`` bytes are in memory. ``alone``: others number the same classes without seeing
    these data.
    """
    if path.is_dir() and is_saved(path):
        return read_saved(path, settings, alone)
    is_table = holds_tables(path)
    if path.is_dir() and not is_table:
        return read_image_folder(path, settings.image_size, alone, held)
    if is_table and settings.dataset == "ag-news":
        return read_news(path)
    if is_table:
        # Others' tables may have a column that this one lacks.
        here = set(column_names(path))
        ignored = ",".join(name for name in listed(settings.ignore_columns) if name in here)
        settings = replace(settings, ignore_columns=ignored)
        files = table_files(path)
        settings = with_words(settings, lambda column: words_in(sources_of(files, settings), column), path, alone)
        return read_table(path, settings, num_classes, alone, has_steps(settings, column_names(path)))
    if path.suffix == ".json":
        return read_plays(path, settings.window_step)
    return read_npz(path, settings, num_classes, alone)


def read_clients(root: Path, settings: DataSettings, num_classes: int | None = None) -> Dataset:
    """Read a folder with an entry for each client, as :func:`read_own` reads it, or one of PFLlib's or LEAF's."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")
    if (read := reader_of(root)) is not None:
        return read(root, num_classes)
    entries = sorted((entry for entry in root.iterdir() if not entry.name.startswith(".")), key=_by_number)
    if not entries:
        raise DataError(f"{root}: is empty; it must hold a file or a folder for each client")
    for entry in entries:
        if entry.is_file() and entry.suffix.lower() not in (*SUFFIXES, ".npz", ".json"):
            message = f"must be .npz, .json or {' or '.join(SUFFIXES)}; names that begin with a dot are ignored"
            raise DataError(f"{entry}: is not a client's file, which {message}")
    # A folder has no ending: site-1.5 is its name.
    whose = [entry.name if entry.is_dir() else entry.stem for entry in entries]
    if len({*whose}) < len(whose):
        twin = next(number for number, name in enumerate(whose) if name in whose[:number])
        raise DataError(f"{entries[twin]}: is of client {whose[twin]!r}, as {entries[whose.index(whose[twin])].name}")
    if settings.ignore_columns and all(map(holds_tables, entries)):
        require_ignored(settings, (name for entry in entries for name in column_names(entry)), root)
    _require_used(settings, {kind for entry in entries for kind in _kinds_of(entry)}, root)
    files = [file for entry in entries if holds_tables(entry) for file in table_files(entry)]
    settings = with_words(settings, lambda column: words_in(sources_of(files, settings), column), root)
    most = MAX_HELD // len(entries)
    data_sets = [read_own(entry, settings, num_classes, alone=False, held=most) for entry in entries]
    return joined(root.name, data_sets, [*map(str, entries)], [entry.name for entry in entries], tuple(whose))


def _kinds_of(entry: Path) -> tuple[str, ...]:
    """Name the data sets of which a client's file or folder is one."""
    if entry.is_dir() and is_saved(entry):
        return ("huggingface",)
    if holds_tables(entry):
        return ("table", "series")
    if entry.is_dir():
        return ("image-folder",)
    return ("shakespeare",) if entry.suffix.lower() == ".json" else ("npz",)


def _require_used(settings: DataSettings, kinds: AbstractSet[str], root: Path) -> None:
    """Refuse settings that have no effect on any of the clients' files."""
    fields, called = by_key(DataSettings), " and ".join(sorted(kinds - {"series"}))
    for key, value in items(settings):
        allowed = fields[key].metadata["only"].get("dataset", kinds)
        if value != fields[key].default and not kinds & {*allowed}:
            raise ConfigError(key, value, f"has no effect on the clients' entries in {root}, read as {called}")


def _by_number(entry: Path) -> tuple[str, int, str]:
    """Sort client-2 before client-10."""
    letters = entry.stem.rstrip("0123456789")
    digits = entry.stem[len(letters) :]
    return letters, int(digits[:18] or 0), entry.name


@dataset(
    "clients",
    description="your own data, a file or folder for each client",
    shape="any",
    source="the folder named by `data`: each entry an npz file, a table, a series, images or a Hugging Face folder",
    owned=True,
    from_path=True,
)
def _clients(settings: DataSettings) -> Dataset:
    path = own_path(settings, "a folder with an entry for each client")
    return read_clients(path, settings, settings.num_classes or None)


def own_data(
    settings: DataSettings, path: str, client: int, seed: int, num_classes: int | None = None
) -> FederatedData:
    """Return the data that lie on this device as a federation of one client (number 0), read once while they stay.

    ``client``, the number in the federation, is part of the seed of the cut into training and tests and of the label
    permutation. ``num_classes`` is the federation's: a device may lack the highest ones.
    """
    source: Hashable = state_of_files(replace(settings, data=path))
    if references.is_custom("dataset", settings.dataset):
        source = id(_of_function(settings, path, client, seed))
    return _own_data(settings, path, client, seed, num_classes, source)


@lru_cache(maxsize=2)
def _own_data(
    settings: DataSettings, path: str, client: int, seed: int, num_classes: int | None, source: Hashable
) -> FederatedData:
    require_possible_alone(settings)  # before anything is read
    place = Path(path).expanduser()
    if references.is_custom("dataset", settings.dataset):
        data = _of_function(settings, path, client, seed)
    else:
        data = read_own(place, settings, num_classes)
    if num_classes is not None and data.num_classes != num_classes:
        raise DataError(f"{place}: has {data.num_classes} classes, the federation has {num_classes}")
    return FederatedData.of_client(data, settings, client, seed, str(place))


def _of_function(settings: DataSettings, path: str, client: int, seed: int) -> Dataset:
    """Return the data set of the user's function on this device; devices that draw theirs do not all draw the same."""
    own_seed = int(generator(settings.partition_seed or seed, "own data", client).integers(2**31))
    place = Path(path).expanduser()
    return load_once(replace(settings, data=str(place), partition_seed=0), own_seed)
