"""Folders that ``save_to_disk`` of Hugging Face's ``datasets`` wrote: images, features and series."""

from __future__ import annotations

import contextlib
import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np

from ...core.errors import ConfigError, DataError, words_of
from ...core.name_lists import in_short
from ..dataset import Dataset
from ..named_columns import places
from ..registry import dataset
from ..settings import DataSettings
from .categories import with_words
from .columns import (
    MAX_VALUES,
    FileSamples,
    Roles,
    Source,
    TableRows,
    arrow_rows,
    finished,
    leave_out,
    listed,
    require_ignored,
    require_numbers,
    roles_of,
    to_dataset,
    typed,
    usable,
    words_in,
)
from .folder import decode
from .npz import samples_of
from .reading_helpers import chosen_parts, need, own_path


def is_saved(path: Path) -> bool:
    """Tell whether a folder is one that ``save_to_disk`` wrote."""
    alone = (path / "state.json").is_file() and (path / "dataset_info.json").is_file()
    return alone or (path / "dataset_dict.json").is_file()


def read_saved(path: Path, settings: DataSettings, alone: bool = False) -> Dataset:
    """Read a folder that ``save_to_disk`` wrote; nothing is downloaded, and no code in it is run.

    The one column of images is what models see; without one all columns of numbers or of lists of numbers of one
    length, or the one column of arrays. ``alone``: others number the same classes without seeing these data.
    """
    if not path.is_dir():
        raise DataError(f"{path}: no such folder")
    if not is_saved(path):
        raise DataError(f"{path}: not a folder that save_to_disk of the package datasets wrote")
    module = need("datasets", "datasets", str(path))
    try:
        data = module.load_from_disk(str(path))
    # pyarrow's errors are kinds of these.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, NotImplementedError) as error:
        raise DataError(f"{path}: cannot be read: {words_of(error)}") from error
    tables: dict[str, Any] = {"": data}
    remarks: tuple[str, ...] = ()
    if isinstance(data, dict):
        splits = chosen_parts(path, data, "split", alone=True)
        tables, remarks = {part: data[part] for part in splits.names}, splits.remarks
    return tables_to_dataset(path, tables, settings, alone, remarks)


def tables_to_dataset(
    path: Path, tables: dict[str, Any], settings: DataSettings, alone: bool = False, remarks: tuple[str, ...] = ()
) -> Dataset:
    """Return the data set of one table, or of one for training and one for tests; see :func:`read_saved`."""
    module = need("datasets", "datasets", str(path))
    first = next(iter(tables))
    settings = _with_label(path, tables, settings)
    if settings.dataset == "huggingface" and not alone:
        require_ignored(settings, tables[first].column_names, path)
    sources = [table_source(path, table, settings) for table in tables.values()]
    settings = with_words(settings, lambda column: words_in(sources, column), path, alone)
    said: dict[str, None] = {}
    parts = [_samples(path / part, table, settings, module, said) for part, table in tables.items()]
    kind = tables[first].features.get(settings.label_column)
    class_names = tuple(kind.names) if isinstance(kind, module.ClassLabel) else ()
    if class_names and settings.class_names and tuple(listed(settings.class_names)) != class_names:
        message = f"must be empty: column {settings.label_column!r} has names, {in_short(class_names)}"
        raise ConfigError("class-names", settings.class_names, message)
    classes = settings.num_classes or None
    return to_dataset(parts, path.stem, settings, classes, alone and not class_names, class_names, (*remarks, *said))


