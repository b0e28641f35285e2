"""Tables in files: read in pieces, checked cell by cell, and turned into samples.

What tables of samples (:mod:`.table`) and tables of time steps (:mod:`.series`) have in common. A CSV file needs no
package, a parquet file pyarrow.
"""

from __future__ import annotations

import csv
import re
from array import array
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, NoReturn, Sequence

import numpy as np

from ...core.errors import DataError
from ..dataset import MAX_CLASSES, Dataset, numbered
from ..settings import DataSettings
from .places import need

SUFFIXES = (".csv", ".parquet")
# As float32 4 GiB; a data set is held in memory as a whole.
MAX_VALUES = 2**30
# Characters of a line, bytes of which are read before anything can be said of them.
MAX_CHARACTERS = 2**24
# Rows of a parquet file that are unpacked at a time.
BATCH = 2**16
# Columns that an error names.
MAX_NAMED = 12
TRAIN, TEST = "train", "test"
# Names of columns that most likely say whom a row belongs to.
_PERSON = re.compile(
    r"(.*[_ -])?(client|person|user|subject|patient|participant|proband|device|writer|speaker|owner|hospital|site)"
    r"([_ -]?(id|no|nr|name|number|code|key))?",
    re.IGNORECASE,
)
_WHOLE = re.compile(r"([+-]?[0-9]{1,18})(?:\.0*)?")


class Words(NamedTuple):
    """A column of words or numbers that say what a row is."""

    names: list[str]  # the different values, in the order in which they appear
    codes: np.ndarray  # int64, (rows,): which of them each row has
    first: list[int]  # the row, from 1, in which each appears first

    def of(self, rows: np.ndarray) -> Words:
        """Return the words of some rows."""
        return Words(self.names, self.codes[rows], self.first)


class Columns(NamedTuple):
    """A table."""

    features: tuple[str, ...]  # names of the columns of numbers
    values: np.ndarray  # float32, (rows, features)
    words: dict[str, Words]  # by role: label, and where the table has them client, split and window
    row: str  # what errors call a row: line or row


def table_files(path: Path) -> list[Path]:
    """Return the file of a table, or those of a folder ``train`` and ``test``; ``DataError`` if there are none."""
    if not path.is_dir():
        if not path.is_file():
            raise DataError(f"{path}: no such file")
        if path.suffix.lower() not in SUFFIXES:
            raise DataError(f"{path}: must be a table with the ending {' or '.join(SUFFIXES)}")
        return [path]
    found = [[path / f"{part}{suffix}" for suffix in SUFFIXES] for part in (TRAIN, TEST)]
    present = [[file for file in files if file.is_file()] for files in found]
    if [len(files) for files in present] != [1, 1]:
        raise DataError(
            f"{path}: a folder must have one table called train and one called test ({', '.join(SUFFIXES)})"
        )
    return [files[0] for files in present]


def read_columns(path: Path, settings: DataSettings, windows: bool = False) -> Columns:
    """Read a CSV file whose first line names the columns, or a parquet file.

    With ``windows``, the column ``window-column`` may tell to which window a row belongs. ``DataError`` names the file,
    row and column that are wrong; ``ConfigError`` a column that a setting names and the file lacks.
    """
    columns = (_read_csv if path.suffix.lower() == ".csv" else _read_parquet)(path, settings, windows)
    if not len(columns.values):
        raise DataError(f"{path}: no rows below the names of the columns")
    return columns


def column_names(path: Path) -> list[str]:
    """Return the names of a table's columns."""
    if path.suffix.lower() == ".csv":
        return next(_lines_of(path))[1]
    return list(_parquet(path).schema_arrow.names)


class _Roles(NamedTuple):
    """Which columns are features, by place, and which place has which role."""

    features: list[int]
    words: dict[str, int]


