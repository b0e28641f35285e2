"""``fedpfl experiment``: the papers' tables and figures as grids of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError, one_of
from . import grid_options
from .common import RunConfig, load_app, overrides, require_one_of, require_used, stdout
from .printing import can_draw, print_tables, write_figures
from .program import Program, app

if TYPE_CHECKING:
    from ..results.tables import Table
    from ..study.analysis.figure import Figure
    from ..study.description import Experiment
    from ..study.measured import Measured
    from ..study.paper_tables import RankedColumn

group = Program("Run the papers' tables and figures.")
app.add_typer(group, name="experiment")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of an experiment (`fedpfl experiment list`), or its file.")
]
ScaleName = Annotated[
    str, typer.Option(metavar="[smoke|small|paper]", help="smoke: minutes. small: hours. paper: as published.")
]
Seeds = Annotated[int | None, typer.Option(min=1, help="Use the seeds 1 … N instead of the scale's.")]
Rows = Annotated[list[str] | None, typer.Option("--row", metavar="ROW", help="Only this row; repeatable.")]
Columns = Annotated[list[str] | None, typer.Option("--column", metavar="COLUMN", help="Only this column; repeatable.")]


@group.command("list")
def list_command() -> None:
    """List the experiments."""
    from rich.table import Table as Lines

    found = Lines("experiment", "what")
    for path in files().values():
        try:
            experiment = read(str(path))
        except ConfigError as error:  # the others are there all the same
            typer.echo(f"note: left out: {error}", err=True)
        else:
            found.add_row(experiment.name, experiment.title)
    stdout().print(found)


@group.command("run")
def run_command(
    name: Name,
    scale: ScaleName = "smoke",
    seeds: Seeds = None,
    jobs: grid_options.Jobs = None,
    output_dir: grid_options.OutputDir = None,
    run_config: RunConfig = None,
    row: Rows = None,
    column: Columns = None,
    discard_models: grid_options.DiscardModels = False,
    executor: grid_options.ExecutorName = "local",
    federation: grid_options.Federation = None,
    quiet: grid_options.Quiet = False,
) -> None:
    """Run an experiment and print its tables.

    Finished runs are skipped; once all are finished, the tables are written to a folder.

    Example: fedpfl experiment run feddecomp-table-1 --scale smoke --row FedAvg
    """
    measured = plan(name, scale, seeds, output_dir, run_config, row, column)
    runner = grid_options.Runner(output_dir, executor, federation, jobs, discard_models, quiet)
    states = runner.run(measured.planned())
    measured.choose(final=True)
    if more := [run for run in measured.runs.values() if run.name not in states]:  # with the chosen settings
        states |= runner.run(more)
    tables, figures = tables_and_figures(measured)
    if not row and not column:
        folder = measured.store.tables(measured.experiment.name, scale)
        grid_options.write_tables(tables, folder)
        write_figures(figures, folder)
        draw(figures, measured, folder)
    grid_options.finish(tables, {run.name: states[run.name] for run in measured.wanted()})


@group.command("status")
def status_command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this experiment.")] = None,
    scale: ScaleName = "smoke",
    seeds: Seeds = None,
    output_dir: grid_options.OutputDir = None,
    run_config: RunConfig = None,
) -> None:
    """Show the progress of experiments."""
    from rich.table import Table as Lines

    from ..study.store import State

    found = Lines("experiment", *(state.value for state in State), "runs", title=f"scale {scale}")
    for one in [name] if name else [str(path) for path in files().values()]:
        measured = plan(one, scale, seeds, output_dir, run_config)
        states = list(measured.states().values())
        states += [State.MISSING] * measured.undecided
        counts = [str(states.count(state)) for state in State]
        found.add_row(measured.experiment.name, *counts, str(len(states)))
    stdout().print(found)


@group.command("table")
def table_command(
    name: Name,
    scale: ScaleName = "smoke",
    seeds: Seeds = None,
    output_dir: grid_options.OutputDir = None,
    run_config: RunConfig = None,
    row: Rows = None,
    column: Columns = None,
    form: grid_options.Form = "",
) -> None:
    """Print the tables of an experiment's finished runs."""
    from ..results.tables import FORMATS

    require_one_of("format", form or FORMATS[0], FORMATS)
    measured = plan(name, scale, seeds, output_dir, run_config, row, column)
    measured.choose(final=True)
    print_tables(tables_and_figures(measured)[0], form)


