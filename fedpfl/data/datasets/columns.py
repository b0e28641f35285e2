"""Tables in files: read in pieces, checked cell by cell, and turned into samples."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from array import array
from decimal import Decimal
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from ...core import references
from ...core.errors import ConfigError, DamagedFile, DataError, words_of
from ...core.files import open_regular
from ...core.name_lists import MAX_NAMED, in_short
from ...core.samples import MAX_CLASSES
from ..dataset import Dataset, numbered
from ..named_columns import is_frame, place_of, places
from ..settings import DataSettings
from .categories import (  # fmt: skip
    SIGN,
    as_features,
    as_number,
    categories,
    has_zone,
    is_number,
    time_of,
    whole,
    without_point,
)
from .reading_helpers import (
    MAX_CHARACTERS,
    NO_NAMES,
    PARTS,
    TEST,
    ChosenParts,
    bounded,
    chosen_parts,
    is_part,
    need,
    of_parts,
    opened,
    part_of,
)
from .tokens import cut_short, encoded, feature_names, find

SUFFIXES = (".csv", ".parquet")
# Columns whose names say what they are, wherever a table has them.
SPLIT, WINDOW = "split", "window"
# As float32 4 GiB; a data set is held in memory as a whole.
MAX_VALUES = 2**30
# What CSV files have for numbers that say whether something is so.
TRUTH = {"true": 1.0, "false": 0.0}
# A recording ends where a step of time is so many times the usual one.
GAP = 5
# Cells of a CSV file that are texts in memory at a time.
CELLS = 2**20
# Faults that an error names, of each column and in all, and those that are looked for in a part of a table.
FAULTS_OF_COLUMN, MAX_FAULTS, LOOKED_FOR = 3, 10, 1000
# Names of columns that most likely say whom a row belongs to; a price per person does not.
_PERSON = re.compile(
    r"(?!(.*[_ -])?per[_ -])(.*[_ -])?"
    r"(client|person|user|subject|patient|participant|proband|device|writer|speaker|owner|hospital|site)"
    r"([_ -]?(id|no|nr|name|number|code|key))?",
    re.IGNORECASE,
)
# Cells of typed tables that hold several things.
_SEVERAL = (list, tuple, dict, set, frozenset, np.ndarray)
_EMPTY, _FILLED = "is empty", 'impute = "mean" fills empty cells'
# What a column of times is good for.
_AS_TIME = "time-column orders rows by a time; for features give its parts, such as the hour, in separate columns"


class TextColumn(NamedTuple):
    """A column of words or numbers that say what a row is."""

    names: list[str]  # the different values, in the order in which they appear
    codes: np.ndarray  # int64, (rows,): which of them each row has
    first: list[int]  # the row, from 1, in which each appears first

    def taken(self, rows: np.ndarray) -> TextColumn:
        """Return the column of some rows."""
        return TextColumn(self.names, self.codes[rows], self.first)


class FileSamples(NamedTuple):
    """Samples of one file, a table's rows at first."""

    path: Path  # what errors call it
    x: np.ndarray  # float32, (rows, features) in a table
    columns: dict[str, TextColumn]  # by role: label, and where the table has them client, split, time and window
    row: str  # what errors call a row: line or row
    features: tuple[str, ...] = ()  # their names
    overlap: int = 0  # the data set's: how many windows after one share rows with it
    persons: tuple[str, ...] = ()  # columns that are left out, and seem to say whose rows these are
    gaps: np.ndarray = np.empty(0, np.int64)  # rows before which a client's or a group's times have a gap
    ties: int = 0  # how many rows have the time of the row before, of one client and group
    scattered: int = 0  # how many windows, named in a column, have rows that do not follow one another


def table_parts(path: Path) -> ChosenParts:
    """Return the name of a table's file, or of those of a folder for training and test; ``DataError`` without."""
    if path.is_dir():
        advice = 'dataset = "clients" takes a file for each client'
        return chosen_parts(path, _tables_in(path), f"table ({', '.join(SUFFIXES)})", of_clients=advice)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(f"{path}: must be a table with the ending {' or '.join(SUFFIXES)}")
    return ChosenParts((path.name,), ())


def table_files(path: Path) -> list[Path]:
    """Return the files of a table; errors as of :func:`table_parts`."""
    return [(path if path.is_dir() else path.parent) / name for name in table_parts(path).names]


def holds_tables(path: Path) -> bool:
    """Tell whether a path is a table, or a folder with parts of one."""
    return path.suffix.lower() in SUFFIXES or (path.is_dir() and any(map(is_part, _tables_in(path))))


def _tables_in(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.name[0] != "."]