def _roles(path: Path, names: Sequence[str], settings: DataSettings, windows: bool) -> _Roles:
    for at, name in enumerate(names):
        if not name:
            raise DataError(f"{path}: column {at + 1} has no name")
        if name in names[:at]:
            raise DataError(f"{path}: two columns are called {name!r}")
    wanted = {"label": settings.label_column, "client": settings.client_column, "split": settings.split_column}
    if windows:
        wanted["window"] = settings.window_column
    given = [name for role, name in wanted.items() if role == "label" or name != role]
    ignored = listed(settings.ignore_columns)
    for name in [*given, *ignored]:
        if name and name not in names:
            shown = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
            key = "ignore-columns" if name in ignored else next(f"{r}-column" for r in wanted if wanted[r] == name)
            raise DataError(f"{path}: no column {name!r} ({key}); it has {shown}")
    words = {role: list(names).index(name) for role, name in wanted.items() if name in names}
    features = [at for at, name in enumerate(names) if at not in words.values() and name not in ignored]
    person = next((names[at] for at in features if _PERSON.fullmatch(names[at])), None)
    if "client" not in words and settings.client_column and person is not None:
        raise DataError(
            f'{path}: column {person!r} seems to name the owner of each row: client-column = "{person}" makes each '
            f'owner a client, ignore-columns leaves the column out, and client-column = "" uses it as a feature'
        )
    if not features:
        raise DataError(f"{path}: no column of numbers besides {', '.join(names[:MAX_NAMED])}")
    return _Roles(features, words)


def listed(text: str) -> list[str]:
    """Return the words between the commas of a setting."""
    return [word.strip() for word in text.split(",") if word.strip()]


