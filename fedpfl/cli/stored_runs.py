"""``fedpfl show``, ``export`` and ``personalise``: what the folders of runs hold."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import (
    AsJson,
    RunConfig,
    RunName,
    complete_runs,
    ending_signals,
    outcome_table,
    output_dir,
    prepare,
    print_drawn,
    print_json,
    print_tables,
    require_one_of,
    run_folder,
    stdout,
)
from .grid_options import Form, store
from .program import app

if TYPE_CHECKING:
    from ..results.run_folder import RunFolder
    from ..study.run_store import Store

ROUNDS_SHOWN, CLIENTS_SHOWN = 20, 200
WRITTEN = {"markdown": "table.md", "csv": "table*.csv", "latex": "table.tex"}


@app.command("show")
def show(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Name or folder of a run, or name of a sweep or experiment. Without it, all are listed.",
            autocompletion=complete_runs,
        ),
    ] = None,
    experiments: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            help="Folder of sweeps and experiments; by default ~/.fedpfl/experiments.",
        ),
    ] = None,
    form: Form = "",
) -> None:
    """Show a run, a sweep or an experiment, or list them all.

    Example: fedpfl show RUN
    """
    from ..results.tables import FORMATS
    from ..study.saved_grid import saved_grids

    require_one_of("format", form or FORMATS[0], FORMATS)
    grids = store(experiments)
    if run is None:
        _list_runs(output_dir())
        _list_tables(grids)
    elif tables := _tables_of(run, grids):
        for table in tables:
            _print_written(table, form)
        if run in saved_grids(grids):
            typer.echo(f"report: fedpfl report --sweep {run}", err=True)
    else:
        of_grid = grids.root / "runs" / run
        _show_run(run_folder(str(of_grid) if experiments and of_grid.is_dir() else run))


def _print_written(markdown: Path, form: str) -> None:
    """Print stored tables in a format; without one draw them on a terminal, and print Markdown elsewhere."""
    from ..core.errors import DamagedFile
    from ..results.tables import FORMATS, read_markdown

    if not form and sys.stdout.isatty():
        text = markdown.read_text(encoding="utf-8")
        try:
            tables = read_markdown(text)
        except ValueError as error:
            raise DamagedFile(markdown, str(error)) from error
        typer.echo(f"{markdown}: {text.partition(chr(10))[0]}")
        print_tables(tables, form)
        return
    files = markdown.parent.glob(WRITTEN[form or FORMATS[0]])
    for path in sorted(files, key=lambda path: (len(path.name), path.name)):
        head = "" if form in FORMATS[1:] else f"{path}:\n\n"
        typer.echo(f"{head}{path.read_text(encoding='utf-8').rstrip()}\n")


def _tables_of(name: str, grids: Store) -> list[Path]:
    """Return the written tables of a sweep or an experiment; none if there is no such thing, or a run of this name."""
    from ..study.saved_grid import SWEEPS

    if "/" in name or name.startswith("."):
        return []
    if (output_dir() / name / "config.toml").is_file():
        return []
    sweep = grids.tables(SWEEPS, name) / "table.md"
    return [sweep] if sweep.is_file() else sorted(grids.tables(name).glob("*/table.md"))


def _list_tables(grids: Store) -> None:
    """List sweeps and experiments that have written anything."""
    from ..results.tables import Table
    from ..study.saved_grid import SWEEPS, saved_grids, saved_runs

    rows: list[list[str]] = []
    for name in saved_grids(grids):
        folders = saved_runs(grids, name)
        done = sum(folder.finished for folder in folders)
        written = grids.tables(SWEEPS, name) / "table.md"
        rows.append([name, f"{done}/{len(folders)}", str(written) if written.is_file() else "–"])
    for path in sorted(grids.tables().glob("*/*/table.md")):
        if path.parent.parent.name != SWEEPS:
            rows.append([f"{path.parent.parent.name}, scale {path.parent.name}", "–", str(path)])
    if rows:
        columns = ["sweep or experiment", "runs finished", "tables"]
        print_drawn(Table(str(grids.root), columns, rows, optional=["tables"]), "a wider terminal")


@app.command("export")
def export(
    run: RunName,
    client: Annotated[
        list[str] | None, typer.Option("--client", help="Only this client, by name or number; repeatable.")
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="[state-dict|torchscript|onnx]",
            help="state-dict: weights. torchscript, onnx: programs (onnx needs the extra fedpfl[onnx]).",
        ),
    ] = "state-dict",
) -> None:
    """Write each client's personalised model, as it was tested.

    The clients' state must be on this machine. RUN/best is the round that is best on the validation samples.

    Example: fedpfl export RUN --client 3 --format onnx
    """
    from ..results.export import FORMS, export_personal
    from ..results.resumed_run import ResumedRun
    from ..results.run_folder import GLOBAL

    require_one_of("format", form, FORMS)
    folder = run_folder(run)
    for change in ResumedRun(folder.path).changes():
        typer.echo(f"{folder.path.name}: {change}", err=True)
    written = export_personal(folder, client, form)
    if written:
        typer.echo(f"{len(written)} model{'s' * (len(written) != 1)} in {folder.path / 'personal'}")
    else:
        typer.echo(f"all clients have the same model: {folder.path / GLOBAL}")


Mode = Annotated[
    str,
    typer.Option(
        metavar="[local-train|fine-tune|ensemble]",
        help=(
            "What new clients do. local-train: train their personal part. fine-tune: train everything. ensemble: "
            "only test the mean output of all clients' models, from their state on this machine."
        ),
    ),
]
Workers = Annotated[int | None, typer.Option(min=0, help="As in `fedpfl run`.")]


@app.command("personalise")
def personalise(
    run: RunName,
    mode: Mode = "local-train",
    run_config: RunConfig = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Make models for clients that missed a run or its end.

    A simulation holds clients out with the setting new-clients. The run's own arrays do not change.

    Example: fedpfl personalise RUN --mode fine-tune
    """
    from ..results.new_clients import ENSEMBLE, MODES, try_new_clients

    require_one_of("mode", mode, MODES)
    folder = run_folder(run)
    folder.described()  # a run that found no clients has nothing to give
    if mode == ENSEMBLE:
        tell_personalised(folder, try_new_clients(folder, mode), as_json)
        return
    from ..launch import simulation
    from ..launch.progress import Display

    plan = prepare(None, [*(run_config or ()), f'personalise="{mode}"'], None, str(folder.path))
    with ending_signals():
        simulation.run(plan, Display(plan.config.run.num_server_rounds, quiet=True), workers)
    tell_personalised(folder, personalised(folder), as_json)


