"""Tables: a row for each sample, or for each step of time, where rows are cut into windows."""

from __future__ import annotations

from pathlib import Path
from typing import Collection

import numpy as np

from ...core.errors import ConfigError, DataError
from ..dataset import Dataset
from ..partitioners import overlap_of
from ..registry import dataset
from ..settings import DataSettings
from .categories import with_words
from .columns import (
    MAX_VALUES,
    WINDOW,
    FileSamples,
    TextColumn,
    column_names,
    read_columns,
    require_ignored,
    sources_of,
    table_files,
    table_parts,
    to_dataset,
    words_in,
)
from .reading_helpers import own_path

# Columns by which rows of one window number are several windows.
APART = ("client", "split", "group")


def read_table(
    path: Path, settings: DataSettings, num_classes: int | None = None, alone: bool = False, windows: bool = False
) -> Dataset:
    """Read a table, a file or a folder with parts: of samples, or with ``windows`` of steps of time.

    ``num_classes`` is given where the table may lack the highest classes. ``alone``: others number the same classes
    without seeing this table, so names are refused without ``class-names``.
    """
    require_ignored(settings, column_names(path), path)
    files, remarks = table_files(path), table_parts(path).remarks
    settings = with_words(settings, lambda column: words_in(sources_of(files, settings), column), path)
    tables = [read_columns(file, settings, windows) for file in files]
    parts = [windows_of(table, settings) for table in tables] if windows else tables
    return to_dataset(parts, path.stem, settings, num_classes, alone, remarks=remarks)


def has_steps(settings: DataSettings, names: Collection[str]) -> bool:
    """Tell whether a table's rows are steps of time, as a setting or the name of a column says."""
    if settings.dataset == "series" or settings.window_length:
        return True
    return settings.dataset != "table" and WINDOW in names


def windows_of(table: FileSamples, settings: DataSettings) -> FileSamples:
    """Cut a table of time steps into samples, n × channels × time.

    Without a column ``window``, windows are cut from each stretch of rows with the same label, client and split and
    without a gap in its times; what is left at the end of a stretch belongs to no sample.
    """
    named = "window" in table.columns
    windows = (_named if named else _cut)(table.path, table, settings)
    count, length = windows.shape
    if count * length * len(table.features) > MAX_VALUES:
        raise DataError(
            f"{table.path}: its windows hold more than {MAX_VALUES} numbers; a larger window-step gives fewer"
        )
    # A target may be another number in each row, such as the next value; the last one is the window's.
    columns: dict[str, TextColumn] = {
        role: column.taken(windows[:, -1 if settings.targets else 0])
        for role, column in table.columns.items()
        if role != "window"
    }
    x = np.ascontiguousarray(table.x[windows].transpose(0, 2, 1))
    gaps = table.gaps[:0] if named else table.gaps
    overlap = 0 if named else overlap_of(length, settings.window_step or length)
    scattered = _scattered(table, windows) if named else 0
    return table._replace(x=x, columns=columns, overlap=overlap, gaps=gaps, scattered=scattered)


def _named(path: Path, table: FileSamples, settings: DataSettings) -> np.ndarray:
    """Return the rows of each window, shape (windows, length), as the column ``window`` names them.

    Each client and each group may count its own windows.
    """
    window, others = table.columns["window"], [table.columns[role] for role in APART if role in table.columns]
    key = window.codes
    for column in others:
        key = np.unique(key * len(column.names) + column.codes, return_inverse=True)[1].reshape(-1)
    order = np.argsort(key, kind="stable")
    ends = np.flatnonzero(np.diff(key[order])) + 1
    sizes = np.diff(np.concatenate([[0], ends, [len(order)]]))
    starts = order[np.concatenate([[0], ends])]
    wanted = settings.window_length or int(np.bincount(sizes).argmax())
    if (sizes != wanted).any():
        bad = int(np.flatnonzero(sizes != wanted)[0])
        name = window.names[window.codes[starts[bad]]]
        expected = "window-length says" if settings.window_length else "most others have"
        where = f"{path}, column {WINDOW!r}"
        raise DataError(f"{where}: window {name[:40]!r} has {sizes[bad]} rows, {expected} {wanted}")
    windows: np.ndarray = order.reshape(-1, wanted)
    # Windows in the order of their first rows.
    windows = windows[np.argsort(windows[:, 0], kind="stable")]
    labels = table.columns["label"].codes[windows]
    mixed = np.flatnonzero((labels != labels[:, :1]).any(axis=1) & (not settings.targets))
    if len(mixed):
        name = window.names[window.codes[windows[mixed[0], 0]]]
        raise DataError(f"{path}, column {settings.label_column!r}: window {name[:40]!r} has more than one label")
    return windows


def _scattered(table: FileSamples, windows: np.ndarray) -> int:
    """Count the windows with other rows of the same client, split and group between their own."""
    whose = [table.columns[role].codes for role in APART if role in table.columns]
    place = np.empty(len(table.x), np.int64)
    place[np.lexsort((np.arange(len(table.x)), *whose))] = np.arange(len(table.x))
    return int((place[windows[:, -1]] - place[windows[:, 0]] >= windows.shape[1]).sum())


def _cut(path: Path, table: FileSamples, settings: DataSettings) -> np.ndarray:
    """Return the rows of each window, shape (windows, length), cut from stretches of equal words."""
    length, step = settings.window_length, settings.window_step or settings.window_length
    if not length:
        message = f"must be above 0, or {path.name} must mark the windows in a column {WINDOW!r}"
        raise ConfigError("window-length", 0, message)
    changes = np.zeros(len(table.x) - 1, bool)
    for role, column in table.columns.items():
        if not (settings.targets and role.startswith("label")):
            changes |= np.diff(column.codes) != 0
    changes[table.gaps - 1] = True
    bounds = np.concatenate([[0], np.flatnonzero(changes) + 1, [len(table.x)]])
    starts = [np.arange(first, end - length + 1, step) for first, end in zip(bounds[:-1], bounds[1:])]
    first = np.concatenate(starts)
    if not len(first):
        longest = int(np.diff(bounds).max())
        message = (
            f"no stretch of {path.name} with one label is longer than {longest} rows; targets for each row need a "
        )
        message += "loss of numbers"
        raise ConfigError("window-length", length, message)
    windows: np.ndarray = first[:, None] + np.arange(length)
    return windows


@dataset(
    "table",
    description="your own table",
    shape="features",
    source="the .csv or .parquet file named by `data`, or a folder with train and test: columns of numbers, label, "
    "optionally client and split",
    owned=True,
    from_path=True,
)
def _table(settings: DataSettings) -> Dataset:
    return read_table(own_path(settings, "a table"), settings, settings.num_classes or None)


@dataset(
    "series",
    description="your own series, cut into windows",
    shape="channels×time",
    source="the .csv or .parquet file named by `data`, or a folder with train and test: a row for each step of time, "
    "columns of channels, label, optionally window, client and split",
    owned=True,
    from_path=True,
)
def _series(settings: DataSettings) -> Dataset:
    path = own_path(settings, "a table of time steps")
    return read_table(path, settings, settings.num_classes or None, windows=True)
