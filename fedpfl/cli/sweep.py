"""``fedpfl sweep``: the same run with other settings."""

from __future__ import annotations

from typing import Annotated

import typer

from . import app
from .common import RunConfig, look_here, overrides, require_one_of, require_used
from .experiment import (
    DiscardModels,
    ExecutorName,
    Jobs,
    OutputDir,
    Quiet,
    SlurmOptions,
    cluster_of,
    conduct,
    finish,
    store,
    write,
)


@app.command("sweep")
def sweep_command(
    run_config: RunConfig = None,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=A,B,…", help="Every value, with all of other grids; repeatable.")
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=RANGE", help="log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH, choice:A:B; repeatable."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How often random settings are drawn.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 1 … N for each point.")] = 1,
    select: Annotated[
        str, typer.Option(help="test or validation: whose accuracy puts the lines in order (validation-fraction).")
    ] = "test",
    name: Annotated[str, typer.Option(help="Folder of the tables; another sweep needs another.")] = "sweep",
    jobs: Jobs = None,
    output_dir: OutputDir = None,
    form: Annotated[str, typer.Option("--format", help="markdown, csv or latex.")] = "markdown",
    discard_models: DiscardModels = False,
    executor: ExecutorName = "local",
    slurm: SlurmOptions = None,
    quiet: Quiet = False,
) -> None:
    """Run what is not yet done of a sweep over settings, then print a line for each run, the best first."""
    from ..core.errors import ConfigError
    from ..core.settings import parse
    from ..data import DataSettings, default_clients
    from ..experiments.sweep import SELECT, Sweep
    from ..launch.plan import DEFAULT_CLIENTS
    from ..results.tables import FORMATS

    require_one_of("format", form, FORMATS)
    require_one_of("select", select, SELECT)
    if "/" in name or name in ("", ".", ".."):
        raise ConfigError("name", name, "must be the name of a folder")
    look_here()
    given = overrides(run_config)
    clients = default_clients(parse(DataSettings, given)) or DEFAULT_CLIENTS
    sweep = Sweep({"num-clients": clients, **given}, grid or (), random or (), samples, seeds, select)
    require_used(run_config, sweep.methods)
    place = store(output_dir)
    folder = place.tables("sweeps", name)
    sweep.require_own(folder, name)  # before anything is run
    states = conduct(sweep.runs, place, cluster_of(executor, slurm, place), jobs, discard_models, quiet)
    tables = sweep.tables(place, f"Sweep {name}: {len(sweep.points)} points over {', '.join(sweep.keys)}")
    sweep.own(folder)
    write(tables, folder)
    finish(tables, states, form)