class Coder:
    """Numbers the words of a column as they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.first: list[int] = []
        self._codes = array("q")

    def add(self, word: str, row: int) -> None:
        """Take the word of the next row; rows are counted from 1."""
        number = self._numbers.setdefault(word, len(self._numbers))
        if number == len(self.first):
            self.first.append(row)
        self._codes.append(number)

    def words(self) -> Words:
        """Return the column."""
        return Words(list(self._numbers), np.array(self._codes, np.int64), self.first)


# -- CSV ---------------------------------------------------------------------------------------------------------------


def _lines_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of a CSV file, the names of the columns first."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            start = file.readline(MAX_CHARACTERS)
            file.seek(0)
            # The separator between cells; a comma if only one column has a name.
            delimiter = max(",;\t", key=start.count)
            reader = csv.reader(_bounded(file, path), delimiter=delimiter)
            for cells in reader:
                if cells:
                    yield reader.line_num, [cell.strip() for cell in cells] if reader.line_num == 1 else cells
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: not a readable CSV file: {' '.join(str(error).split())}") from error


def _bounded(file: Any, path: Path) -> Iterator[str]:
    number = 0
    while True:
        line = file.readline(MAX_CHARACTERS)
        number += 1
        if not line:
            return
        if len(line) == MAX_CHARACTERS:
            raise DataError(f"{path}, line {number}: longer than {MAX_CHARACTERS} characters")
        yield line


def _read_csv(path: Path, settings: DataSettings, windows: bool) -> Columns:
    lines = _lines_of(path)
    names = next(lines, (1, []))[1]
    if not names:
        raise DataError(f"{path}: the file is empty")
    if all(_is_number(name) for name in names):
        raise DataError(f"{path}, line 1: must hold the names of the columns, but holds numbers")
    roles = _roles(path, names, settings, windows)
    values, coders = array("f"), {role: Coder() for role in roles.words}
    empty = "nan" if settings.impute == "mean" else ""
    for line, cells in lines:
        if len(cells) != len(names):
            raise DataError(f"{path}, line {line}: has {len(cells)} cells, but {len(names)} columns have names")
        try:
            values.extend([float(cells[at] if cells[at].strip() else empty) for at in roles.features])
        except ValueError:
            _complain_of_numbers(path, line, names, roles.features, cells)
        for role, at in roles.words.items():
            cell = cells[at].strip()
            if not cell:
                raise DataError(f"{path}, line {line}, column {names[at]!r}: is empty")
            coders[role].add(cell, line)
        if len(values) > MAX_VALUES:
            raise DataError(f"{path}: holds more than {MAX_VALUES} numbers, too many for one data set in memory")
    table = np.frombuffer(values, np.float32).reshape(-1, len(roles.features)) if values else np.empty((0, 1))
    if not _allowed(table, settings).all():
        _complain_of_infinity(path, table, [names[at] for at in roles.features], settings)
    words = {role: coder.words() for role, coder in coders.items()}
    return Columns(tuple(names[at] for at in roles.features), table, words, "line")


def _complain_of_numbers(
    path: Path, line: int, names: Sequence[str], at: Sequence[int], cells: Sequence[str]
) -> NoReturn:
    bad = next(place for place in at if not _is_number(cells[place]))
    what = (
        f"{cells[bad][:40]!r} is not a number; leave text out with ignore-columns"
        if cells[bad].strip()
        else 'is empty; impute = "mean" fills empty cells'
    )
    raise DataError(f"{path}, line {line}, column {names[bad]!r}: {what}")


def _allowed(table: np.ndarray, settings: DataSettings) -> np.ndarray:
    """Return which numbers a model can take, those among them that are still to be filled."""
    found: np.ndarray = ~np.isinf(table) if settings.impute == "mean" else np.isfinite(table)
    return found


def _complain_of_infinity(path: Path, table: np.ndarray, names: Sequence[str], settings: DataSettings) -> NoReturn:
    row, at = np.argwhere(~_allowed(table, settings))[0]
    # Lines that are empty, or cells of several lines, do not count alike: the file is gone through again.
    rows = (line for number, (line, _) in enumerate(_lines_of(path)) if number == row + 1)
    raise DataError(f"{path}, line {next(rows)}, column {names[at]!r}: must be a finite number that float32 can hold")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# -- parquet -----------------------------------------------------------------------------------------------------------


def _parquet(path: Path) -> Any:
    module = need("pyarrow.parquet", "pyarrow", str(path))
    try:
        return module.ParquetFile(str(path))
    except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of these
        raise DataError(f"{path}: not a readable parquet file: {' '.join(str(error).split())[:160]}") from error


def _read_parquet(path: Path, settings: DataSettings, windows: bool) -> Columns:
    file = _parquet(path)
    types = need("pyarrow.types", "pyarrow", str(path))
    schema = file.schema_arrow
    kept = [name for name in schema.names if not name.startswith("__index_level_")]  # what pandas adds
    roles = _roles(path, kept, settings, windows)
    features = [kept[at] for at in roles.features]
    for name in features:
        kind = schema.field(name).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)):
            raise DataError(f"{path}, column {name!r}: holds {kind}, not numbers; leave it out with ignore-columns")
    rows = file.metadata.num_rows
    if rows * len(features) > MAX_VALUES:
        raise DataError(f"{path}: holds more than {MAX_VALUES} numbers, too many for one data set in memory")
    table, coders = np.empty((rows, len(features)), np.float32), {role: Coder() for role in roles.words}
    at, wanted = 0, [*features, *(kept[place] for place in roles.words.values())]
    try:
        for batch in file.iter_batches(BATCH, columns=wanted):
            for place, name in enumerate(features):
                cells = batch.column(batch.schema.get_field_index(name))
                if settings.impute != "mean":
                    _refuse_empty(path, at, name, cells, '; impute = "mean" fills empty cells')
                with np.errstate(over="ignore"):
                    table[at : at + len(cells), place] = cells.to_numpy(zero_copy_only=False).astype(np.float32)
            for role, place in roles.words.items():
                cells = batch.column(batch.schema.get_field_index(kept[place]))
                _refuse_empty(path, at, kept[place], cells)
                for row, cell in enumerate(cells.to_pylist(), at + 1):
                    coders[role].add(word(cell), row)
            at += batch.num_rows
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable parquet file: {' '.join(str(error).split())[:160]}") from error
    if not _allowed(table, settings).all():
        row, place = np.argwhere(~_allowed(table, settings))[0]
        raise DataError(
            f"{path}, row {row + 1}, column {features[place]!r}: must be a finite number that float32 can hold"
        )
    return Columns(tuple(features), table, {role: coder.words() for role, coder in coders.items()}, "row")


def _refuse_empty(path: Path, before: int, name: str, cells: Any, hint: str = "") -> None:
    if cells.null_count:
        row = before + 1 + int(np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"{path}, row {row}, column {name!r}: is empty{hint}")


def word(cell: Any) -> str:
    """Return a cell of a typed table as it would be in a CSV file."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


# -- data frames -------------------------------------------------------------------------------------------------------


