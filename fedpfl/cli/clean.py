"""``fedpfl clean``: shows what runs take on the disk, and frees it where that is asked for."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ..core.errors import ConfigError, FedpflError, StateError
from .common import AsJson, app_settings, complete_runs, output_dir, print_json, stdout
from .program import app

if TYPE_CHECKING:
    from ..results.run_folder import RunFolder

DAY = 86400
# What lies in the folder of a run's state, and of nothing else in state-dir.
_PARTS_OF_STATE = ("client-[0-9]*", "server", "number-*")
_LEFT = ".removed"  # ends the name of a run's folder while it is removed


class Space(NamedTuple):
    """What a run, or a state that belongs to none, takes on the disk."""

    run: str  # its name; a device's state of a run on another machine has its path here; empty: a state of no run
    finished: bool
    folder: int  # bytes of the run's folder
    state: int  # and of the clients' arrays in state-dir
    paths: tuple[Path, ...]  # what would be removed
    why_kept: str = ""  # nothing of it is removed


@app.command("clean")
def clean(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Names of runs in output-dir; on a device, folders of clients' arrays and models.",
            autocompletion=complete_runs,
        ),
    ] = None,
    state_only: Annotated[
        bool,
        typer.Option("--state", help="Only checkpoints and clients' arrays: without them no --resume and no export."),
    ] = False,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="Clients' arrays of runs that are neither in output-dir nor in a sweep.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Remove what is listed. Without it, nothing is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what runs take on the disk; with --remove, free it.

    Example: fedpfl clean OLD-1 --state --remove
    """
    spaces = [*_taken(output_dir(), _state_dir(), state_only)]
    wanted = {str(Path(run).expanduser().absolute()) if os.sep in run else run for run in runs or ()}
    if unknown := wanted - {one.run for one in spaces}:
        raise ConfigError("run", sorted(unknown)[0], f"there is no such run in {output_dir()}")
    named = [one for one in spaces if one.run in wanted or (orphans and not one.run)]
    if remove and not named:
        raise ConfigError("remove", "true", "needs names of runs, or --orphans: nothing is removed unasked")
    shown = named or spaces
    free = [one for one in shown if not one.why_kept]
    size = sum(_size(path) for one in free for path in one.paths)
    if as_json:
        print_json([{**one._asdict(), "paths": [*map(str, one.paths)]} for one in shown])
    else:
        _print(shown, size)
    if not remove:
        if named and not as_json:
            typer.echo("nothing was removed; --remove removes it", err=True)
        return
    for one in free:
        _remove(one, output_dir())
    for one in shown:
        if one.why_kept:
            typer.echo(f"kept: {one.run or one.paths[0].name}: {one.why_kept}", err=True)
    typer.echo(f"removed: {size / 1e6:,.1f} MB", err=as_json)


def _print(shown: list[Space], size: int) -> None:
    from rich.table import Table

    table = Table("run", "finished", "folder, MB", "clients' arrays, MB", "note")
    for one in sorted(shown, key=lambda one: one.folder + one.state, reverse=True):
        name = one.run or f"(no run here) {one.paths[0].name}"
        sizes = (f"{number / 1e6:,.1f}" for number in (one.folder, one.state))
        finished = "yes" if one.finished else "no" if one.run and os.sep not in one.run else "–"
        table.add_row(name, finished, *sizes, one.why_kept)
    stdout().print(table)
    typer.echo(f"can be removed: {size / 1e6:,.1f} MB")