def _times(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _with_label(path: Path, tables: dict[str, Any], settings: DataSettings) -> DataSettings:
    """Return the settings with the only column of classes where the column of labels has no name of its own."""
    first = next(iter(tables.values())).features
    for part, table in tables.items():
        places(table.column_names, list(first), path / part, next(iter(tables)))
        if table.features != first:
            raise DataError(f"{path / part}: has columns of other types than {next(iter(tables))}")
    named = [name for name, kind in first.items() if type(kind).__name__ == "ClassLabel"]
    only = settings.label_column == "label" and "label" not in first and len(named) == 1
    return replace(settings, label_column=named[0]) if only else settings


def _samples(path: Path, table: Any, settings: DataSettings, module: Any, said: dict[str, None]) -> FileSamples:
    names = table.column_names
    roles = roles_of(path, names, settings)
    if not len(table):
        raise DataError(f"{path}: no rows")
    inputs = {names[place]: table.features[names[place]] for place in roles.features}
    source = table_source(path, table, settings)
    for place in roles.places.values():
        if not isinstance(kind := table.features[names[place]], (module.Value, module.ClassLabel)):
            raise DataError(f"{path}, column {names[place]!r}: holds {kind}; must be a number or a word a row")
    if inputs and all(isinstance(kind, (module.Value, module.ClassLabel)) for kind in inputs.values()):
        return finished(typed(path, source, roles, settings), settings)
    samples = typed(path, source, Roles([], roles.places), settings)
    if settings.tokenizer:
        return finished(samples, settings)
    pictures = [name for name, kind in inputs.items() if isinstance(kind, module.Image)]
    if len(pictures) > 1:
        raise DataError(f"{path}: columns {', '.join(pictures)} hold images; leave out all but one with ignore-columns")
    if pictures:
        x = _images(path, table, pictures[0], module, settings.image_size, said)
        return finished(samples._replace(x=x), settings)
    require_numbers(path, inputs, source.others, settings)
    x, features = _numbers(path, table, inputs, settings, module)
    return finished(samples._replace(x=x, features=features), settings)


def table_source(path: Path, table: Any, settings: DataSettings) -> Source:
    """Return a table's columns and its rows; ``DataError`` for one whose rows are not simply there.

    Cells of classes are their names, but for the label, whose numbers the data set keeps.
    """
    module = need("datasets", "datasets", str(path))
    if not hasattr(table, "select_columns") or not hasattr(table, "__len__"):
        raise DataError(f"{path} is streamed (an IterableDataset); load it without streaming")
    if table.format["type"] == "custom":
        raise DataError(f"{path} has a transform (with_transform), which is not used here: give the rows as "
                        ".with_format(None) has them or .map(…) makes them")  # fmt: skip
    if {*table.format["columns"]} != {*table.column_names}:
        shown = in_short(list(table.format["columns"]))
        raise DataError(f"{path} shows {shown} of its columns (with_format), and all are read: use select_columns")
    values = {name: kind.dtype for name, kind in table.features.items() if isinstance(kind, module.Value)}
    others = {name: kind for name, kind in values.items() if not kind.startswith(("int", "uint", "float", "bool"))}
    # Their numbers are names of classes, in no order, and -1 is none.
    others.update(
        dict.fromkeys((name for name, kind in table.features.items() if isinstance(kind, module.ClassLabel)), "classes")
    )
    names = list(table.column_names)
    class_names = {
        names.index(name): kind.names for name, kind in table.features.items()
        if isinstance(kind, module.ClassLabel) and name != settings.label_column
    }  # fmt: skip

    def rows(places: Sequence[int]) -> list[TableRows]:
        chosen = table.select_columns([names[place] for place in places]).with_format("arrow")
        (all_rows,) = arrow_rows(path, names, lambda: chosen[:])

        def cells(index: int) -> Sequence[Any]:
            numbers = all_rows.cells(index)
            if index not in class_names:
                return numbers
            return [None if number is None or number < 0 else class_names[index][number] for number in numbers]

        return [all_rows._replace(cells=cells)]

    return Source(names, "row", rows, others)


def _images(path: Path, table: Any, name: str, module: Any, size: int, said: dict[str, None]) -> np.ndarray:
    stored = table.select_columns([name]).cast_column(name, module.Image(decode=False))

    def files() -> Iterator[tuple[str, Any]]:
        for row in range(len(stored)):
            where, cell = f"{path}, row {row + 1}, column {name!r}", stored[row][name]
            if cell is None or not (cell["bytes"] or cell["path"]):
                raise DataError(f"{where}: is empty")
            yield where, io.BytesIO(cell["bytes"]) if cell["bytes"] else cell["path"]

    return decode(files(), len(stored), str(path), said, size)


def _numbers(
    path: Path, table: Any, inputs: dict[str, Any], settings: DataSettings, module: Any
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the numbers of all rows, and their names: that of the column, with the place in a list."""
    if not inputs:
        there = in_short(table.column_names)
        raise DataError(f"{path}: no column of images or numbers besides the labels; it has {there}")
    chosen = table.select_columns(list(inputs)).with_format("numpy")
    stored = chosen.with_format("arrow")
    for name in (name for name, kind in inputs.items() if not isinstance(kind, module.Value)):
        empty = stored.select_columns([name])[:][name].is_null().to_numpy()
        if empty.any():
            raise DataError(f"{path}, row {empty.argmax() + 1}, column {name!r}: is empty")
    # All rows are as wide as the first one; the table may be larger than the memory.
    if len(table) * sum(np.size(column) for column in chosen[:1].values()) > MAX_VALUES:
        raise DataError(f"{path}: holds more than {MAX_VALUES} numbers, too many for one data set in memory")
    columns = chosen[:]
    cells = {name: _checked(path, name, columns[name], settings) for name in inputs}
    if len(cells) > 1 and (arrays := [name for name, column in cells.items() if column.ndim > 2]):
        rest = leave_out(settings, [name for name in inputs if name != arrays[0]])
        raise DataError(f"{path}: column {arrays[0]!r} holds arrays, which models take alone; {rest} all others")
    wide = [column.reshape(len(column), -1) if column.ndim < 2 else column for column in cells.values()]
    x = wide[0] if wide[0].ndim > 2 else np.concatenate([part.astype(np.float32) for part in wide], axis=1)
    of_pixels = x.ndim > 2 and _type_of(next(iter(inputs.values()))) == "uint8"
    x = samples_of(x.astype(np.uint8 if of_pixels else np.float32), str(path), gaps=settings.fills_gaps)
    if x.ndim > 2:
        return x, ()
    names = [
        [name] if column.ndim < 2 else [f"{name}[{index}]" for index in range(column.shape[1])]
        for name, column in cells.items()
    ]
    return x, tuple(itertools.chain.from_iterable(names))


def _type_of(kind: Any) -> str:
    """Return the type of the numbers in a column, in whose arrays or lists they may be: NumPy gets other ones."""
    while hasattr(kind, "feature"):
        kind = kind.feature
    return str(kind.dtype)


def _checked(path: Path, name: str, column: Any, settings: DataSettings) -> np.ndarray:
    """Return a column whose rows are numbers of one shape."""
    cells = np.asarray(column)
    if cells.dtype.kind == "O":
        shapes = [np.shape(cell) for cell in cells]
        for row, shape in enumerate(shapes):
            if shape != shapes[0]:
                raise DataError(f"{path}, row {row + 1}, column {name!r}: has {_times(shape)} numbers, "
                                f"row 1 {_times(shapes[0])}")  # fmt: skip
        # An empty cell is a NaN here; that these are no numbers is said below.
        with contextlib.suppress(TypeError, ValueError):
            cells = np.array(cells.tolist(), np.float64)
    if cells.dtype.kind not in "iufb":
        raise DataError(f"{path}, column {name!r}: holds no numbers of one shape; {leave_out(settings, [name])} it")
    if cells.dtype.kind == "f" and not (fit := usable(cells, settings)).all():
        row = int(np.argwhere(~fit)[0][0])
        raise DataError(f"{path}, row {row + 1}, column {name!r}: is empty or not a finite number")
    return cells


@dataset(
    "huggingface",
    description="your own Hugging Face data set",
    shape="images, features or series",
    source="the folder named by `data`, as save_to_disk of the package datasets writes it",
    owned=True,
    from_path=True,
)
def _huggingface(settings: DataSettings) -> Dataset:
    return read_saved(own_path(settings, "a folder that save_to_disk wrote"), settings)