def read_frame(frame: Any, name: str, settings: DataSettings, windows: bool = False) -> Columns:
    """Return the table that a pandas DataFrame is; ``name`` is what a ``DataError`` calls it, rows count from 1.

    ``windows`` is as in :func:`read_columns`.
    """
    where, names = Path(name), [str(column) for column in frame.columns]
    if not len(frame):
        raise DataError(f"{name}: no rows")
    roles = _roles(where, names, settings, windows)
    if len(frame) * len(roles.features) > MAX_VALUES:
        raise DataError(f"{name}: holds more than {MAX_VALUES} numbers, too many for one data set in memory")
    table = np.empty((len(frame), len(roles.features)), np.float32)
    for place, at in enumerate(roles.features):
        cells = frame.iloc[:, at]
        if cells.dtype.kind not in "iufb":
            what = f"holds {cells.dtype}, not numbers; leave it out with ignore-columns"
            raise DataError(f"{name}, column {names[at]!r}: {what}")
        with np.errstate(over="ignore"):
            table[:, place] = cells.to_numpy(np.float64, na_value=np.nan)
    if not _allowed(table, settings).all():
        row, place = np.argwhere(~_allowed(table, settings))[0]
        hint = '; impute = "mean" fills empty cells' if np.isnan(table[row, place]) else ""
        column = names[roles.features[place]]
        raise DataError(f"{name}, row {row + 1}, column {column!r}: is empty or not a finite number{hint}")
    words = {}
    for role, at in roles.words.items():
        coder, cells = Coder(), frame.iloc[:, at]
        empty = np.flatnonzero(cells.isna().to_numpy())
        if len(empty):
            raise DataError(f"{name}, row {empty[0] + 1}, column {names[at]!r}: is empty")
        for row, cell in enumerate(cells.tolist(), 1):
            coder.add(word(cell), row)
        words[role] = coder.words()
    return Columns(tuple(names[at] for at in roles.features), table, words, "row")


# -- samples -----------------------------------------------------------------------------------------------------------


class FileSamples(NamedTuple):
    """FileSamples of one file: the inputs, and the words of each sample by their roles."""

    path: Path
    x: np.ndarray
    words: dict[str, Words]
    row: str


def read_files(path: Path, settings: DataSettings, features: str, windows: bool = False) -> list[tuple[Path, Columns]]:
    """Read the table, or those of a folder with ``train`` and ``test``, whose feature columns must be the same.

    ``features`` is what errors call a feature.
    """
    tables = [(file, read_columns(file, settings, windows=windows)) for file in table_files(path)]
    first, own = tables[0]
    for file, table in tables[1:]:
        if table.features != own.features:
            raise DataError(f"{file}: its {features} are not those of {first.name}, in the same order")
    return tables


def to_dataset(
    parts: Sequence[FileSamples],
    name: str,
    settings: DataSettings,
    num_classes: int | None,
    alone: bool,
    known: tuple[str, ...] = (),
) -> Dataset:
    """Give labels and owners numbers, and tell training from test samples; ``DataError`` for a word that is neither.

    ``parts`` is one file's samples, which the column ``split`` may divide, or those for training and those for testing.
    ``alone``: others number the same classes without seeing these labels. ``known`` names the classes where labels are
    numbers in any case.
    """
    targets = None if known or settings.class_names else _targets(parts)
    numbers, names = (targets, ()) if targets else _classes(parts, settings, num_classes, alone, known)
    owners, client_names = _owners(parts)
    xs = [part.x for part in parts]
    if len(parts) == 1 and "split" in parts[0].words:
        test = _tests(parts[0], settings)
        rows = [np.flatnonzero(~test), np.flatnonzero(test)]
        if not len(rows[0]):
            raise DataError(f"{parts[0].path}, column {settings.split_column!r}: no row is for training")
        rows = rows if len(rows[1]) else rows[:1]
        xs, numbers = [xs[0][mine] for mine in rows], [numbers[0][mine] for mine in rows]
        owners = [None if owners[0] is None else owners[0][mine] for mine in rows]
    x_test, y_test, client_test = (xs[1], numbers[1], owners[1]) if len(xs) > 1 else (None, None, None)
    return Dataset(
        name, xs[0], numbers[0], x_test, y_test, owners[0], client_test, class_names=names, client_names=client_names
    )


