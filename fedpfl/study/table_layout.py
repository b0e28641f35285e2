"""How the numbers of a grid are laid out: a line for each cell and a column for each number, or rows by columns.

Sweeps, comparisons and papers' tables differ only in which columns they show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..results.tables import Cell as TableCell
from ..results.tables import Spread, Table
from .grid import Grid, chosen_in_words


@dataclass(frozen=True)
class Line:
    """A line of a table: a cell of a grid, over some of its seeds."""

    row: str
    column: str
    seeds: Sequence[int]


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, what it has in a line, and the decimal places of its numbers."""

    head: str
    cell: Callable[[Line], TableCell]
    digits: int = 1


def lines_of(grid: Grid) -> list[Line]:
    """Return a line for each cell of a grid, over all seeds."""
    return [Line(row, column, grid.seeds) for row, column in grid.cells]


def cell_names(grid: Grid, chosen: bool = True) -> list[Column]:
    """Return the columns that tell the lines of a comparison apart: method, data and what was chosen."""
    names = [Column("method", lambda line: line.row)]
    if len(grid.columns) > 1:
        names.append(Column("data", lambda line: line.column))
    return [*names, *([chosen_column(grid)] if chosen and grid.trials else [])]


def chosen_column(grid: Grid) -> Column:
    """Return the column of the settings that were chosen for each cell."""
    return Column("chosen", lambda line: chosen_in_words(grid, (line.row, line.column)))


def number_column(grid: Grid, metric: str, digits: int = 1, head: str = "") -> Column:
    """Return the column of a metric of the runs, by its short heading unless another one is given."""
    heading = head or grid.metric(metric).short_title
    return Column(heading, lambda line: grid.spread(metric, line.row, line.column, line.seeds), digits)


def in_lines(
    title: str, columns: Sequence[Column], lines: Sequence[Line], best: Column | None = None, lowest: bool = False,
    note: str = "", optional: Sequence[str] = (),
) -> Table:  # fmt: skip
    """Return a table with a line for each cell.

    The lines of each of the grid's columns stand together, in the order of the column ``best``: from its highest number
    to the lowest, or the other way round, and last what has no number there.
    """
    rows = [[column.cell(line) for column in columns] for line in lines]
    marked = {}
    if best is not None:
        groups, place = list(dict.fromkeys(line.column for line in lines)), columns.index(best)

        def order(pair: tuple[Line, Sequence[TableCell]]) -> tuple[int, float]:
            number = _number(pair[1][place])
            return groups.index(pair[0].column), math.inf if number is None else number if lowest else -number

        rows = [row for _, row in sorted(zip(lines, rows, strict=True), key=order)]
        if len(groups) == 1:  # of several data sets each has a best one
            marked = {place: -1 if lowest else 1}
    heads, digits = [column.head for column in columns], [column.digits for column in columns]
    return Table(title, heads, rows, digits, note=note, optional=optional, marked=marked)


def rows_by_columns(
    title: str, rows: Sequence[str], columns: Sequence[str], numbers: Mapping[str, Callable[[str, str], TableCell]],
    digits: int, corner: str = "", note: str = "", marked: int = 0,
) -> Table:  # fmt: skip
    """Return a table of rows by columns with one number in each place, or several by their names.

    ``marked`` is 1 where the highest number of a column is the best, -1 where the lowest is, and 0 for neither.
    """
    heads = [f"{column} ({name})" if name else column for column in columns for name in numbers]
    cells = [[row, *(cell(row, column) for column in columns for cell in numbers.values())] for row in rows]
    best = dict.fromkeys(range(1, 1 + len(heads)), marked) if marked else {}
    return Table(title, [corner, *heads], cells, digits, note=note, marked=best)


def _number(cell: TableCell) -> float | None:
    if isinstance(cell, Spread):
        return cell.mean
    return cell if isinstance(cell, (int, float)) else None
