"""``fedpfl sweep`` and ``fedpfl compare``: the same run with other settings, or other methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import ConfigError
from .common import RunConfig, complete_methods, load_app, output_dir, overrides, require_allowed, used
from .grid_options import GridOptions, with_grid_options
from .program import app

Name = Annotated[
    str, typer.Option(help="Name of the folder for the tables; by default made from methods and settings.")
]


@app.command("sweep")
@with_grid_options
def sweep_command(
    run_config: RunConfig = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,…", help="Values of a setting, combined with all other grids; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per point: 1 … N.")] = 1,
    select: Annotated[
        str,
        typer.Option(
            metavar="[test|validation]",
            help="Order rows by accuracy on test or validation samples (with validation-fraction).",
        ),
    ] = "test",
    name: Name = "",
    *,
    options: GridOptions,
) -> None:
    """Run a sweep over settings or seeds, the best run first.

    Finished runs are skipped.

    Example: fedpfl sweep --grid learning-rate=0.01,0.03,0.1 --seeds 3
    """
    tried = [*(grid or ())]
    swept = [text.removeprefix("method=") for text in tried if text.startswith("method=")]
    require_allowed(run_config, methods=[name for text in swept for name in (text, *text.split(","))], tried=tried)
    from ..api.start import sweep
    from ..launch.plan import project_settings
    from ..methods import find
    from ..study.sweep import listed

    load_app()
    points = listed(tried)
    default = {"method": "fedavg", **project_settings(Path()), **overrides(run_config)}["method"]
    methods = points.get("method") or [default]
    settings = used(run_config, sorted({find(str(name)).name for name in methods}))
    options.show(sweep, points, seeds=seeds, select=select, name=name, **settings)


@app.command("compare")
@with_grid_options
def compare_command(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD...",
            help="Two or more methods (one is enough with --vary), or the file of an earlier comparison.",
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
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds per method: 1 … N; 3 by default.")] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME:]SETTINGS",
            help="Settings of one data set, as with -c, and its name in tables; repeat it for several data sets.",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(metavar="METRIC", help="Compare, choose and test by this metric; sets metrics and choose-by."),
    ] = "",
    target: Annotated[
        float | None,
        typer.Option(metavar="VALUE", help="Add rounds, traffic and time until accuracy (or METRIC) is VALUE."),
    ] = None,
    bundle: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", help="Also write a new folder to hand over: the comparison with its files and code."
        ),
    ] = "",
    name: Name = "",
    *,
    options: GridOptions,
) -> None:
    """Run methods with several seeds and test the differences.

    With --tune, first choose settings of each method on validation samples. Finished runs are skipped.

    Example: fedpfl compare local fedavg fedper --seeds 3
    """
    settings_of = [settings for _, settings in map(_named, on or ())]
    listed_names = [name for text in names for name in text.split(",")]
    require_allowed([*(run_config or ()), *settings_of], methods=listed_names, tried=[*(tune or ()), *(vary or ())])
    from ..api.start import compare
    from ..core.references import as_named
    from ..methods import find
    from ..study.comparison import from_file
    from ..study.sweep import listed

    load_app()
    for text in listed_names:
        if (output_dir() / text / "config.toml").is_file():
            allowed = "is a run; `fedpfl report RUN RUN` and `fedpfl analyse significance RUN RUN` compare runs"
            raise ConfigError("METHOD...", text, allowed)
    methods, rest = listed_names[:1], listed_names[1:]
    if methods[0].endswith(".toml"):
        methods = from_file(Path(methods[0]).expanduser()).get("methods", [])
    methods = [*methods, *rest]
    settings = used(run_config, list(dict.fromkeys(find(as_named(name)).name for name in methods)))
    settings.pop("method", None)
    options.show(
        compare, names, tune=listed(tune or (), "tune"), vary=listed(vary or (), "vary"), target=target, seeds=seeds,
        on=[*map(_data_set, on or ())], by=by, bundle=bundle, name=name, **settings,
    )  # fmt: skip


def _named(text: str) -> tuple[str, str]:
    """Return the name of a data set, if one stands before its settings and a colon, and these."""
    name, colon, settings = text.partition(":")
    return (name.strip(), settings.strip()) if colon and "=" not in name else ("", text)


def _data_set(text: str) -> dict[str, Any]:
    name, settings = _named(text)
    return {**overrides([settings]), **({"name": name} if name else {})}