def _tests(part: FileSamples, settings: DataSettings) -> np.ndarray:
    words = part.words["split"]
    for name, row in zip(words.names, words.first):
        if name.lower() not in (TRAIN, TEST):
            where = f"{part.path}, {part.row} {row}, column {settings.split_column!r}"
            raise DataError(f"{where}: {name[:40]!r} is neither {TRAIN} nor {TEST}")
    found: np.ndarray = np.array([name.lower() == TEST for name in words.names])[words.codes]
    return found


def _owners(parts: Sequence[FileSamples]) -> tuple[list[np.ndarray | None], tuple[str, ...]]:
    """Give the owners numbers from 0, in the order of their numbers or names; return these as well."""
    if not all("client" in part.words for part in parts):
        lacking = [part.path for part in parts if "client" not in part.words]
        if len(lacking) < len(parts):
            raise DataError(f"{lacking[0]}: has no column client, but the other table has one")
        return [None] * len(parts), ()
    names = sorted({name for part in parts for name in part.words["client"].names}, key=_order)
    number = {name: at for at, name in enumerate(names)}
    columns = (part.words["client"] for part in parts)
    return [np.array([number[name] for name in w.names])[w.codes] for w in columns], tuple(names)


def _order(name: str) -> tuple[int, int, str]:
    """Sort numbers by their value, before names."""
    return (0, int(name), "") if _whole(name) is not None else (1, 0, name)


def _whole(word: str) -> int | None:
    """Return the whole number that a word is, written as an integer or as a float; None if it is none."""
    found = _WHOLE.fullmatch(word)
    return int(found.group(1)) if found else None


def _targets(parts: Sequence[FileSamples]) -> list[np.ndarray] | None:
    """Return labels as targets, float32 n×1, if they are numbers of which most different ones are not whole."""
    columns = [part.words["label"] for part in parts]
    names = [name for words in columns for name in words.names]
    if not all(map(_is_number, names)) or 2 * sum(_whole(name) is None for name in names) <= len(names):
        return None
    found = [np.array(words.names, np.float32)[words.codes][:, None] for words in columns]
    return found if all(np.isfinite(numbers).all() for numbers in found) else None


def _classes(
    parts: Sequence[FileSamples], settings: DataSettings, num_classes: int | None, alone: bool, known: tuple[str, ...]
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    columns = [part.words["label"] for part in parts]
    found = [(part, *one) for part, words in zip(parts, columns) for one in zip(words.names, words.first)]
    given = known or tuple(listed(settings.class_names))
    if given and num_classes not in (None, len(given)):
        raise DataError(f"{parts[0].path}: has names for {len(given)} classes, num-classes is {num_classes}")

    def wrong(part: FileSamples, row: int, name: str, why: str) -> DataError:
        return DataError(f"{part.path}, {part.row} {row}, column {settings.label_column!r}: {name[:40]!r} {why}")

    number: Callable[[str], int | None]
    if given and not known and any(name in given for _, name, _ in found):
        number, names = (lambda name: given.index(name) if name in given else None), given
        why = "is not one of class-names"
    elif all(_whole(name) is not None for _, name, _ in found):
        top = max(_whole(name) or 0 for _, name, _ in found)
        count = len(given) or num_classes or top + 1
        if count > MAX_CLASSES:
            part, name, row = next(one for one in found if _whole(one[1]) == top)
            raise wrong(part, row, name, "is too large: labels must be 0 … C−1, or names")
        number, names, why = _whole, given or numbered(count), f"must be a label from 0 to {count - 1}"
    else:
        for part, name, row in found:
            if _is_number(name) and _whole(name) is None:
                raise wrong(part, row, name, "is not a class: must be a whole number or a name")
        names = given or tuple(sorted({name for _, name, _ in found}))
        if alone and not given:
            raise DataError(
                f"{parts[0].path}, column {settings.label_column!r}: has names as labels; devices number them alike "
                "only with class-names"
            )
        if len(names) > MAX_CLASSES:
            raise DataError(
                f"{parts[0].path}, column {settings.label_column!r}: more than {MAX_CLASSES} different labels"
            )
        places = {name: at for at, name in enumerate(names)}
        number, why = places.get, "is not one of class-names"
    for part, name, row in found:
        label = number(name)
        if label is None or not 0 <= label < len(names):
            raise wrong(part, row, name, why)
    return [np.array([number(name) for name in words.names], np.int64)[words.codes] for words in columns], names
