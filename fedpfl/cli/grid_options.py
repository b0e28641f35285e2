"""What the commands that start many runs have in common: their options, and how they show what the runs gave."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ..core.errors import ConfigError
from .common import ending_signals, load_app, print_tables, require_one_of

if TYPE_CHECKING:
    from ..api.comparisons import Results
    from ..results.run_folder import RunFolder
    from ..study.run_store import Store

OutputDir = Annotated[Path | None, typer.Option(help="Folder of all runs; by default ~/.fedpfl/experiments.")]
Jobs = Annotated[
    int,
    typer.Option(
        min=1,
        help=("Number of parallel runs, which share the cores (default 1). With --executor flower: always 1."),
    ),
]
ExecutorName = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="[local|flower]",
        help="local: on this machine. flower: one run at a time on the devices of --federation.",
    ),
]
Federation = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="With --executor flower: the SuperLink, as Flower's config.toml names it."),
]
DiscardModels = Annotated[
    bool, typer.Option("--discard-models", help="Delete the models and the clients' state of each finished run.")
]
Form = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="[markdown|csv|latex]",
        show_default=False,
        help="Default: a drawn table on a terminal, otherwise markdown.",
    ),
]
Sweep = Annotated[
    str,
    typer.Option(metavar="NAME", help="The finished runs of a sweep or comparison; `fedpfl show` lists the names."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def store(output_dir: Path | None) -> Store:
    """Return the store of runs in a folder."""
    from ..study.run_store import DEFAULT_ROOT, Store

    return Store(output_dir or Path(DEFAULT_ROOT))


def finished_of(sweep: str, output_dir: Path | None) -> list[RunFolder]:
    """Return the runs of a sweep that have finished, and say so where some have not."""
    from ..study.saved_grid import saved_runs

    load_app()  # runs may be of a method or model of this folder
    runs = saved_runs(store(output_dir), sweep)
    done = [folder for folder in runs if folder.finished]
    if not done:
        raise ConfigError("sweep", sweep, "none of its runs has finished")
    if len(done) < len(runs):
        typer.echo(f"note: {len(done)} of {len(runs)} runs of {sweep} have finished; the others are left out", err=True)
    return done


@dataclass
class GridOptions:
    """The options of every command that starts many runs."""

    jobs: Jobs = 1
    output_dir: OutputDir = None
    form: Form = ""
    discard_models: DiscardModels = False
    executor: ExecutorName = "local"
    federation: Federation = None
    quiet: Quiet = False

    def show(self, function: Callable[..., Results], *arguments: Any, **named: Any) -> None:
        """Call a function that makes runs; write where its tables are and print them.

        Ctrl-C ends the program with exit code 130, and a run that did not finish with 1.
        """
        from ..api.comparisons import RunsFailed
        from ..results.tables import FORMATS
        from ..study.saved_grid import SWEEPS

        require_one_of("format", self.form or FORMATS[0], FORMATS)
        options = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "form"}
        try:
            with ending_signals():
                result = function(*arguments, **named, **options)
        except RunsFailed as error:
            result = error.result
        except KeyboardInterrupt as interruption:
            typer.echo(str(interruption) or "interrupted", err=True)
            raise typer.Exit(130) from None
        if result.folder:
            typer.echo(f"wrote {result.folder / 'table.md'}", err=True)
            if result.folder.parent.name == SWEEPS:
                runs = store(self.output_dir)
                option = "" if runs.is_default else f" --output-dir {shlex.quote(str(runs.root))}"
                typer.echo(f"report: fedpfl report --sweep {shlex.quote(result.folder.name)}{option}", err=True)
        print_tables(result.tables, self.form)
        if result.failed:
            count = len(result.failed) + len(result.runs)
            names = ", ".join(result.failed)
            typer.echo(f"error: {len(result.failed)} of {count} runs did not finish: {names}", err=True)
            raise typer.Exit(1)


def with_grid_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, whose last argument is ``options``, the options of all that start many runs."""

    @wraps(command)
    def call(**values: Any) -> None:
        options = GridOptions(**{field.name: values.pop(field.name) for field in fields(GridOptions)})
        command(**values, options=options)

    hints = get_type_hints(GridOptions, include_extras=True)
    parameters = [param for name, param in inspect.signature(command).parameters.items() if name != "options"]
    more = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(GridOptions)
    ]
    types = get_type_hints(command, include_extras=True)
    call.__signature__ = inspect.Signature([  # type: ignore[attr-defined]
        *(param.replace(annotation=types[param.name], kind=inspect.Parameter.KEYWORD_ONLY) for param in parameters),
        *more,
    ])  # fmt: skip
    call.__annotations__ = {**{param.name: types[param.name] for param in parameters}, **hints, "return": None}
    del call.__wrapped__  # type: ignore[attr-defined]
    return call