def read_columns(path: Path, settings: DataSettings, windows: bool = False) -> FileSamples:
    """Read a CSV file whose first line names the columns, or a parquet file.

    With ``windows``, the column ``window`` may tell to which window a row belongs.
    """
    source = source_of(path, settings)
    table = typed(path, source, roles_of(path, source.names, settings, windows), settings)
    if not len(table.x):
        raise DataError(f"{path}: no rows below the names of the columns")
    return finished(table, settings)


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a table, or of those of a folder."""
    names: list[str] = []
    for file in table_files(path):
        names += next(lines_of(file), (1, []))[1] if _is_csv(file) else _parquet(file).schema_arrow.names
    return names


def sources_of(files: Iterable[Path], settings: DataSettings) -> Iterator[Source]:
    """Open the tables in files, one after the other."""
    return (source_of(file, settings) for file in files)


def words_in(tables: Iterable[Source], column: str) -> Iterator[str]:
    """Yield the words in a column of tables, some of them more than once; nothing of those without the column."""
    for table in tables:
        if column in table.names:
            place = table.names.index(column)
            for rows in table.rows([place]):
                yield from (cell_text(cell) for cell in rows.cells(place) if cell is not None)


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def require_ignored(settings: DataSettings, names: Iterable[str], where: object) -> None:
    """Refuse ``ignore-columns`` with a name that none of the columns has."""
    existing = list(dict.fromkeys(names))
    for name in listed(settings.ignore_columns):
        if name not in existing:
            raise DataError(f"{where}: no column {name!r} (ignore-columns); it has {in_short(existing)}")


def leave_out(settings: DataSettings, names: Sequence[str]) -> str:
    """Return the setting that leaves columns out, besides those that it leaves out already."""
    shown = [*listed(settings.ignore_columns), *names]
    return f'ignore-columns = "{",".join(shown[:MAX_NAMED])}{",…" if len(shown) > MAX_NAMED else ""}" leaves out'


class Roles(NamedTuple):
    """The columns that are features, by place, and the places of other roles."""

    features: list[int]
    places: dict[str, int]


def roles_of(path: Path, names: Sequence[str], settings: DataSettings, windows: bool = False) -> Roles:
    """Return the roles of the columns with these names; ``DataError`` if a setting names one that is not there."""
    if "" in names:
        hint = "" if names.index("") else "; pandas writes its index so: to_csv(…, index=False)"
        raise DataError(f"{path}: column {names.index('') + 1} has no name{hint}")
    headless = any(is_number(name) and not name.isdecimal() for name in names) and _is_csv(path)
    hint = "; does the first line name the columns?" if headless else ""
    place = place_of(names, path, hint)
    several = listed(settings.label_column) if settings.targets and settings.label_column not in place else []
    wanted = {"label": settings.label_column, "client": settings.client_column, "split": SPLIT}
    if len(set(several)) < len(several):
        raise ConfigError("label-column", settings.label_column, "lists a column twice")
    if len(several) > 1 and not windows:
        wanted.update(zip(label_roles(len(several)), several))
    for role, column in (("time", settings.time_column), ("group", settings.group_column)):
        if column:
            wanted[role] = column
    if windows:
        wanted["window"] = WINDOW
    required = [name for role, name in wanted.items() if role in ("label", "time", "group") or name != role]
    for name in required:
        if name and name not in place:
            key = next(f"{role.split()[0]}-column" for role in wanted if wanted[role] == name)
            raise DataError(f"{path}: no column {name!r} ({key}); it has {in_short(names)}{hint}")
    by_role = {role: place[name] for role, name in wanted.items() if name in place}
    for one in categories(settings):
        if one.column not in place:
            raise DataError(f"{path}: no column {one.column!r} (category-columns); it has {in_short(names)}{hint}")
        if one.column in [wanted[role] for role in by_role if role.startswith("label")]:
            raise DataError(f"{path}: column {one.column!r} is the label, which category-columns would make a feature")
        by_role[SIGN + one.column] = place[one.column]
    others = {*by_role.values(), *(place[name] for name in listed(settings.ignore_columns) if name in place)}
    features = [index for index in range(len(names)) if index not in others]
    if "client" not in by_role:
        require_no_person(path, (names[index] for index in features), settings)
    if settings.tokenizer:
        if windows or settings.category_columns or len(features) != 1:
            here = in_short([names[index] for index in features]) or "none"
            raise DataError(
                f"{path}: a tokenizer takes one column of texts, and here it is {here}; ignore-columns leaves out "
                "others, and series and category-columns do not go with texts"
            )
        by_role["text"] = features.pop()
    elif not features and not settings.category_columns:
        raise DataError(f"{path}: no column of numbers besides {in_short(names)}")
    return Roles(features, by_role)


def require_no_person(where: object, names: Iterable[str], settings: DataSettings, x: Any = None) -> None:
    """Refuse features that say whom a row belongs to; one with fractions, where ``x`` holds it, names no owner."""
    alike = [
        (index, name) for index, name in enumerate(names) if name == settings.client_column or _PERSON.fullmatch(name)
    ]
    person = next((name for index, name in alike if x is None or not _has_fractions(x, index)), None)
    if settings.client_column and person is not None:
        ways = f'client-column = "{person}" makes each owner a client, ignore-columns leaves the column out'
        if x is not None:
            table = f"one DataFrame with a column {settings.label_column!r}"
            ways = f"{table}, or client_train of fedpfl.Dataset, can have the owners; leave it out of x"
        raise DataError(
            f'{where}: column {person!r} seems to name the owner of each row: {ways}, and client-column = "" uses it '
            "as a feature"
        )


def _has_fractions(x: Any, index: int) -> bool:
    values = np.asarray(x.iloc[:, index] if is_frame(x) else x[:, index])
    return values.dtype.kind == "f" and bool((values % 1 > 0).any())


def label_roles(count: int) -> list[str]:
    """Return the roles of so many columns of targets."""
    return ["label", *(f"label {number}" for number in range(2, count + 1))]


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

    def column(self) -> TextColumn:
        """Return the column."""
        return TextColumn(list(self._numbers), np.array(self._codes, np.int64), self.first)


# -- CSV ---------------------------------------------------------------------------------------------------------------


def lines_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of a CSV file, the names of the columns first."""
    last = 0
    try:
        with opened(path) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
            start = file.readline(MAX_CHARACTERS)
            file.seek(0)
            # The separator between cells; a comma if only one column has a name.
            delimiter = max(",;\t", key=start.count)
            # Strict: else a quotation mark that is never closed takes all lines behind it for one cell.
            # With the blank that people type after a separator, quotation marks would be letters of a word.
            reader = csv.reader(bounded(file, path), delimiter=delimiter, strict=True, skipinitialspace=True)
            for cells in reader:
                last = reader.line_num
                if cells:
                    yield reader.line_num, [cell.strip() for cell in cells] if reader.line_num == 1 else cells
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, csv.Error) as error:
        where = f" (line {last + 1})" if isinstance(error, csv.Error) else ""
        never = "; a quotation mark that begins a cell there is never closed" if "end of data" in str(error) else ""
        raise DataError(f"{path}: not a readable CSV file: {words_of(error)}{where}{never}") from error


