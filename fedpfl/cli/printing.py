"""How commands print tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from .common import stdout

if TYPE_CHECKING:
    from rich.table import Table as Lines

    from ..results.tables import Table


def print_tables(tables: Iterable[Table], form: str) -> None:
    """Print tables in one of their formats; without one they are drawn on a terminal, and Markdown elsewhere."""
    if form or not sys.stdout.isatty():
        typer.echo("\n".join(table.write(form or "markdown") for table in tables), nl=False)
        return
    for table in tables:
        print_drawn(table)


def print_drawn(table: Table, all_of_it: str = "--format csv") -> None:
    """Print a table as lines, also into a file; ``all_of_it`` is how columns are seen for which there is no room."""
    console = stdout()
    console.print(_drawn(table, console.width, all_of_it))


def _drawn(table: Table, width: int, all_of_it: str) -> Lines:
    """Return a table as rich draws it; a narrow terminal breaks headings and texts, but neither names nor numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Lines

    rows, shown, left_out = [table.texts(row) for row in table.rows], [*range(len(table.columns))], list[str]()
    cells = [[name, *(row[column] for row in rows)] for column, name in enumerate(table.columns)]
    whole = [column == 0 or table.is_number(column) for column in shown]
    least = [
        max(map(len, [*name.split(), *(texts if whole[column] else " ".join(texts).split())]), default=0)
        for column, (name, *texts) in enumerate(cells)
    ]
    for name in table.optional:
        if sum(least[column] + 3 for column in shown) >= width and name in table.columns:
            shown.remove(table.columns.index(name))
            left_out.append(name)
    fits = sum(max(map(len, cells[column])) + 3 for column in shown) < width
    note = f"{table.note} Not shown here: {', '.join(left_out)} ({all_of_it}).".strip() if left_out else table.note
    lines = Lines(
        title=table.title, title_justify="left", caption=note or None, caption_justify="left", box=SIMPLE_HEAD
    )
    for column in shown:
        lines.add_column(
            table.columns[column], justify="right" if table.is_number(column) else "left", overflow="fold",
            width=least[column] if whole[column] and not fits else None,
        )  # fmt: skip
    for row in rows:
        lines.add_row(*(row[column] for column in shown))
    return lines
