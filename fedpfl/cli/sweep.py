"""``fedpfl sweep``: the same run with other settings."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError
from .app import app
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

if TYPE_CHECKING:
    from ..experiments.cluster import Cluster
    from ..experiments.store import Store
    from ..experiments.sweep import Sweep

Select = Annotated[
    str, typer.Option(help="Order the lines by the accuracy on test or validation samples (validation-fraction).")
]
Form = Annotated[str, typer.Option("--format", help="markdown, csv or latex.")]


@app.command("sweep")
def sweep_command(
    run_config: RunConfig = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,…", help="Values of a setting, combined with all other grids; repeatable."),
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=RANGE", help="log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH, choice:A:B; repeatable."),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of samples of the random settings.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 1 … N for each point.")] = 1,
    select: Select = "test",
    name: Annotated[str, typer.Option(help="Folder of the tables; each sweep needs one of its own.")] = "sweep",
    jobs: Jobs = None,
    output_dir: OutputDir = None,
    form: Form = "markdown",
    discard_models: DiscardModels = False,
    executor: ExecutorName = "local",
    slurm: SlurmOptions = None,
    quiet: Quiet = False,
) -> None:
    """Run a sweep over settings or seeds, skip finished runs, and print a line for each, the best first."""
    from ..experiments.sweep import Sweep

    check(form, select, name)
    given = with_clients(overrides(run_config))
    sweep = Sweep(given, grid or (), random or (), samples, seeds, select)
    require_used(run_config, sweep.methods)
    what = f"{len(sweep.points)} points over {', '.join(sweep.keys)}" if sweep.keys else f"{seeds} seeds"
    place = store(output_dir)
    cluster = cluster_of(executor, slurm, place)
    play(sweep, name, f"Sweep {name}: {what}", place, cluster, jobs, discard_models, quiet, form)


def check(form: str, select: str, name: str) -> None:
    """Refuse options of a sweep that mean nothing, before anything slow."""
    from ..experiments.sweep import SELECT
    from ..results.tables import FORMATS

    require_one_of("format", form, FORMATS)
    require_one_of("select", select, SELECT)
    if "/" in name or name in (".", ".."):
        raise ConfigError("name", name, "must be the name of a folder")


def with_clients(given: dict[str, Any]) -> dict[str, Any]:
    """Return settings that say how many clients there are: all that the data name, or 10."""
    from ..core.settings import parse
    from ..data import DataSettings, default_clients
    from ..launch.plan import DEFAULT_CLIENTS

    look_here()
    return {"num-clients": default_clients(parse(DataSettings, given)) or DEFAULT_CLIENTS, **given}


def play(
    sweep: Sweep, name: str, title: str, place: Store, cluster: Cluster | None, jobs: int | None,
    discard_models: bool, quiet: bool, form: str,
) -> None:  # fmt: skip
    """Run what is not yet done of a sweep, leave its tables, and say where they are and what draws its report."""
    from ..experiments.sweep import SWEEPS

    folder = place.tables(SWEEPS, name)
    sweep.require_own(folder, name)  # before anything is run
    sweep.own(folder)  # so that the runs of a sweep that is interrupted are found by its name
    states = conduct(sweep.runs, place, cluster, jobs, discard_models, quiet)
    tables = sweep.tables(place, title)
    write(tables, folder)
    elsewhere = "" if place.is_default else f" --output-dir {shlex.quote(str(place.root))}"
    typer.echo(f"report: fedpfl report --sweep {shlex.quote(name)}{elsewhere}", err=True)
    finish(tables, states, form)