class Fault(NamedTuple):
    """What is wrong in a table."""

    row: int  # what errors call it
    column: str  # empty for the row as a whole
    what: str
    cell: str = "empty"
    cures: tuple[str, ...] = ()  # what may help, each beginning with a setting

    def place(self, row: str) -> str:
        """Return where it is; ``row`` is what errors call a row."""
        return f"{row} {self.row}, column {self.column!r}" if self.column else f"{row} {self.row}"


_row_of = itemgetter(0)


def complaint(where: object, row: str, faults: Sequence[Fault]) -> DataError:
    """Return the error with a table's first fault, the places of others (at most three of a column), and cures."""
    by_column: dict[str, list[Fault]] = {}
    for fault in faults:
        by_column.setdefault(fault.column, []).append(fault)
    kept = (fault for column in by_column.values() for fault in sorted(column, key=_row_of)[:FAULTS_OF_COLUMN])
    first, *others = sorted(kept, key=_row_of)[:MAX_FAULTS]
    what = first.what
    if others:
        shown = [f"{one.place(row)} ({one.cell[:40]})" for one in others]
        what += f", also wrong: {', '.join(shown)}{', …' if len(faults) > 1 + len(shown) else ''}"
    cures: dict[str, str] = {}  # by the setting with which each begins
    for cure in (cure for fault in (first, *others) for cure in fault.cures):
        cures.setdefault(cure.split()[0], cure)
    return DataError("; ".join([f"{where}, {first.place(row)}: {what}", *cures.values()]))


class TableRows(NamedTuple):
    """Some rows of a table, whose columns are known by their places."""

    labels: Sequence[int]  # what errors call them
    numbers: Callable[[Sequence[int]], np.ndarray]  # of some columns, (rows, columns), NaN where there is none
    cells: Callable[[int], Sequence[Any]]  # of one column, None where it is empty
    faults: list[Fault]  # in whole rows, which are left out here, and after `numbers` in these


class Source(NamedTuple):
    """A table from anywhere: its columns, what errors call a row, and its rows, some at a time."""

    names: list[str]
    row: str
    rows: Callable[[Sequence[int]], Iterable[TableRows]]  # with the columns that are needed
    others: Mapping[str, Any]  # columns whose type is none of numbers, and their types


def source_of(path: Path, settings: DataSettings) -> Source:
    """Open the table in a file."""
    return _csv_source(path, settings) if _is_csv(path) else _parquet_source(path)


