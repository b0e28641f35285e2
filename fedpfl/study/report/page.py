"""What the page shows of runs, as one document that its script draws: in a live page and in a report's file.

Pictures are drawn here, as SVG. A report is the page with the document, the style and the script inside; its content
security policy lets it load nothing and run no other script.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from ...core.errors import uncontrolled
from ...core.files import write_atomically
from ...results.tables import Table
from ...version import __version__
from ..analysis.figure import Distributions, Division, Figure, Heatmap, Images, Points, another_name, file_name
from .draw import IN_PAGE, Pen, Style
from .sections import Section

FOLDER = Path(__file__).parent
# Rows of a table, points of a name in a figure, and clients in a row or column of a figure, which a browser can hold.
# What stays of rows, points and heat maps is evenly spaced; of a division, the first clients stay.
MAX_ROWS, MAX_POINTS, MAX_CLIENTS = 1000, 1000, 200
# Plots wider than this, in points, get a row alone.
WIDE = 600.0
_STYLE, _SCRIPT = '<link rel="stylesheet" href="page.css">', '<script src="page.js"></script>'
# matplotlib's own style would count for the whole page, which has it in its style.
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<style[ >].*?</style>|(?<=<g) id=\"[^\"]*\"", re.DOTALL)


def document(
    title: str, sections: Sequence[Section], names: Sequence[str], runs: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the content of the page: headings, notes, tables and figures, all as texts.

    ``names`` are the labels of the runs, which have their own colours in all plots. ``runs`` say how far runs are.
    """
    pen = Pen(names)
    shown = [_section(bounded(section), pen) for section in sections]
    # Files that are saved have the colours of paper, not those of the page.
    colours = {of_page: colour for colour, of_page in IN_PAGE.items()}
    made = f"Made by fedpfl {__version__} from the folders of the runs."
    content: dict[str, Any] = _without_controls(
        {"title": title, "runs": runs, "sections": shown, "made": made, "colours": colours}
    )
    return content