def personalised(folder: RunFolder) -> dict[str, Any]:
    """Return the outcome of the last ``fedpfl personalise``, as its ``--json`` prints it."""
    from ..results.resumed_run import ResumedRun

    line = ResumedRun(folder.path).personalised()
    new = line.get("new", {})
    printed: dict[str, Any] = {"mode": line["mode"], **{key: new.get(key) for key in ("accuracy", "weighted")}}
    missed = line.get("missed", {}).get("each", {})
    return {**printed, "each": new.get("each", {}), "missed": missed, "failed": line["failed"]}


def tell_personalised(folder: RunFolder, result: Mapping[str, Any], as_json: bool = False) -> None:
    """Print :func:`personalised` of a run."""
    from ..core.metrics import score_in_words

    if as_json:
        print_json(result)
        return
    score = partial(score_in_words, loss=folder.config()["loss"])
    for client, accuracy in result["each"].items():
        typer.echo(f"client {client}: {score(accuracy)}")
    for client, accuracy in result.get("missed", {}).items():
        typer.echo(f"client {client}, which missed the end: {score(accuracy)}")
    for client, reason in result.get("failed", {}).items():
        typer.echo(f"client {client} failed: {reason}", err=True)
    if count := len(result["each"]):
        typer.echo(f"{result['mode']}, {count} new client{'s' * (count > 1)}: mean {score(result['accuracy'])}, "
                   f"of all their test samples {score(result['weighted'])}")  # fmt: skip


def _list_runs(root: Path) -> None:
    from ..results.tables import Cell, Table
    from ..study.live.run_data import list_runs

    rows: list[list[Cell]] = []
    for run in reversed(list_runs(root)):
        if run["state"] == "unreadable":  # the others are shown
            typer.echo(f"note: {run['error']}", err=True)
            continue
        done = f"{run['round']}/{run.get('num-server-rounds')}"
        rows.append([*(str(run.get(key)) for key in ("name", "method", "dataset")), done, run["score"], run["state"]])
    if not rows:
        typer.echo(f"no runs in {root}")
        return
    heads = ["run", "method", "data", "rounds", "personalised", "state"]
    print_drawn(Table(str(root), heads, rows, optional=("data", "method", "rounds")), "a wider terminal")


def _show_run(folder: RunFolder) -> None:
    from rich.columns import Columns

    from ..core.metrics import score_in_words
    from ..core.settings import parse
    from ..data import DataSettings
    from ..data.settings import in_words
    from ..study.analysis.repetitions import rounds_table

    values, lines = folder.config(), folder.history().lines
    score = partial(score_in_words, loss=values["loss"])
    console = stdout()
    state = "finished" if folder.finished else "not finished"
    console.print(folder.path.name, style="bold", end="")
    console.print(f" ({state}), {folder.path}")
    console.print(
        f"{values['method']} on {values['dataset']} ({in_words(parse(DataSettings, values))}, "
        f"{values['num-clients'] or 'as many as nodes'} clients), model {folder.model_name}, seed {values['seed']}, "
        f"local epochs {values['local-epochs']}, batch {values['batch-size']}, η = {values['learning-rate']}"
    )
    console.print(outcome_table(folder))
    if not lines:
        return
    step = -(-len(lines) // ROUNDS_SHOWN)
    shown = [line for number, line in enumerate(lines) if number % step == 0 or number == len(lines) - 1]
    print_drawn(rounds_table("rounds", folder, shown), "fedpfl report")
    if tests := folder.history().tests():
        last = max(tests)
        each = list(tests[last].items())
        some_of = each[:: max(1, -(-len(each) // CLIENTS_SHOWN))]
        some = "" if len(some_of) == len(each) else f", {len(some_of)} of {len(each):,}, evenly spaced"
        console.print(f"clients, round {last}{some}", style="bold")
        names = dict(enumerate(folder.task().get("client_names", ())))
        shown_names = [f"{names.get(int(client), client)}: {score(accuracy)}" for client, accuracy in some_of]
        console.print(Columns(shown_names, padding=(0, 2)))
