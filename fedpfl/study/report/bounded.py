"""Tables and figures of very many clients: cut to a size that a browser can hold, with a note.

What stays of rows, points and heat maps is evenly spaced; of a division, the first clients stay. `fedpfl analyse`
writes all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...results.tables import Table
from ..analysis.figure import Distributions, Division, Figure, Heatmap, Points
from .sections import Section

# Rows of a table, points of a name in a figure, and clients in a row or column of a figure.
MAX_ROWS, MAX_POINTS, MAX_CLIENTS = 1000, 1000, 200


def bounded(section: Section) -> Section:
    """Return a section with bounded tables and figures, and a note for each that has become smaller."""
    notes = list(section.notes)
    figures = []
    for figure in section.figures:
        smaller, what = _bounded(figure)
        if what:
            notes.append(f"{figure.title}: {what}.")
        figures.append(smaller)
    return replace(section, tables=[_bounded_table(table) for table in section.tables], figures=figures, notes=notes)


def _bounded_table(table: Table) -> Table:
    places = _spaced(len(table.rows), MAX_ROWS)
    if len(places) == len(table.rows):
        return table
    note = f"{MAX_ROWS:,} of {len(table.rows):,} rows, evenly spaced; `fedpfl analyse … --format csv` writes all."
    rows = [table.rows[i] for i in places]
    return replace(table, rows=rows, note=" ".join(filter(None, (note, table.note))))


def _bounded(figure: Figure) -> tuple[Figure, str]:
    """Return a figure that can be drawn, and what of it that is; empty if it is all."""
    if isinstance(figure, Distributions):
        most = max(map(len, figure.groups.values()))
        # In order of size, so that the quartiles stay where they are.
        groups = {name: _some(sorted(values)) for name, values in figure.groups.items()}
        return replace(figure, groups=groups), _of(most, MAX_POINTS, "points of a row, evenly spaced")
    if isinstance(figure, Points):
        most = max((len(xs) for xs, _ in figure.series.values()), default=0)
        series = {name: (_some(xs), _some(ys)) for name, (xs, ys) in figure.series.items()}
        sizes: Mapping[str, Sequence[float]] = {name: _some(values) for name, values in figure.sizes.items()}
        return replace(figure, series=series, sizes=sizes), _of(most, MAX_POINTS, "points of a name, evenly spaced")
    if isinstance(figure, Division):
        # The first ones, since a client's place along the axis is its number.
        return replace(figure, counts=figure.counts[:MAX_CLIENTS]), _of(
            len(figure.counts), MAX_CLIENTS, "clients, the first"
        )
    if isinstance(figure, Heatmap):
        rows, columns = (_spaced(len(names), MAX_CLIENTS) for names in (figure.rows, figure.columns))
        values = figure.values[np.ix_(rows, columns)]
        names = [figure.rows[i] for i in rows], [figure.columns[i] for i in columns]
        most = max(len(figure.rows), len(figure.columns))
        return replace(figure, values=values, rows=names[0], columns=names[1]), _of(
            most, MAX_CLIENTS, "rows, evenly spaced"
        )
    return figure, ""


def _some(values: Sequence[float]) -> Sequence[float]:
    return [values[i] for i in _spaced(len(values), MAX_POINTS)]


def _spaced(count: int, most: int) -> np.ndarray:
    """Return at most so many positions, evenly spaced from the first to the last."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(int)


def _of(count: int, most: int, what: str) -> str:
    return f"shown are {most:,} of {count:,} {what}" if count > most else ""