def _csv_source(path: Path, settings: DataSettings) -> Source:
    lines = lines_of(path)
    names = next(lines, (1, []))[1]
    if not names:
        raise DataError(f"{path}: the file is empty")
    if all(is_number(name) for name in names):
        raise DataError(f"{path}, line 1: must hold the names of the columns, but holds numbers")

    def rows(_: Sequence[int]) -> Iterator[TableRows]:
        while some := [*islice(lines, max(1, CELLS // len(names)))]:
            faults = [
                Fault(line, "", f"has {len(cells)} cells, but {len(names)} columns have names", f"{len(cells)} cells")
                for line, cells in some
                if len(cells) != len(names)
            ]
            some = [(line, cells) for line, cells in some if len(cells) == len(names)]

            def numbers(places: Sequence[int], some: Any = some, faults: list[Fault] = faults) -> np.ndarray:
                values = np.zeros((len(some), len(places)))
                for row, (line, cells) in enumerate(some):
                    try:
                        values[row] = numbers_in([cells[place] for place in places], settings.fills_gaps)
                    except ValueError:
                        faults += _no_numbers(line, names, places, cells, settings)
                        if len(faults) > LOOKED_FOR:
                            break
                return values

            def cells_of(place: int, some: Any = some) -> list[str]:
                return [cells[place].strip() for _, cells in some]

            yield TableRows([line for line, _ in some], numbers, cells_of, faults)

    return Source(names, "line", rows, {})


def numbers_in(cells: Sequence[str], gaps: bool) -> list[float]:
    """Return the numbers in cells, 1 and 0 for true and false, and with ``gaps`` NaN for empty ones; or ValueError."""
    try:
        return [as_number(cell) for cell in cells]
    except ValueError:
        cleaned = ["" if _is_gap(cell) else cell.strip() for cell in cells]
        return [TRUTH[word.lower()] if word.lower() in TRUTH else as_number(word or "nan" * gaps) for word in cleaned]


def typed(path: Path, source: Source, roles: Roles, settings: DataSettings) -> FileSamples:
    """Return the numbers and words of a table, checked cell by cell; ``DataError`` names up to ten that are wrong."""
    names = source.names
    features = tuple(names[index] for index in roles.features)
    require_numbers(path, features, source.others, settings)
    pieces, coders, count = [np.empty((0, len(features)), np.float32)], {role: Coder() for role in roles.places}, 0
    for rows in source.rows([*roles.features, *roles.places.values()]):
        numbers = rows.numbers(roles.features)
        with np.errstate(over="ignore"):
            piece = numbers.astype(np.float32)
        count += piece.size
        if count > MAX_VALUES:
            raise DataError(f"{path}: holds more than {MAX_VALUES} numbers, too many for one data set in memory")
        faults = rows.faults
        for row, place in np.argwhere(~usable(piece, settings))[:LOOKED_FOR]:
            is_gap = np.isnan(numbers[row, place])
            what = _EMPTY if is_gap else "must be a finite number that float32 can hold"
            cell = "empty" if is_gap else f"{numbers[row, place]:g}"
            faults.append(Fault(rows.labels[row], features[place], what, cell, (_FILLED,) * bool(is_gap)))
        for role, index in roles.places.items():
            for label, cell in zip(rows.labels, rows.cells(index)):
                text = "" if cell is None else cell_text(cell)
                if isinstance(cell, _SEVERAL):
                    what = f"is {references.article(cell)}, {text[:40]}: must be a number or a word"
                    faults.append(Fault(label, names[index], what, text))
                if text in NO_NAMES and role[0] != SIGN and role != "text":
                    text = ""
                if not text and not (role[0] == SIGN and settings.fills_gaps):
                    faults.append(Fault(label, names[index], "is empty"))
                coders[role].add(text, label)
        if faults:
            raise complaint(path, source.row, faults)
        pieces.append(piece)
    columns = {role: coder.column() for role, coder in coders.items()}
    persons = tuple(name for name in names if name in listed(settings.ignore_columns) and _PERSON.fullmatch(name))
    return FileSamples(path, np.concatenate(pieces), columns, source.row, features, persons=persons)


def _no_numbers(
    line: int, names: Sequence[str], features: Sequence[int], cells: Sequence[str], settings: DataSettings
) -> list[Fault]:
    """Return the faults of a row's cells that must be numbers."""
    gaps = [] if settings.fills_gaps else [place for place in features if _is_gap(cells[place])]
    faults = [Fault(line, names[place], _EMPTY, cures=(_FILLED,)) for place in gaps]
    no_text = [place for place in features if _is_gap(cells[place]) or cells[place].strip().lower() in TRUTH]
    texts = [place for place in features if place not in no_text and not is_number(cells[place])]
    left_out = leave_out(settings, [names[place] for place in texts])
    for place in texts:
        what = f"{cells[place][:40]!r} is not a number"
        cures: tuple[str, ...] = ()
        if re.fullmatch(r"\s*[+-]?\d+(,\d+)+(\.\d*)?\s*", cells[place]):
            what += ": decimals are written with a point, and thousands without a comma"
        else:
            use = "category-columns makes features of words, and tokenizer numbers of a text"
            cures = (f"{left_out} text", _AS_TIME if time_of(cells[place].strip()) is not None else use)
        faults.append(Fault(line, names[place], what, repr(cells[place][:40]), cures))
    return sorted(faults, key=lambda fault: names.index(fault.column))


def _is_gap(cell: str) -> bool:
    """Tell whether a cell among numbers is empty, or a word for that."""
    return cell.strip().lower() in ("", "na", "n/a", "null", "none")


def usable(table: np.ndarray, settings: DataSettings) -> np.ndarray:
    """Mark the numbers that a model can take, those among them that are still to be filled."""
    mask: np.ndarray = ~np.isinf(table) if settings.fills_gaps else np.isfinite(table)
    return mask


# -- parquet -----------------------------------------------------------------------------------------------------------


# What pyarrow raises for a damaged file: its own errors are kinds of these.
_PARQUET = (OSError, ValueError, TypeError, KeyError, IndexError, MemoryError, NotImplementedError, OverflowError)


def _parquet(path: Path) -> Any:
    module = need("pyarrow.parquet", "pyarrow", str(path))
    try:
        open_regular(path).close()
        return module.ParquetFile(str(path))
    except DamagedFile as error:
        raise DataError(f"{path}: {error.more}") from error
    except _PARQUET as error:
        raise DataError(f"{path}: not a readable parquet file: {words_of(error)}") from error


def _parquet_source(path: Path) -> Source:
    file = _parquet(path)
    kinds = {field.name: field.type for field in file.schema_arrow}
    names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]  # what pandas adds

    def rows(places: Sequence[int]) -> list[TableRows]:
        return arrow_rows(path, names, lambda: file.read(columns=[names[place] for place in places]))

    types = need("pyarrow.types", "pyarrow", str(path))
    are_numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    others = {name: kind for name, kind in kinds.items() if not any(is_kind(kind) for is_kind in are_numbers)}
    return Source(names, "row", rows, others)


def arrow_rows(path: Path, names: Sequence[str], read: Callable[[], Any]) -> list[TableRows]:
    """Return the rows of the table of Apache Arrow's that is read; ``DataError`` if it cannot be."""
    with _readable(path):
        table = read()

    def numbers(places: Sequence[int]) -> np.ndarray:
        with _readable(path):
            each = [table[names[index]].cast("float64", safe=False).to_numpy() for index in places]
        return np.stack(each, axis=1) if each else np.empty((len(table), 0))

    def cells(index: int) -> list[Any]:
        with _readable(path):
            values: list[Any] = table[names[index]].to_pylist()
        return values

    return [TableRows(range(1, len(table) + 1), numbers, cells, [])]


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except _PARQUET as error:
        kind = "parquet file" if path.suffix.lower() == ".parquet" else "table"
        raise DataError(f"{path}: not a readable {kind}: {words_of(error)}") from error


def require_numbers(where: object, names: Iterable[str], kinds: Mapping[str, Any], settings: DataSettings) -> None:
    """Refuse columns that are among those whose types, ``kinds``, are none of numbers."""
    if others := [name for name in names if name in kinds]:
        kind, is_time = f"holds {kinds[others[0]]}, not numbers", re.search("date|time", str(kinds[others[0]]))
        use = "category-columns makes features of words"
        use = _AS_TIME if is_time else use
        raise DataError(f"{where}, column {others[0]!r}: {kind}; {leave_out(settings, others)} such columns, {use}")


def cell_text(cell: Any) -> str:
    """Return a cell of a typed table as it would be in a CSV file."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "replace")
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


# -- data frames -------------------------------------------------------------------------------------------------------


def index_names(frame: Any) -> list[Any]:
    """Return the names that a DataFrame's index has; nothing of other objects."""
    return [name for name in getattr(getattr(frame, "index", None), "names", ()) if name not in (None, "")]


def with_index(frame: Any, settings: DataSettings) -> Any:
    """Return a DataFrame with those parts of its index as columns whose names say that they mean something."""
    roles = {settings.label_column, settings.client_column, settings.time_column, SPLIT, WINDOW}
    meant = [
        name
        for name in index_names(frame)
        if (str(name) in roles or _PERSON.fullmatch(str(name))) and name not in frame
    ]
    return frame.reset_index(meant) if meant else frame


def read_frame(frame: Any, name: str, settings: DataSettings, windows: bool = False) -> FileSamples:
    """Return the table that a pandas DataFrame is; ``name`` is what a ``DataError`` calls it, rows count from 1."""
    where, source = Path(name), frame_source(frame)
    if not len(frame):
        raise DataError(f"{name}: no rows")
    roles = roles_of(where, source.names, settings, windows)
    return finished(typed(where, source, roles, settings), settings)


def frame_source(frame: Any) -> Source:
    """Return the columns and rows of a DataFrame."""
    names = [str(column) for column in frame.columns]
    kinds = {name: frame.dtypes.iloc[index] for index, name in enumerate(names)}
    others = {name: kind for name, kind in kinds.items() if kind.kind not in "iufb"}

    def cells(index: int) -> list[Any]:
        return [
            None if gone else cell for cell, gone in zip(frame.iloc[:, index].tolist(), frame.iloc[:, index].isna())
        ]

    def numbers(places: Sequence[int]) -> np.ndarray:
        each = [frame.iloc[:, index].to_numpy(np.float64, na_value=np.nan) for index in places]
        return np.stack(each, axis=1) if each else np.empty((len(frame), 0))

    def rows(_: Sequence[int]) -> list[TableRows]:
        return [TableRows(range(1, len(frame) + 1), numbers, cells, [])]

    return Source(names, "row", rows, others)


# -- samples -----------------------------------------------------------------------------------------------------------


def _in_time(samples: FileSamples, settings: DataSettings) -> FileSamples:
    """Put the samples of each client, or of each of its groups, into the order of their times, and forget the times.

    What several persons record at one time are several series.
    """
    if "time" not in samples.columns:
        return samples
    columns = dict(samples.columns)
    time = columns.pop("time")
    times = [time_of(name) for name in time.names]
    _require_times(samples, settings.time_column, time, times)
    exact = [moment for moment in times if moment is not None]
    rank = {moment: number for number, moment in enumerate(sorted({*exact}))}
    ranks = np.array([rank[moment] for moment in exact])[time.codes]
    whose = [columns[role].codes for role in ("group", "client") if role in columns]
    order = np.lexsort((ranks, *whose))  # stable
    changes = np.zeros(len(samples.x) - 1, bool)
    for codes in whose:
        changes |= np.diff(codes[order]) != 0
    gaps = _gaps(_since_first(exact)[time.codes][order], changes)
    ties = int(((np.diff(ranks[order]) == 0) & ~changes).sum())
    return samples._replace(
        x=samples.x[order],
        columns={role: column.taken(order) for role, column in columns.items()},
        gaps=gaps,
        ties=ties,
    )


def _since_first(times: Sequence[Decimal]) -> np.ndarray:
    """Return how long after the first one times are: whole numbers, perhaps billionths, where these say it exactly."""
    first = min(times)
    for power in (0, 9):
        steps = [(time - first).scaleb(power) for time in times]
        if all(step < 2**63 and step == step.to_integral_value() for step in steps):
            return np.array([int(step) for step in steps], np.int64)
    return np.array([float(time - first) for time in times])


def _gaps(times: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """Return the rows that come after a gap: a step of time far above the usual one of their client or group."""
    gaps = [np.empty(0, np.int64)]
    bounds = [0, *np.flatnonzero(changes) + 1, len(times)]
    for first, end in zip(bounds[:-1], bounds[1:]):
        steps = np.diff(times[first:end])
        usual = np.median(steps[steps > 0]) if (steps > 0).any() else np.inf
        gaps.append(first + 1 + np.flatnonzero(steps > GAP * usual))
    return np.concatenate(gaps)


def _require_times(samples: FileSamples, column: str, cells: TextColumn, times: Sequence[Decimal | None]) -> None:
    """Refuse what is no time, and both numbers and ISO 8601 in one column: 20260103 is a number before 2026-01-01."""
    cell_and_row = [*zip(cells.names, cells.first)]
    no_times = [one for one, time in zip(cell_and_row, times) if time is None]
    _require_none(samples, column, no_times, "is no time: must be a number or ISO 8601 (2026-01-31 08:00)")
    first = cells.names[0]
    form, other = ("ISO 8601", "a number") if is_number(first) else ("a number", "ISO 8601")
    others = [(word, row) for word, row in cell_and_row if is_number(word) != is_number(first)]
    why = "times of a column must all be numbers (seconds since 1970), or all ISO 8601 (2026-01-31 08:00)"
    _require_none(samples, column, others, f"is {form}, and {first[:40]!r} is {other}: {why}")
    zoned = [(word, row) for word, row in cell_and_row if has_zone(word) != has_zone(first)]
    has, lacks = ("has no", "one") if has_zone(first) else ("has a", "none")
    why = "either all times of a column have a zone, or none has"
    _require_none(samples, column, zoned, f"{has} zone, and {first[:40]!r} has {lacks}: {why}")


def finished(samples: FileSamples, settings: DataSettings) -> FileSamples:
    """Put samples into the order of time, with the features of their columns of words behind those of numbers."""
    category_columns = categories(settings)
    if not category_columns:
        return _in_time(samples, settings)
    if samples.x.ndim != 2:
        raise DataError(f"{samples.path}: category-columns is for tables of numbers; its samples are others")
    by_role = dict(samples.columns)
    columns = [(by_role.pop(SIGN + one.column), one) for one in category_columns]
    names = [name for _, one in columns for name in one.features]
    wide = len(samples.features) + len(names)
    if len(samples.x) * wide > MAX_VALUES:
        raise DataError(f"{samples.path}: its {wide} features hold more than {MAX_VALUES} numbers, too many in memory")
    x = np.concatenate([samples.x, *(as_features(cells.names, one)[cells.codes] for cells, one in columns)], axis=1)
    return _in_time(samples._replace(x=x, columns=by_role, features=(*samples.features, *names)), settings)


def to_dataset(
    parts: Sequence[FileSamples],
    name: str,
    settings: DataSettings,
    num_classes: int | None,
    alone: bool,
    class_names: tuple[str, ...] = (),
    remarks: tuple[str, ...] = (),
) -> Dataset:
    """Give labels and owners numbers, and tell training from test samples; ``DataError`` for a word that is neither.

    ``parts`` is one file's samples, which the column ``split`` may divide, or those for training, for tests and perhaps
    for validation. ``alone``: others number the same classes without seeing these labels. ``class_names`` name the
    classes where labels are numbers in any case.
    """
    parts = [_in_order(part, parts[0]) for part in parts]
    vocabulary = 0
    if settings.tokenizer:
        parts, vocabulary, said = _of_texts(parts, settings)
        remarks = (*remarks, *said)
    targets = None if class_names or (settings.class_names and not settings.targets) else _targets(parts, settings)
    if targets:
        count = targets[0].shape[1]
        numbers, names = targets, tuple(_label_columns(settings, count)) if count > 1 else ()
    else:
        numbers, names = _classes(parts, settings, num_classes, alone, class_names)
    owners, client_names = _owners(parts)
    xs, rows = [part.x for part in parts], [np.arange(len(part.x)) for part in parts]
    if len(parts) == 1 and "split" in parts[0].columns:
        rows = _rows_of_parts(parts[0])
        xs, numbers = [xs[0][mine] for mine in rows], [numbers[0][mine] for mine in rows]
        owners = [None if owners[0] is None else owners[0][mine] for mine in rows]
    groups = _groups(parts, rows)
    if groups is None and owners[0] is not None and parts[0].persons:
        shown = f"column {parts[0].persons[0]!r} is left out, so rows with one value may be in training and in tests"
        remarks = (*remarks, f'{shown}: group-column = "{parts[0].persons[0]}" keeps them together')
    if parts[0].x.ndim == 3 and (gaps := sum(len(part.gaps) for part in parts)):  # windows
        shown = f"no window reaches over {gaps} gap{'s' * (gaps > 1)} in the times"
        remarks = (*remarks, f"{shown}: steps above {GAP} times a client's usual one")
    if parts[0].x.ndim == 3 and (ties := sum(part.ties for part in parts)):
        shown = f"{ties} rows of a client have the time of the row before"
        remarks = (*remarks, f"{shown}: if they are of several series, name these (client-column, group-column)")
    if scattered := sum(part.scattered for part in parts):
        shown = f"the rows of {scattered} windows do not follow one another in column {WINDOW!r}"
        remarks = (*remarks, f"{shown}: if its numbers begin again, name whose they are (client-column, group-column)")
    if parts[0].x.ndim == 3:
        for part in parts:
            remarks = (*remarks, *_without_window(part, "client", *(() if targets else ("label",))))
    if counting := _counting(parts[0]):
        shown = f"column {counting[0]!r} counts the rows, and is a feature"
        remarks = (*remarks, f"{shown}: {leave_out(settings, counting)} such columns")
    return of_parts(
        name, xs, numbers, owners, parts[0].path, class_names=names, vocabulary=vocabulary, client_names=client_names,
        feature_names=parts[0].features, remarks=remarks, overlap=max(part.overlap for part in parts),
        groups=groups,
    )  # fmt: skip


def _in_order(part: FileSamples, first: FileSamples) -> FileSamples:
    """Bring the features of a part into the order of the first one's, by their names."""
    if part.features == first.features:
        return part
    order = places(part.features, first.features, part.path, first.path.name)
    return part._replace(features=first.features, x=np.take(part.x, order, axis=1))


def _groups(parts: Sequence[FileSamples], rows: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the number of each sample's group, of training, validation and tests; ``rows`` are each part's."""
    if "group" not in parts[0].columns:
        return None
    columns = [_without_points(part.columns["group"]) for part in parts] * (len(rows) if len(parts) == 1 else 1)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(n for column in columns for n in column.names))}
    codes = [
        np.array([numbers[name] for name in column.names])[column.codes[mine]] for column, mine in zip(columns, rows)
    ]
    return np.concatenate([codes[0], *codes[2:], *codes[1:2]])


class _Texts(NamedTuple):
    """Samples of files whose texts are numbers now."""

    parts: list[FileSamples]
    vocabulary: int
    remarks: list[str]


def _of_texts(parts: Sequence[FileSamples], settings: DataSettings) -> _Texts:
    """Make numbers of the column of texts of each file; the tokenizer's name stands beside that of the column."""
    tokenizer = find(settings.tokenizer)
    encoded_parts: list[FileSamples] = []
    remarks: list[str] = []
    for part in parts:
        columns = dict(part.columns)
        texts = columns.pop("text")
        x, cut = encoded(texts.names, tokenizer, partial(_text_at, part, texts))
        encoded_parts.append(
            part._replace(x=x[texts.codes], columns=columns, features=feature_names(settings.tokenizer))
        )
        remarks += cut_short(cut[texts.codes], tokenizer)
    return _Texts(encoded_parts, tokenizer.vocabulary, remarks)


def _text_at(part: FileSamples, texts: TextColumn, index: int) -> str:
    return f"{part.path}, {part.row} {texts.first[index]}"


def _without_window(part: FileSamples, *roles: str) -> list[str]:
    """Return a line for each of these columns with words in no window: their rows are too few, one after the other."""
    remarks = []
    for role in roles:
        if role in part.columns:
            column = part.columns[role]
            counts = np.bincount(column.codes, minlength=len(column.names))
            if lost := [name for name, count in zip(column.names, counts) if not count]:
                remarks.append(f"no window has {role} {in_short(lost)}: too few rows in a row")
    return remarks


def _counting(part: FileSamples, most: int = 1000, least: int = 20) -> list[str]:
    """Return the features of a table that grow by 1 with nearly every row, as numbers of rows do."""
    first = part.x[:most]
    if first.ndim != 2 or len(first) < least:
        return []
    share = (np.diff(first, axis=0) == 1).mean(0)
    return [name for name, counts in zip(part.features, share > 0.9) if counts]


def _rows_of_parts(part: FileSamples) -> list[np.ndarray]:
    """Return the rows for training, and perhaps for tests and for validation, as the column ``split`` says."""
    column = part.columns["split"]
    kinds = [part_of(name) for name in column.names]
    wrong = [(name, row) for name, row, kind in zip(column.names, column.first, kinds) if kind is None]
    _require_none(part, SPLIT, wrong, f"is none of {', '.join(PARTS)}")
    by_part = [np.flatnonzero(np.array([kind == wanted for kind in kinds])[column.codes]) for wanted in PARTS]
    where = f"{part.path}, column {SPLIT!r}"
    if not len(by_part[0]):
        raise DataError(f"{where}: no row is for training")
    if len(by_part[2]) and not len(by_part[1]):
        raise DataError(f"{where}: has rows for validation and none for tests; call them {TEST}, or add some")
    return [rows for rows in by_part if len(rows)]


def _owners(parts: Sequence[FileSamples]) -> tuple[list[np.ndarray | None], tuple[str, ...]]:
    """Give the owners numbers from 0, in the order of their numbers or names; return these as well."""
    if not all("client" in part.columns for part in parts):
        lacking = [part.path for part in parts if "client" not in part.columns]
        if len(lacking) < len(parts):
            raise DataError(f"{lacking[0]}: has no column client, but the other table has one")
        return [None] * len(parts), ()
    columns = [part.columns["client"] for part in parts]
    if all(whole(name) is not None for column in columns for name in column.names):  # 1.0 in a file of floats
        columns = [*map(_without_points, columns)]
    names = sorted({name for column in columns for name in column.names}, key=_order)
    number = {name: index for index, name in enumerate(names)}
    return [np.array([number[name] for name in column.names])[column.codes] for column in columns], tuple(names)


def _without_points(column: TextColumn) -> TextColumn:
    return column._replace(names=[*map(without_point, column.names)])


def _order(name: str) -> tuple[int, int, str]:
    """Sort numbers by their value, before names; equal ones, such as 1 and 01, as they are written."""
    number = whole(name)
    return (1, 0, name) if number is None else (0, number, name)


def _targets(parts: Sequence[FileSamples], settings: DataSettings) -> list[np.ndarray] | None:
    """Return labels as targets, float32 n×k, if the loss or most of the different ones, which are not whole, say so."""
    roles = [role for role in label_roles(len(parts[0].columns)) if role in parts[0].columns]
    names = [name for part in parts for name in part.columns["label"].names]
    decimals = all(map(is_number, names)) and 2 * sum(whole(name) is None for name in names) > len(names)
    if not (settings.targets or decimals):
        return None
    targets = []
    for part in parts:
        columns = [part.columns[role] for role in roles]
        for cells, column in zip(columns, _label_columns(settings, len(roles))):
            why = "is no finite number, as the setting loss needs"
            with np.errstate(over="ignore"):
                no_numbers = [
                    (name, row)
                    for name, row in zip(cells.names, cells.first)
                    if settings.targets and not (is_number(name) and np.isfinite(np.float32(name)))
                ]
            _require_none(part, column, no_numbers, why)
        targets.append(np.stack([np.array(cells.names, np.float32)[cells.codes] for cells in columns], axis=1))
    return targets if all(np.isfinite(numbers).all() for numbers in targets) else None


def _label_columns(settings: DataSettings, count: int) -> list[str]:
    return listed(settings.label_column) if count > 1 else [settings.label_column]


def _require_none(part: FileSamples, column: str, wrong: Sequence[tuple[str, int]], why: str) -> None:
    """Raise ``DataError`` for wrong words of a column, each with the row that has it first."""
    if faults := [Fault(row, column, f"{name[:40]!r} {why}", repr(name[:40])) for name, row in wrong]:
        raise complaint(part.path, part.row, faults)


def _require_one_kind(parts: Sequence[FileSamples], settings: DataSettings) -> None:
    """Refuse parts of which one has numbers as labels and another one words alone."""
    shares = [[is_number(name) for name in part.columns["label"].names] for part in parts]
    words = [part.path for part, numbers in zip(parts, shares) if not any(numbers)]
    numbers = [part.path for part, numbers in zip(parts, shares) if all(numbers)]
    if words and numbers:
        message = f"column {settings.label_column!r} holds names, and that of {numbers[0].name} numbers"
        raise DataError(f"{words[0]}: {message}: write a class alike in both")


def _classes(
    parts: Sequence[FileSamples],
    settings: DataSettings,
    num_classes: int | None,
    alone: bool,
    class_names: tuple[str, ...],
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    _require_one_kind(parts, settings)
    columns = [part.columns["label"] for part in parts]
    labels = [(part, *one) for part, column in zip(parts, columns) for one in zip(column.names, column.first)]
    declared = class_names or tuple(listed(settings.class_names))
    if declared and num_classes not in (None, len(declared)):
        raise DataError(f"{parts[0].path}: has names for {len(declared)} classes, num-classes is {num_classes}")

    number: Callable[[str], int | None]
    numbers_alone = all(whole(name) is not None for name in (*declared, *(name for _, name, _ in labels)))
    known_as: Callable[[str], Any] = whole if numbers_alone else str  # 1.0 is the class 1 of the list
    listed_as = {known_as(name): index for index, name in enumerate(declared)}
    if not class_names and any(known_as(name) in listed_as for _, name, _ in labels):
        number, names = (lambda name: listed_as.get(known_as(name))), declared
        why = "is not one of class-names"
    elif all(whole(name) is not None for _, name, _ in labels):
        top = max(whole(name) or 0 for _, name, _ in labels)
        count = len(declared) or num_classes or top + 1
        if count > MAX_CLASSES:
            part, name, row = next(one for one in labels if whole(one[1]) == top)
            why = "is too large: labels must be 0 … C−1, or names"
            _require_none(part, settings.label_column, [(name, row)], why)
        number, names, why = whole, declared or numbered(count), "is below 0: labels must be 0 … C−1, or names"
        if declared or num_classes:
            why = f"must be a label from 0 to {count - 1}"
    else:
        for part, column in zip(parts, columns):
            fractions = [one for one in zip(column.names, column.first) if is_number(one[0]) and whole(one[0]) is None]
            why = "is not a class: must be a whole number or a name"
            _require_none(part, settings.label_column, fractions, why)
        names = declared or tuple(sorted({name for _, name, _ in labels}))
        if alone and not declared:
            raise DataError(
                f"{parts[0].path}, column {settings.label_column!r}: has names as labels; devices number them alike "
                "only with class-names"
            )
        if len(names) > MAX_CLASSES:
            raise DataError(
                f"{parts[0].path}, column {settings.label_column!r}: more than {MAX_CLASSES} different labels"
            )
        places = {name: index for index, name in enumerate(names)}
        number, why = places.get, "is not one of class-names"
    for part, column in zip(parts, columns):
        numbers = map(number, column.names)
        outside = [label is None or not 0 <= label < len(names) for label in numbers]
        wrong = [one for one, is_wrong in zip(zip(column.names, column.first), outside) if is_wrong]
        _require_none(part, settings.label_column, wrong, why)
    return [np.array([number(name) for name in column.names], np.int64)[column.codes] for column in columns], names
