"""A page of an experiment for a folder of documents: Markdown, with numbers and the command of every cell."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..results.tables import Table
from ..version import __version__
from .analysis.figure import file_name
from .description import ExperimentFile
from .experiment import ExperimentGrid
from .paper_tables import RankedColumn
from .store import State

_WIDTH = 120  # of a line, in characters


def page(
    grid: ExperimentGrid,
    name: str,
    tables: Sequence[Table | RankedColumn],
    pictures: Mapping[str, str],
    told: Sequence[str],
) -> str:
    """Return a page in Markdown.

    ``name`` is what the experiment is called in commands, and ``told`` are further sentences for the page's head, such
    as the machine. ``pictures`` are links to the figures of rankings, by column.
    """
    experiment, states = grid.experiment, list(grid.states().values())
    done = f"{states.count(State.FINISHED)} of {len(states) + grid.undecided} runs are finished"
    if failed := states.count(State.FAILED):
        done += f", {failed} failed"
    parts = [
        f"# {experiment.title}",
        f"{experiment.paper}.",
        " ".join([f"Made on {time.strftime('%Y-%m-%d')} by fedpfl {__version__} from recorded runs; {done}.", *told]),
        "These commands run what is missing and write this page:",
        _block([command(grid, name, "run"), f"{command(grid, name, 'page')} --output FILE.md"]),
    ]
    rankings = [shown for shown in tables if isinstance(shown, RankedColumn)]
    if rankings:
        parts += ["## How it was measured", *map(wrapped, rankings[0].protocol)]
    for shown in tables:
        if isinstance(shown, Table):
            parts.append(shown.markdown().rstrip())
            continue
        parts += _section(grid, shown, pictures.get(shown.column))
        parts.append(_commands(grid, name, [shown.column]))
    if not experiment.ranking:
        parts.append(_commands(grid, name, grid.extent.columns))
    return "\n\n".join(parts) + "\n"


def command(grid: ExperimentGrid, name: str, verb: str, row: str = "", column: str = "") -> str:
    """Return the command that runs all cells, or one."""
    command_line = ["fedpfl", "experiment", verb, name, "--scale", grid.scale]
    if len(grid.seeds) != grid.extent.seeds:
        command_line += ["--seeds", str(len(grid.seeds))]
    command_line += [word for key, part in (("--row", row), ("--column", column)) if part for word in (key, part)]
    for key, value in grid.more.items():
        command_line += ["-c", f'{key}="{value}"' if isinstance(value, str) else f"{key}={str(value).lower()}"]
    return shlex.join(command_line)


def _section(grid: ExperimentGrid, ranking: RankedColumn, picture: str | None) -> list[str]:
    rows = [
        [f"[{row[0]}](#{anchor(grid.experiment, str(row[0]), ranking.column)})", *row[1:]] for row in ranking.table.rows
    ]
    table = replace(ranking.table, rows=rows, note="")
    lines = table.markdown().rstrip().split("\n")[2:]  # the title stands above
    said = [wrapped(f"- {remark}", "  ") for remark in ranking.remarks]
    drawn = [f"![{ranking.table.title}]({picture})"] if picture else []
    return [f"## {ranking.column}", "\n".join(lines), *(["\n".join(said)] if said else []), *drawn]


def _commands(grid: ExperimentGrid, name: str, columns: Sequence[str]) -> str:
    """Return the commands of cells as a list, each under a name that tables can link to."""
    cells = [(row, column) for row, column in grid.cells if column in columns]
    items = [
        f'<a id="{anchor(grid.experiment, row, column)}"></a>{row}{f", {column}" * (len(columns) > 1)}: '
        f"`{command(grid, name, 'run', row, column)}`"
        for row, column in cells
    ]
    return folded("The command of each row", items)


def folded(summary: str, items: Sequence[str]) -> str:
    """Return a list that a page shows once its summary is clicked."""
    # The attribute lets MkDocs read the list as Markdown; GitHub does so without.
    head = f'<details markdown="1"><summary>{summary}</summary>'
    return "\n".join([head, "", *(f"- {item}" for item in items), "", "</details>"])


def anchor(experiment: ExperimentFile, row: str, column: str) -> str:
    """Return the name under which a page has a cell's command."""
    # Rows go by number: names may differ in letters alone that links cannot have.
    return f"{file_name(column)}-{list(experiment.rows).index(row) + 1}"


def wrapped(text: str, indent: str = "") -> str:
    """Return a paragraph in lines of the page's width, all but the first indented."""
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def _block(lines: Sequence[str]) -> str:
    return "\n".join(["```sh", *lines, "```"])
