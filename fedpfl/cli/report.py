"""``fedpfl report``: runs as one page, and their plots as files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ConfigError, FedpflError
from . import app
from .common import run_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..results import RunFolder

PAGE = "report.html"
PLOT_FORMATS = ("svg", "png")


@app.command("report")
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names of runs, or their folders.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help=f"Where the page goes; {PAGE} by default.")
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the plots into this folder as well, one file each.")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="Of these files: svg or png.")] = "svg",
) -> None:
    """Write a page about runs: accuracy over rounds and bytes, clients, data, comparisons. It needs no network."""
    if form not in PLOT_FORMATS:
        raise ConfigError("format", form, "must be one of " + ", ".join(PLOT_FORMATS))
    if any(find_spec(module) is None for module in ("matplotlib", "jinja2")):
        raise FedpflError("a report needs matplotlib and jinja2: pip install 'fedpfl[report]'")
    from ..report import sections, write_page, write_plots

    folders = {folder.path: folder for folder in map(run_folder, runs)}  # a run that is named twice counts once
    found, labels = sections(list(folders.values()))
    page = output or Path(PAGE)
    try:
        write_page(page, title or _title(labels, folders.values()), found, labels)
        typer.echo(f"wrote {page.absolute()}", err=True)
        if plots is not None:
            written = write_plots(plots, form, found, labels)
            typer.echo(f"wrote {len(written)} plots into {plots.absolute()}", err=True)
    except OSError as error:
        raise ConfigError("output", str(error.filename or page), f"cannot be written ({error.strerror})") from error


def _title(labels: Sequence[str], runs: Iterable[RunFolder]) -> str:
    data = sorted({str(run.config()["dataset"]) for run in runs})
    return f"{', '.join(labels) or 'Runs'} on {', '.join(data)}"
