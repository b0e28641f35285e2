"""``fedpfl sweep`` and ``fedpfl compare``: the same run with other settings, or other methods."""

from __future__ import annotations

import hashlib
import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError
from . import many
from .app import app
from .common import RunConfig, load_app, overrides, require_one_of, require_used

if TYPE_CHECKING:
    from ..experiments.sweep import SweepPlan

Select = Annotated[
    str, typer.Option(help="Order the lines by the accuracy on test or validation samples (validation-fraction).")
]

# The length of a name that is made of the methods' names.
MAX_CHARACTERS = 60


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
    name: Annotated[str, typer.Option(help="Folder of the tables, another one for each sweep.")] = "sweep",
    jobs: many.Jobs = None,
    output_dir: many.OutputDir = None,
    form: many.Form = "markdown",
    discard_models: many.DiscardModels = False,
    executor: many.ExecutorName = "local",
    slurm: many.SlurmOptions = None,
    federation: many.Federation = None,
    quiet: many.Quiet = False,
) -> None:
    """Run a sweep over settings or seeds, skip finished runs, and print a line for each, the best first."""
    from ..experiments.sweep import SweepPlan

    _check(form, select, name)
    sweep = SweepPlan(_with_clients(overrides(run_config)), grid or (), random or (), samples, seeds, select)
    require_used(run_config, sweep.methods)
    what = f"{len(sweep.points)} points over {', '.join(sweep.keys)}" if sweep.keys else f"{seeds} seeds"
    runner = many.Runner(output_dir, executor, slurm, federation, jobs, discard_models, quiet)
    _run(sweep, name, f"Sweep {name}: {what}", runner, form)


def complete_methods(beginning: str) -> list[str]:
    """Return the names of methods with this prefix, for the shell's completion."""
    from ..methods import names

    return [name for name in names() if name.startswith(beginning)]


@app.command("compare")
def compare_command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD...", help="Methods of `fedpfl methods`, two or more.", autocompletion=complete_methods
        ),
    ],
    run_config: RunConfig = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 1 … N for each method.")] = 3,
    select: Select = "test",
    name: Annotated[
        str, typer.Option(help="Folder of the tables; by default it follows from methods and settings.")
    ] = "",
    jobs: many.Jobs = None,
    output_dir: many.OutputDir = None,
    form: many.Form = "markdown",
    discard_models: many.DiscardModels = False,
    executor: many.ExecutorName = "local",
    slurm: many.SlurmOptions = None,
    federation: many.Federation = None,
    quiet: many.Quiet = False,
) -> None:
    """Run methods on the same data, skip finished runs, and print a line for each, the best first."""
    from ..core.custom import is_custom
    from ..core.settings import parse
    from ..data import DataSettings, with_partitioner
    from ..data.settings import in_words
    from ..experiments.sweep import SweepPlan
    from ..methods import find

    _check(form, select, name)
    load_app()
    # As papers write them, too: FedAvg. The names of modules and classes stay as they are.
    written = (name if is_custom("method", name) else name.lower() for name in names)
    # By their own names; the settings of a custom method name it as it was written.
    named = {find(name).name: name if is_custom("method", name) else find(name).name for name in written}
    methods = list(named)
    if len(methods) < 2:
        raise ConfigError("METHOD...", " ".join(names), "a comparison needs two methods or more")
    given = _with_clients({key: value for key, value in overrides(run_config).items() if key != "method"})
    sweep = SweepPlan(given, {"method": list(named.values())}, (), 1, seeds, select)
    require_used(run_config, sweep.methods)
    if not name:
        # More seeds of the same comparison keep its name.
        first = "".join(sorted(run.name for run in sweep.runs[: len(sweep.points)]))
        name = f"{'-'.join(methods)[:MAX_CHARACTERS]}-{hashlib.sha256(first.encode()).hexdigest()[:6]}"
    data = with_partitioner(parse(DataSettings, given))
    title = f"{', '.join(methods)} on {data.dataset} ({in_words(data)}, {given['num-clients']} clients)"
    runner = many.Runner(output_dir, executor, slurm, federation, jobs, discard_models, quiet)
    _run(sweep, name, title, runner, form)


def _check(form: str, select: str, name: str) -> None:
    """Raise ``ConfigError`` for a wrong option, before anything slow."""
    from ..experiments.sweep import SELECT
    from ..results.tables import FORMATS

    require_one_of("format", form, FORMATS)
    require_one_of("select", select, SELECT)
    if "/" in name or name in (".", ".."):
        raise ConfigError("name", name, "must be the name of a folder")


def _with_clients(given: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the number of clients: all that the data name, or 10."""
    from ..core.settings import parse
    from ..data import DataSettings, default_clients
    from ..launch.plan import DEFAULT_CLIENTS

    load_app()
    return {"num-clients": default_clients(parse(DataSettings, given)) or DEFAULT_CLIENTS, **given}


def _run(sweep: SweepPlan, name: str, title: str, runner: many.Runner, form: str) -> None:
    """Run what is not finished of a sweep, write its tables, and print where they are and what makes its report."""
    from ..experiments.sweep import SWEEPS

    store = runner.store
    folder = store.tables(SWEEPS, name)
    sweep.require_same_sweep(folder, name)  # before anything is run
    sweep.write_run_names(folder)  # so that the runs of a sweep that is interrupted are found by its name
    states = runner.run(sweep.runs)
    tables = sweep.tables(store, title)
    many.write_tables(tables, folder)
    option = "" if store.is_default else f" --output-dir {shlex.quote(str(store.root))}"
    typer.echo(f"report: fedpfl report --sweep {shlex.quote(name)}{option}", err=True)
    many.finish(tables, states, form)
