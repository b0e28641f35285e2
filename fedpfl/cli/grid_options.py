"""What the commands that start many runs have in common: their options, the runs, and the tables."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError
from .common import app_settings, ending_signals, load_app, require_one_of
from .printing import print_tables

if TYPE_CHECKING:
    from ..results.run_folder import RunFolder
    from ..results.tables import Table
    from ..study.bench import SuperLinkExecutor
    from ..study.store import PlannedRun, State, Store

OutputDir = Annotated[Path | None, typer.Option(help="Folder of all runs; by default ~/.fedpfl/experiments.")]
Jobs = Annotated[
    int | None,
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
    from ..study.store import DEFAULT_ROOT, Store

    return Store(output_dir or Path(DEFAULT_ROOT))


def finished_of(sweep: str, output_dir: Path | None) -> list[RunFolder]:
    """Return the runs of a sweep that have finished, and say so where some have not."""
    from ..study.sweep import sweep_runs

    load_app()  # runs may be of a method or model of this folder
    found = sweep_runs(store(output_dir), sweep)
    done = [folder for folder in found if folder.finished]
    if not done:
        raise ConfigError("sweep", sweep, "none of its runs has finished")
    if len(done) < len(found):
        typer.echo(
            f"note: {len(done)} of {len(found)} runs of {sweep} have finished; the others are left out", err=True
        )
    return done


class Runner:
    """Runs many runs as a command's options say."""

    def __init__(
        self, output_dir: Path | None, executor: str, federation: str | None, jobs: int | None,
        discard_models: bool, quiet: bool,
    ) -> None:  # fmt: skip
        self.store = store(output_dir)
        self._elsewhere = _elsewhere(executor, federation, jobs)
        self._jobs, self._discard_models, self._quiet = jobs, discard_models, quiet

    def run(self, runs: Iterable[PlannedRun]) -> dict[str, State]:
        """Run what is not finished, with progress on standard error; Ctrl-C ends the program with exit code 130."""
        from ..launch.progress import grid_display
        from ..study.bench import POLL_SECONDS
        from ..study.grid import Grid

        elsewhere = self._elsewhere
        grid = Grid(runs, self.store, elsewhere, POLL_SECONDS if elsewhere else None)
        try:
            with ending_signals(), grid_display(self._quiet) as shown:
                if elsewhere:
                    elsewhere.require(grid.runs)
                jobs = self._jobs or (elsewhere.side_by_side if elsewhere else 1)
                return grid.run(shown, jobs, self._discard_models)
        except KeyboardInterrupt:
            message = "interrupted; the same command continues from here"
            if elsewhere and (active := elsewhere.active()):
                message = (
                    f"interrupted; {len(active)} {elsewhere.stay}: the same command waits for them again, "
                    f"and this ends them: {elsewhere.end} {' '.join(active)}"
                )
            typer.echo(message, err=True)
            raise typer.Exit(130) from None


def _elsewhere(executor: str, federation: str | None, jobs: int | None) -> SuperLinkExecutor | None:
    """Return the testbed that takes the runs; None for this machine."""
    require_one_of("executor", executor, ("local", "flower"))
    if executor == "local":
        if federation:
            raise ConfigError("federation", federation, "does nothing without --executor flower")
        return None
    from ..study.bench import SuperLinkExecutor

    if not federation:
        raise ConfigError("federation", "", "names the SuperLink of --executor flower in Flower's config.toml")
    if jobs not in (None, 1):
        raise ConfigError("jobs", jobs, "must be 1 with --executor flower: a testbed has its devices once")
    return SuperLinkExecutor(federation, None if app_settings(Path()) is None else Path())


def write_tables(tables: list[Table], folder: Path) -> None:
    """Write tables as ``table.md``, ``table.tex``, ``table.csv`` and, if there are more, ``table-2.csv`` …."""
    from ..core.files import private_folder, write_atomically

    private_folder(folder)
    head = f"Made on {time.strftime('%Y-%m-%d')}.\n\n"
    write_atomically(folder / "table.md", (head + "\n".join(table.markdown() for table in tables)).encode())
    write_atomically(folder / "table.tex", "\n".join(table.latex() for table in tables).encode())
    names = ["table.csv", *(f"table-{number}.csv" for number in range(2, len(tables) + 1))]
    for file, table in zip(names, tables, strict=False):
        write_atomically(folder / file, table.csv().encode())
    for old in {*folder.glob("table*.csv")} - {folder / file for file in names[: len(tables)]}:
        old.unlink()
    typer.echo(f"wrote {folder / 'table.md'}", err=True)


def finish(tables: list[Table], states: dict[str, State], form: str = "") -> None:
    """Print tables, and leave the program with exit code 1 if a run is not finished."""
    from ..study.store import State

    print_tables(tables, form)
    if missing := [name for name, state in states.items() if state is not State.FINISHED]:
        typer.echo(f"error: {len(missing)} of {len(states)} runs did not finish: {', '.join(missing)}", err=True)
        raise typer.Exit(1)
