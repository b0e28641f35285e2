"""Writes a report as one page, or its plots as files.

The page has no script and loads nothing; its content security policy forbids both.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ...core.errors import uncontrolled
from ...core.files import write_atomically
from ...results.tables import Table
from ...version import __version__
from ..analysis.figure import Figure, Heatmap, file_name
from .bounded import bounded
from .draw import Pen, Style
from .sections import Section

# Tables with more rows are closed at first; plots wider than this, in points, get a row alone.
LONG, WIDE = 40, 600.0


def write_page(path: Path, title: str, sections: Sequence[Section], names: Sequence[str]) -> None:
    """Write a report; ``names`` are the labels of the runs, which have their own colours in all plots."""
    environment = Environment(
        loader=PackageLoader("fedpfl.study.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    pen = Pen(names)
    style = Markup((Path(__file__).parent / "page.css").read_text(encoding="utf-8"))
    # What is drawn as SVG is text of this program's own making: matplotlib escapes the names in it.
    parts = [
        (part, list(of)) for part, of in groupby(enumerate(map(bounded, sections), 1), lambda section: section[1].part)
    ]
    page = environment.get_template("page.html").render(
        title=title, style=style, version=__version__, parts=parts, LONG=LONG, numeric=_numeric,
        describe=_describe, svg=lambda figure: Markup(_embedded(pen.svg(figure, page=True))),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, uncontrolled(page).encode())


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
        name = file_name(f"{part} {figure.title}")
        same = sum(path.stem == name or path.stem.startswith(f"{name}--") for path in paths)
        path = folder / f"{name}{f'--{same + 1}' if same else ''}.{form}"
        write_atomically(path, pen.file(figure, form, figure.title if titles else ""))
        paths.append(path)
    return paths


def _embedded(svg: str) -> str:
    """Return the element of an SVG file, without the names of groups, as wide as there is room in a page."""
    svg = svg[svg.index("<svg") :]
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="([^"]*)"', head)
    width = float(box.group(1).split()[2]) if box else 360.0
    # Narrower than three quarters of its own width its words would not be readable: it scrolls in its box then.
    room = f"max-width:{width * 1.55:.0f}px;min-width:{min(width * 0.75, 1000):.0f}px"
    rest = re.sub(r'<g id="[^"]*"', "<g", re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL))
    kind = ' class="wide"' if width > WIDE else ""
    view = f'viewBox="{box.group(1)}"' if box else ""
    return f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {view}{kind} style="{room}" aria-hidden="true">{rest}'


def _describe(figure: Figure) -> str:
    """Return what a figure shows, for readers who do not see it."""
    names = list(getattr(figure, "series", getattr(figure, "groups", getattr(figure, "values", ()))))
    what = f"{figure.title}: {type(figure).__name__.lower()}"
    axes = [getattr(figure, label, "") for label in ("x_label", "y_label")]
    axes = [label for label in axes if label]
    parts = [what, *([f"axes {' and '.join(axes)}"] if axes else [])]
    if not isinstance(figure, Heatmap) and names and len(names) <= 20:
        parts.append("of " + "; ".join(map(str, names)))
    return ", ".join(parts)


def _numeric(table: Table) -> list[bool]:
    """Return which columns hold numbers, which are aligned to the right."""
    words = {column for row in table.rows for column, cell in enumerate(row) if isinstance(cell, str)}
    return [column not in words for column in range(len(table.columns))]
