"""``fedpfl sweep`` and ``fedpfl compare``: the same run with other settings, or other methods."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError
from . import grid_options
from .common import RunConfig, load_app, overrides, require_allowed, require_one_of, require_used
from .program import app

if TYPE_CHECKING:
    from ..results.tables import Table
    from ..study.store import PlannedRun, State, Store

# The length of a name that is made of the methods' names.
MAX_CHARACTERS = 60

Name = Annotated[
    str, typer.Option(help="Name of the folder for the tables; by default made from methods and settings.")
]


@app.command("sweep")
def sweep_command(
    run_config: RunConfig = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,…", help="Values of a setting, combined with all other grids; repeatable."),
    ] = None,
    random: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=RANGE",
            help="Draw a setting at random: log:LOW:HIGH, uniform:LOW:HIGH, int:LOW:HIGH, choice:A:B; repeatable.",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of draws of the random settings.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per point: 1 … N.")] = 1,
    select: Annotated[
        str,
        typer.Option(
            metavar="[test|validation]",
            help="Order rows by accuracy on test or validation samples (with validation-fraction).",
        ),
    ] = "test",
    name: Name = "",
    jobs: grid_options.Jobs = None,
    output_dir: grid_options.OutputDir = None,
    form: grid_options.Form = "",
    discard_models: grid_options.DiscardModels = False,
    executor: grid_options.ExecutorName = "local",
    federation: grid_options.Federation = None,
    quiet: grid_options.Quiet = False,
) -> None:
    """Run a sweep over settings or seeds, the best run first.

    Finished runs are skipped.

    Example: fedpfl sweep --grid learning-rate=0.01,0.03,0.1 --seeds 3
    """
    tried = [*(grid or ()), *(random or ())]
    swept = [text.removeprefix("method=") for text in tried if text.startswith("method=")]
    require_allowed(run_config, methods=[name for text in swept for name in (text, *text.split(","))], tried=tried)
    from ..study.sweep import SELECT, SweepPlan

    _check(form, name)
    require_one_of("select", select, SELECT)
    sweep = SweepPlan(
        _with_clients({**_of_project(), **overrides(run_config)}), grid or (), random or (), samples, seeds, select
    )
    require_used(run_config, sweep.methods)
    what = f"{len(sweep.points)} points over {', '.join(sweep.keys)}" if sweep.keys else f"{seeds} seeds"
    runner = grid_options.Runner(output_dir, executor, federation, jobs, discard_models, quiet)
    name = name or _made_name(sweep.methods, [run for run in sweep.runs if run.settings["seed"] == 1])
    _open(runner.store, name, sweep.runs)
    states = runner.run(sweep.runs)
    _finish(sweep.tables(runner.store, f"Sweep {name}: {what}"), name, runner, states, form)


def complete_methods(beginning: str) -> list[str]:
    """Return the names of methods with this prefix, for the shell's completion."""
    from ..methods import names

    return [name for name in names() if name.startswith(beginning)]