def write_page(path: Path, title: str, sections: Sequence[Section], names: Sequence[str]) -> None:
    """Write a report, the same bytes each time."""
    page, style, script = ((FOLDER / f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    # Inside a script element nothing but its end is markup, which begins with "<".
    data = json.dumps(document(title, sections, names), ensure_ascii=False, allow_nan=False).replace("<", r"\u003c")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src-elem '{_hash(style)}'; style-src-attr "
        "'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    page = page.replace(_STYLE, f"{meta}<style>{style}</style>")
    page = page.replace("<title>fedpfl</title>", f"<title>{escape(uncontrolled(title))}</title>")
    inside = f'<script type="application/json" id="document">{data}</script>\n<script>{script}</script>'
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.replace(_SCRIPT, inside).encode())


def write_plots(
    folder: Path, form: str, sections: Sequence[Section], names: Sequence[str], styles: Sequence[Style] = (),
    titles: bool = False,
) -> list[Path]:  # fmt: skip
    """Write every figure of a report as ``svg``, ``pdf`` or ``png`` into a folder; return the paths of the files.

    ``styles`` are matplotlib's; with ``titles`` each figure's title stands above it.
    """
    pen = Pen(names, styles)
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for part, figure in ((section.part, figure) for section in map(bounded, sections) for figure in section.figures):
        name = another_name(file_name(f"{part} {figure.title}"), [path.stem for path in paths])
        path = folder / f"{name}.{form}"
        write_atomically(path, pen.file(figure, form, figure.title if titles else ""))
        paths.append(path)
    return paths


def _section(section: Section, pen: Pen) -> dict[str, Any]:
    return {
        "part": section.part, "title": section.title, "notes": section.notes, "warnings": section.warnings,
        "tables": [_table(table) for table in section.tables],
        "figures": [_figure(figure, pen) for figure in section.figures],
    }  # fmt: skip


def _table(table: Table) -> dict[str, Any]:
    numbers = [table.is_number(column) for column in range(len(table.columns))]
    return {
        "title": table.title, "columns": table.columns, "numbers": numbers, "note": table.note,
        "rows": [table.texts(row) for row in table.rows], "name": file_name(table.title), "csv": table.csv(),
    }  # fmt: skip


def _figure(figure: Figure, pen: Pen) -> dict[str, Any]:
    svg, width = _embedded(pen.svg(figure, page=True))
    # The images of an analysis are no table; it writes them as arrays.
    csv = "" if isinstance(figure, Images) else figure.file()[1].decode()
    return {
        "title": figure.title, "about": _describe(figure), "svg": svg, "width": width, "wide": width > WIDE,
        "name": file_name(figure.title), "csv": csv,
    }  # fmt: skip


def _embedded(svg: str) -> tuple[str, float]:
    """Return the element of an SVG file without size and names of groups, and its width in points."""
    head, rest = svg[svg.index("<svg") :].split(">", 1)
    box = re.search(r'viewBox="([^"]*)"', head)
    space = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    view = f' viewBox="{box.group(1)}"' if box else ""
    return f"<svg {space}{view}>{_LEFT_OUT.sub('', rest)}", float(box.group(1).split()[2]) if box else 360.0


def _describe(figure: Figure) -> str:
    """Return a description of a figure for readers who do not see it."""
    names = list(getattr(figure, "series", getattr(figure, "groups", getattr(figure, "values", ()))))
    what = f"{figure.title}: {type(figure).__name__.lower()}"
    axes = [getattr(figure, label, "") for label in ("x_label", "y_label")]
    axes = [label for label in axes if label]
    parts = [what, *([f"axes {' and '.join(axes)}"] if axes else [])]
    if not isinstance(figure, Heatmap) and names and len(names) <= 20:
        parts.append("of " + "; ".join(map(str, names)))
    return ", ".join(parts)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _without_controls(value: Any) -> Any:
    """Return a value of JSON with no control character in any text."""
    if isinstance(value, str):
        return uncontrolled(value)
    if isinstance(value, dict):
        return {_without_controls(key): _without_controls(part) for key, part in value.items()}
    return [*map(_without_controls, value)] if isinstance(value, (list, tuple)) else value


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
        return replace(figure, groups=groups), _part(most, MAX_POINTS, "points of a row, evenly spaced")
    if isinstance(figure, Points):
        most = max((len(xs) for xs, _ in figure.series.values()), default=0)
        series = {name: (_some(xs), _some(ys)) for name, (xs, ys) in figure.series.items()}
        sizes: Mapping[str, Sequence[float]] = {name: _some(values) for name, values in figure.sizes.items()}
        return replace(figure, series=series, sizes=sizes), _part(most, MAX_POINTS, "points of a name, evenly spaced")
    if isinstance(figure, Division):
        # The first ones, since a client's place along the axis is its number.
        return replace(figure, counts=figure.counts[:MAX_CLIENTS]), _part(
            len(figure.counts), MAX_CLIENTS, "clients, the first"
        )
    if isinstance(figure, Heatmap):
        rows, columns = (_spaced(len(names), MAX_CLIENTS) for names in (figure.rows, figure.columns))
        values = figure.values[np.ix_(rows, columns)]
        names = [figure.rows[i] for i in rows], [figure.columns[i] for i in columns]
        most = max(len(figure.rows), len(figure.columns))
        return replace(figure, values=values, rows=names[0], columns=names[1]), _part(
            most, MAX_CLIENTS, "rows, evenly spaced"
        )
    return figure, ""


def _some(values: Sequence[float]) -> Sequence[float]:
    return [values[i] for i in _spaced(len(values), MAX_POINTS)]


def _spaced(count: int, most: int) -> np.ndarray:
    """Return at most so many positions, evenly spaced from the first to the last."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(int)


def _part(count: int, most: int, what: str) -> str:
    return f"shown are {most:,} of {count:,} {what}" if count > most else ""
