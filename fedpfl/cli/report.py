"""``fedpfl report``: runs as one page, and their plots as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError
from .common import RunConfig, require_one_of, run_folder
from .experiment import Seeds, plan
from .grid_options import OutputDir, Sweep, finished_of
from .program import app

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..results.run_folder import RunFolder
    from ..study.report.draw import Style

PAGE = "report.html"
PLOT_FORMATS = ("svg", "pdf", "png")


@app.command("report")
def report(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Names of runs, or their folders.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help=f"File for the page; {PAGE} by default.")
    ] = None,
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "",
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the plots into this folder as well, one file each.")
    ] = None,
    form: Annotated[str, typer.Option("--format", metavar="[svg|pdf|png]", help="Format of the plots.")] = "svg",
    style: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="matplotlib's setting for the plots, such as figure.figsize=3.3,2.4, font.size=8 or "
            "font.family=serif; or name or file of a style sheet; repeatable.",
        ),
    ] = None,
    titles: Annotated[bool, typer.Option("--titles", help="Write each plot's title above it.")] = False,
    experiment: Annotated[
        str,
        typer.Option(metavar="NAME", help="An experiment: its finished runs, and its tables against the paper."),
    ] = "",
    sweep: Sweep = "",
    scale: Annotated[str, typer.Option(metavar="[smoke|small|paper]", help="Scale of the experiment.")] = "smoke",
    seeds: Seeds = None,
    output_dir: OutputDir = None,
    run_config: RunConfig = None,
) -> None:
    """Write a page about runs, with plots and analyses.

    The page needs no network.

    Example: fedpfl report RUN-1 RUN-2 -o report.html
    """
    require_one_of("format", form, PLOT_FORMATS)
    from ..api.figures import require_drawing

    require_drawing("a report")
    if not runs and not experiment and not sweep:
        allowed = "must be the name of at least one run; or give an experiment by --experiment, a sweep by --sweep"
        raise ConfigError("run", "", allowed)
    from ..study.paper_tables import tables_and_figures
    from ..study.report import Section, sections, write_page, write_plots
    from ..study.report.draw import Pen
    from ..study.run_store import State

    if plots is None and (style or titles):
        raise ConfigError("style" if style else "titles", (style or ["true"])[0], "does nothing without --plots FOLDER")
    styles = [_style(text) for text in style or ()]
    Pen(styles=styles)  # a mistake in them is told before anything is read

    folders = {folder.path: folder for folder in map(run_folder, runs or [])}  # one that is named twice counts once
    more = []
    if sweep:
        folders.update({folder.path: folder for folder in finished_of(sweep, output_dir)})
    if experiment:
        measured = plan(experiment, scale, seeds, output_dir, run_config)
        folders.update({folder.path: folder for folder in measured.finished()})
        states, grid_experiment = list(measured.states().values()), measured.experiment
        done = f"{states.count(State.FINISHED)} of {len(states)} runs are finished"
        notes = [f"{grid_experiment.title}. {grid_experiment.paper}.", f"Scale {scale}; {done}."]
        more.append(Section("Against the paper", notes, *tables_and_figures(measured)))
        title = title or grid_experiment.title
    parts, labels = sections(list(folders.values()), more)
    page = output or Path(PAGE)
    try:
        write_page(page, title or _title(labels, folders.values()), parts, labels)
        typer.echo(f"wrote {page.absolute()}", err=True)
        if plots is not None:
            written = write_plots(plots, form, parts, labels, styles, titles)
            typer.echo(f"wrote {len(written)} plots into {plots.absolute()}", err=True)
    except OSError as error:
        raise ConfigError("output", str(error.filename or page), f"cannot be written ({error.strerror})") from error


def _style(text: str) -> Style:
    key, equals, value = text.partition("=")
    return {key.strip(): value.strip()} if equals else text


def _title(labels: Sequence[str], runs: Iterable[RunFolder]) -> str:
    """Name the methods, and the data with what tells their divisions apart, such as α."""
    from ..core.settings import parse
    from ..data import DataSettings
    from ..data.settings import in_words

    settings = [parse(DataSettings, run.config()) for run in runs]
    data = sorted({f"{one.dataset} ({in_words(one)})" for one in settings})
    methods = dict.fromkeys(label.partition(",")[0] for label in labels)
    return f"{', '.join(methods) or 'Runs'} on {', '.join(data)}"
