"""``fedpfl experiment``: the papers' tables and figures as grids of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError
from .common import RunConfig, load_app, overrides, print_tables, require_one_of, stdout, used
from .grid_options import Form, GridOptions, OutputDir, store, with_grid_options
from .program import Program, app

if TYPE_CHECKING:
    from ..study.experiment import ExperimentGrid

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

    from ..study.experiment import files, read

    table = Lines("experiment", "what")
    for path in files().values():
        try:
            experiment = read(str(path))
        except ConfigError as error:  # the others are there all the same
            typer.echo(f"note: left out: {error}", err=True)
        else:
            table.add_row(experiment.name, experiment.title)
    stdout().print(table)


@group.command("run")
@with_grid_options
def run_command(
    name: Name,
    scale: ScaleName = "smoke",
    seeds: Seeds = None,
    run_config: RunConfig = None,
    row: Rows = None,
    column: Columns = None,
    *,
    options: GridOptions,
) -> None:
    """Run an experiment and print its tables.

    Finished runs are skipped; then the tables are written to a folder.

    Example: fedpfl experiment run feddecomp-table-1 --scale smoke --row FedAvg
    """
    from ..api.start import experiment

    settings = _settings(name, scale, run_config)
    options.show(experiment, name, scale=scale, seeds=seeds, rows=row or (), columns=column or (), **settings)


def _settings(name: str, scale: str, run_config: list[str] | None) -> dict[str, Any]:
    """Return the settings that are given for an experiment, without those of methods that none of its cells has."""
    from ..study.experiment import read

    load_app()  # rows may name a method of this folder
    cells = read(name).cells(scale, overrides(run_config))
    return used(run_config, sorted({cell.method for cell in cells}))


@group.command("table")
def table_command(
    name: Name,
    scale: ScaleName = "smoke",
    seeds: Seeds = None,
    output_dir: OutputDir = None,
    run_config: RunConfig = None,
    row: Rows = None,
    column: Columns = None,
    form: Form = "",
) -> None:
    """Print the tables of an experiment's finished runs."""
    from ..results.tables import FORMATS
    from ..study.paper_tables import tables_and_figures

    require_one_of("format", form or FORMATS[0], FORMATS)
    grid = plan(name, scale, seeds, output_dir, run_config, row, column)
    grid.choose(final=True)
    print_tables(tables_and_figures(grid)[0], form)


def plan(
    name: str, scale: str, seeds: int | None, output_dir: Path | None, run_config: list[str] | None,
    rows: list[str] | None = None, columns: list[str] | None = None,
) -> ExperimentGrid:  # fmt: skip
    """Check an experiment, all of it or some rows and columns, and return it with its runs."""
    from ..study.experiment import ExperimentGrid, read

    settings = _settings(name, scale, run_config)
    return ExperimentGrid(read(name).only(scale, rows or (), columns or ()), scale, store(output_dir), seeds, settings)