def _taken(root: Path, states: Path, state_only: bool) -> Iterator[Space]:
    """Yield what each run takes, and each state of no run; a state that several folders name is kept."""
    from ..client.state import run_state
    from ..results.run_folder import RunFolder
    from ..study.run_store import DEFAULT_ROOT

    of_grids = Path(DEFAULT_ROOT).expanduser() / "runs"
    removed = sorted(root.glob(f".*{_LEFT}"))
    here = [RunFolder(path.parent) for path in sorted(root.glob("*/config.toml")) if path.parent not in removed]
    keys = {folder.path: _key(folder, states) for folder in here}
    used = Counter([*keys.values(), *(_key(RunFolder(path.parent), states) for path in of_grids.glob("*/config.toml"))])
    for folder in here:
        key = keys[folder.path]
        shared = bool(key) and used[key] > 1
        state = [run_state(states, key)] if key and not shared and run_state(states, key).is_dir() else []
        parts = (folder.path / "checkpoint",) if state_only else (folder.path,)
        obstacle = "a copy of its folder has the same clients' arrays" if shared else _in_use(folder)
        obstacle = obstacle if key else "its task.json cannot be read"
        yield Space(
            folder.path.name, folder.finished, _size(folder.path), sum(map(_size, state)),
            (*(path for path in parts if path.exists()), *state), obstacle,
        )  # fmt: skip
    for left in removed:
        yield Space(left.name[1 : -len(_LEFT)], False, _size(left), 0, (left,))
    if not all(keys.values()):  # whose arrays they are is not known
        return
    for path in sorted(states.iterdir()) if states.is_dir() else ():
        if path.name in used or not any(any(path.glob(part)) for part in _PARTS_OF_STATE):
            continue
        # A device's, with a secret, goes by its name alone: whether its run on another machine goes on is not known.
        run = str(path.absolute()) if any(path.glob("client-*/secret")) else ""
        obstacle = "its models would go, too: leave out --state" if run and state_only else _recent(path)
        yield Space(run, False, 0, _size(path), (path,), obstacle)


def _recent(state: Path) -> str:
    """Return why a state of no run here may not be removed; empty if it may. A round writes into clients' folders."""
    written = max((part.stat().st_mtime for part in (state, *state.glob("client-*"))), default=0.0)
    return "written within a day: its run may go on" if time.time() - written < DAY else ""


def _key(folder: RunFolder, states: Path) -> str:
    """Return the key of a run's state; empty if it is not known."""
    from ..client.state import run_state

    try:
        return run_state(states, str(folder.task()["state_key"])).name  # somebody else may have written the file
    except (FedpflError, TypeError, ValueError, AttributeError):
        return ""


def _in_use(folder: RunFolder) -> str:
    """Return why nothing of a run may be removed now; empty if it may."""
    if not (folder.path / ".lock").is_file():
        return ""
    try:
        with folder.exclusive():
            return ""
    except StateError:
        return "it is running"
    except OSError as error:
        return f"its lock cannot be opened ({error.strerror})"


def _remove(one: Space, root: Path) -> None:
    """Remove what a run or a state takes, unless somebody has begun to use it since it was listed."""
    from ..results.run_folder import RunFolder

    run = root / one.run
    if not one.run or not (run / "config.toml").is_file():
        for path in one.paths:
            if path.parent == root or not _recent(path):  # the first is what an interrupted removal left
                shutil.rmtree(path)
        return
    with RunFolder(run).exclusive():
        for path in reversed(one.paths):
            if path != run:
                shutil.rmtree(path)
                continue
            # What an interrupted removal leaves has another name, is found again, and is not taken for a run.
            left = run.with_name(f".{run.name}{_LEFT}")
            shutil.rmtree(left, ignore_errors=True)
            try:
                run.rename(left)
                (left / "config.toml").unlink()
                shutil.rmtree(left)
            finally:  # Ctrl-C ends the command, and not the removal in the middle
                shutil.rmtree(left, ignore_errors=True)


def _size(path: Path) -> int:
    """Return the bytes of the files in a folder; links are not followed, and what goes meanwhile does not count."""
    total, folders = 0, [path]
    while folders:
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                    continue
                with suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def _state_dir() -> Path:
    from ..setup.config import RunSettings

    return Path(str((app_settings(Path()) or {}).get("state-dir", RunSettings.state_dir))).expanduser()
