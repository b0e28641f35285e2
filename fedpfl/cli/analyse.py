"""``fedpfl analyse``: tables and figures from the folders of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ConfigError
from ..results.tables import FORMATS
from .common import overrides, print_tables, require_one_of, run_folder
from .grid_options import Form, OutputDir, Sweep, finished_of
from .program import app


@app.command("analyse")
def analyse(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Analysis to run. Without it, all are listed with their options."),
    ] = None,
    runs: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Names or folders of runs.")] = None,
    form: Form = "",
    options: Annotated[
        list[str] | None,
        typer.Option("--option", "-O", metavar="KEY=VALUE", help="Option of the analysis; repeatable."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Write the figures' data into this folder.")
    ] = None,
    sweep: Sweep = "",
    output_dir: OutputDir = None,
) -> None:
    """Analyse runs, or list the analyses.

    Example: fedpfl analyse fairness RUN-1 RUN-2
    """
    from ..study.analysis import ANALYSES
    from ..study.analysis.figure import write_data
    from ..study.report.sections import warnings

    if name is None:
        _list_analyses()
        return
    analysis = ANALYSES.find(name)
    require_one_of("format", form or FORMATS[0], FORMATS)
    finished = finished_of(sweep, output_dir) if sweep else []
    analysed = [*map(run_folder, runs or []), *finished]
    result = analysis.make(analysed, **overrides(options))
    print_tables(result.tables, form)
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
            write_data(result.figures, output, f"{name}-")
        except OSError as error:
            raise ConfigError("output", str(output), f"cannot be written ({error.strerror})") from error
        typer.echo(f"wrote the data of {len(result.figures)} figures into {output}", err=True)
    for warning in warnings(analysed):
        if not any(warning in table.note for table in result.tables):
            typer.echo(f"note: {warning}", err=True)


def _list_analyses() -> None:
    from dataclasses import fields

    from ..core.settings import key_of
    from ..study.analysis import ANALYSES

    width = max(map(len, ANALYSES))
    for name, analysis in ANALYSES.items():
        typer.echo(f"{name:<{width}}  {analysis.shows}")
        for option in fields(analysis.options):
            limits = option.metadata["limits"].describe()
            example = f"-O '{key_of(option)}={json.dumps(option.default)}'"
            typer.echo(f"{'':<{width}}    {example}: {option.metadata['doc']} ({limits})")