@group.command("page")
def page_command(
    name: Name,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="File for the page.")],
    scale: ScaleName = "smoke",
    seeds: Seeds = None,
    output_dir: grid_options.OutputDir = None,
    run_config: RunConfig = None,
    tell: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Sentence for the top of the page, such as the machine; repeatable."),
    ] = None,
) -> None:
    """Write a page in Markdown about an experiment.

    It has the finished runs, with the command of every cell.
    """
    from ..core.files import write_atomically
    from ..study.markdown_page import page
    from ..study.paper_tables import rankings

    measured = plan(name, scale, seeds, output_dir, run_config)
    measured.choose(final=True)
    ranked = rankings(measured)
    pictures = draw_columns([(of.column, of.figure) for of in ranked if of.figure], measured, output)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        shown: list[Table | RankedColumn] = [*ranked, *tables_and_figures(measured)[0][len(ranked) :]]
        write_atomically(output, page(measured, name, shown, pictures, tell or ()).encode())
    except OSError as error:
        raise ConfigError("output", str(output), f"cannot be written ({error.strerror})") from error
    typer.echo(f"wrote {output.absolute()}", err=True)


def files() -> dict[str, Path]:
    """Return the files of all experiments by name: of the working directory, or those that come with fedpfl."""
    from ..launch import shipped

    own = shipped.folder(shipped.EXPERIMENTS)
    for place in (Path(shipped.EXPERIMENTS), *([own] if own else ())):
        if found := shipped.experiments(place):
            return found
    raise ConfigError("experiments", shipped.EXPERIMENTS, "there are no experiment files here; run in fedpfl's folder")


def read(name: str) -> Experiment:
    """Read an experiment by its name or the path of its file."""
    from ..study.description import load

    if name.endswith(".toml"):
        return load(Path(name).expanduser())
    known = files()
    if name not in known:
        raise ConfigError("experiment", name, one_of(name, known, "a .toml file"))
    return load(known[name])


def plan(
    name: str, scale: str, seeds: int | None, output_dir: Path | None, run_config: list[str] | None,
    rows: list[str] | None = None, columns: list[str] | None = None,
) -> Measured:  # fmt: skip
    """Check an experiment, all of it or some rows and columns, and return it with its runs."""
    from ..methods import find
    from ..study.measured import Measured

    load_app()  # rows may name a method of this folder
    experiment = read(name).only(scale, rows or (), columns or ())
    measured = Measured(experiment, scale, grid_options.store(output_dir), seeds, overrides(run_config))
    require_used(run_config, sorted({find(str(run.settings["method"])).name for run in measured.planned()}))
    return measured


def tables_and_figures(measured: Measured) -> tuple[list[Table], list[Figure]]:
    """Return the tables and the figures of an experiment and of its analyses."""
    from ..study.paper_tables import analysed, figures, tables

    found = analysed(measured)
    return [*tables(measured), *found.tables], [*figures(measured), *found.figures]


def draw(figures: list[Figure], measured: Measured, folder: Path) -> None:
    """Draw figures as SVG next to their data, if matplotlib is installed."""
    if not figures:
        return
    if not can_draw():
        typer.echo("the figures' data are written, but not drawn: pip install matplotlib jinja2", err=True)
        return
    from ..study.report import Section, write_plots

    write_plots(folder, "svg", [Section("", figures=figures)], measured.at.rows)


def draw_columns(figures: list[tuple[str, Figure]], measured: Measured, page: Path) -> dict[str, str]:
    """Draw the figures of columns into SVG files next to a page, and return the names of the files by column."""
    if not figures:
        return {}
    if not can_draw():
        typer.echo("the figures are not drawn: pip install matplotlib jinja2", err=True)
        return {}
    from ..core.files import write_atomically
    from ..study.analysis.figure import file_name
    from ..study.report.draw import Pen

    pen = Pen(measured.at.rows)
    page.parent.mkdir(parents=True, exist_ok=True)
    names = {column: f"{page.stem}-{file_name(column)}.svg" for column, _ in figures}
    for column, figure in figures:
        write_atomically(page.parent / names[column], pen.svg(figure).encode())
    return names