@app.command("compare")
def compare_command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD...",
            help="Two or more methods (`fedpfl methods` lists them); or the file of an earlier comparison.",
            autocompletion=complete_methods,
        ),
    ],
    run_config: RunConfig = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,…", help="Values of a setting that is tuned for each method; repeatable."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,…", help="Values of a setting, each in a row of its own (ablation); repeatable."),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds per method: 1 … N.", show_default="3")
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME:]SETTINGS",
            help="Settings of one data set, as with -c, and its name in tables; repeat it for several data sets.",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="METRIC", help="Compare, choose and test by this metric: the settings metrics, choose-by."
        ),
    ] = "",
    target: Annotated[
        float | None,
        typer.Option(metavar="VALUE", help="Also rounds, traffic and time until accuracy (or METRIC) is this: 0.9."),
    ] = None,
    name: Name = "",
    jobs: grid_options.Jobs = None,
    output_dir: grid_options.OutputDir = None,
    form: grid_options.Form = "",
    discard_models: grid_options.DiscardModels = False,
    executor: grid_options.ExecutorName = "local",
    federation: grid_options.Federation = None,
    quiet: grid_options.Quiet = False,
) -> None:
    """Run methods with several seeds and test the differences.

    With --tune, first choose settings of each method on validation samples. Finished runs are skipped.

    Example: fedpfl compare local fedavg fedper --seeds 3
    """
    file: dict[str, Any] = {}
    if names[0].endswith(".toml"):
        from ..study.comparison import from_file

        require_allowed(run_config)
        file = from_file(Path(names[0]).expanduser())
        names = [*file.get("methods", ()), *names[1:]]
    names = [name for text in names for name in text.split(",")]
    settings_of = [settings for _, settings in map(_named, on or ())]
    require_allowed([*(run_config or ()), *settings_of], methods=names, tried=[*(tune or ()), *(vary or ())])
    from ..core.custom import as_named, is_custom, short_name
    from ..core.metrics import ACCURACY, words
    from ..data import DataSettings, with_partitioner
    from ..data.settings import in_words
    from ..methods import find
    from ..study import comparison
    from ..study.measured import in_words as chosen_in_words
    from ..study.sweep import SWEEPS, listed, write_run_names

    _check(form, name)
    load_app()
    written = map(as_named, names)
    # By their own names; the settings of a user's own method name it as it was written.
    named = {find(name).name: name if is_custom("method", name) else find(name).name for name in written}
    methods = ", ".join(named)
    if len(named) < 2 and not (vary or file.get("vary")):
        raise ConfigError("METHOD...", " ".join(names), "a comparison needs two methods or more, or --vary")
    project = {} if file else _of_project("method")
    own = {key: value for key, value in overrides(run_config).items() if key != "method"}
    base = {**project, **file.get("settings", {}), **own}
    tuned = {**file.get("tune", {}), **listed(tune or (), "tune")}
    varied = {**file.get("vary", {}), **listed(vary or (), "vary")}
    seeds, target = seeds or file.get("seeds", 3), file.get("target") if target is None else target
    if by:
        asked = words(str(base.get("metrics", "")))
        base.update(
            {"choose-by": short_name(by), "metrics": ",".join(asked if by in (*asked, ACCURACY) else [*asked, by])}
        )
    data_sets = {}
    for own in map(_data_set, on) if on else file.get("on") or [{}]:
        own = dict(own)
        called = own.pop("name", "") or chosen_in_words(own)
        clients = _with_clients({**base, **own})["num-clients"]
        data_sets[called] = {**own, "num-clients": clients}
    runner = grid_options.Runner(output_dir, executor, federation, jobs, discard_models, quiet)
    require_used(run_config, [*named])
    planned = comparison.comparison(named, base, tuned, seeds, data_sets, runner.store, varied)
    name = name or _made_name(named, comparison.first_runs(planned))
    folder, first_runs = runner.store.tables(SWEEPS, name), planned.wanted()
    _open(runner.store, name, planned.planned(), first_runs)
    given = {"settings": base, "tune": tuned, "vary": varied}
    comparison.write(folder, [*named.values()], seeds, data_sets, target, given)
    states = runner.run(first_runs)
    planned.choose(final=True)
    if more := [run for run in planned.wanted() if run not in first_runs]:  # with the chosen settings
        write_run_names(folder, planned.wanted())
        states |= runner.run(more)
    title = f"{methods} on {len(data_sets)} data sets"
    if len(data_sets) == 1:
        values = {**base, **next(iter(data_sets.values()))}
        data = with_partitioner(DataSettings.of(values))
        title = f"{methods} on {data.dataset} ({in_words(data)}, {values['num-clients']} clients)"
    wanted = {run.name: states[run.name] for run in planned.wanted() if run.name in states}
    appendix = [comparison.settings_used(planned)]
    _finish(comparison.tables(planned, title, True, target), name, runner, wanted, form, appendix)


def _named(text: str) -> tuple[str, str]:
    """Return the name of a data set, if one stands before its settings and a colon, and these."""
    name, colon, settings = text.partition(":")
    return (name.strip(), settings.strip()) if colon and "=" not in name else ("", text)


def _data_set(text: str) -> dict[str, Any]:
    name, settings = _named(text)
    return {**overrides([settings]), **({"name": name} if name else {})}


def _made_name(methods: Iterable[str], first: Iterable[PlannedRun]) -> str:
    """Return a name that stays where there are more seeds, or where files or modules have changed."""
    keys = "".join(sorted(run.key for run in first))
    return f"{'-'.join(methods)[:MAX_CHARACTERS]}-{hashlib.sha256(keys.encode()).hexdigest()[:6]}"


def _open(store: Store, name: str, planned: Sequence[PlannedRun], first: Sequence[PlannedRun] | None = None) -> None:
    """Refuse a name that others have, say what is made again, and note the runs, so that they are found by the name."""
    from ..study.sweep import SWEEPS, changes, require_same_sweep, write_run_names

    folder = store.tables(SWEEPS, name)
    require_same_sweep(folder, name, planned)
    if told := changes(folder, store, planned):
        typer.echo(f"note: {told}", err=True)
    write_run_names(folder, planned if first is None else first)


def _check(form: str, name: str) -> None:
    """Refuse options that mean nothing, before anything slow."""
    from ..results.tables import FORMATS

    require_one_of("format", form or FORMATS[0], FORMATS)
    if "/" in name or name in (".", ".."):
        raise ConfigError("name", name, "must be the name of a folder")


def _of_project(*without: str) -> dict[str, Any]:
    """Return the settings of the project in this folder, and say which count."""
    from ..launch.plan import project_settings

    load_app()
    found = project_settings(Path(), *without)
    if found:
        typer.echo(
            f"note: of pyproject.toml: {', '.join(f'{key} = {value}' for key, value in found.items())}", err=True
        )
    return found


def _with_clients(given: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the number of clients: all that the data name, or 10."""
    from ..data import DataSettings, default_clients
    from ..launch.plan import DEFAULT_CLIENTS

    load_app()
    return {"num-clients": default_clients(DataSettings.of(given)) or DEFAULT_CLIENTS, **given}


def _finish(
    tables: list[Table], name: str, runner: grid_options.Runner, states: dict[str, State], form: str,
    appendix: Sequence[Table] = (),
) -> None:  # fmt: skip
    """Write tables, and print them, where they are and what makes the report of their runs.

    An appendix is only written.
    """
    from ..study.sweep import SWEEPS

    store = runner.store
    grid_options.write_tables([*tables, *appendix], store.tables(SWEEPS, name))
    option = "" if store.is_default else f" --output-dir {shlex.quote(str(store.root))}"
    typer.echo(f"report: fedpfl report --sweep {shlex.quote(name)}{option}", err=True)
    grid_options.finish(tables, states, form)
