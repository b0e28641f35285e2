"""The folder of a grid's tables, and the names by which its runs are found again.

::

    TABLES/runs.json         the runs by name: the hash of each one's settings alone, its row and column
    TABLES/table.md          all tables, also as table.tex, and table.csv, table-2.csv …
    TABLES/comparison.toml   of a comparison: `fedpfl compare FILE` makes it again
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..core.checksummed_files import read_json
from ..core.errors import ConfigError, DamagedFile
from ..core.files import private_folder, write_atomically
from ..results.identity import changed
from ..results.run_folder import RunFolder
from ..results.tables import Table
from .grid import Grid
from .run_store import PlannedRun, State, Store, have_changed

SWEEPS = "sweeps"  # the folder of the tables of sweeps and comparisons
RUNS = "runs.json"
# The length of a name that is made of the methods' names.
MAX_CHARACTERS = 60
# The length of a name that is given.
MAX_NAME = 100


class SavedRun(NamedTuple):
    """A run of a grid, as the folder of its tables names it."""

    name: str
    key: str = ""
    row: str = ""
    column: str = ""


class SavedGrid:
    """The folder of the tables of a sweep or a comparison, by its name."""

    def __init__(self, store: Store, name: str) -> None:
        if (
            not isinstance(name, str)
            or {"/", "\0"} & {*name}
            or name in ("", ".", "..")
            or len(name.encode()) > MAX_NAME
        ):
            raise ConfigError("name", name, f"must be a folder's name, without /, at most {MAX_NAME} characters")
        self.name, self.path, self._store = name, store.tables(SWEEPS, name), store

    def open(self, grid: Grid) -> str:
        """Refuse a folder with tables of other settings, and note the runs, so that they are found by the name.

        Returns
        -------
        str
            What has changed since the runs of an earlier time were made that have these settings, which are made again;
            empty if nothing has.
        """
        is_there = (self.path / RUNS).is_file()
        if (self.path / "table.md").is_file() and not is_there:
            allowed = f"{self.path} has tables, but no list of their runs; give another name"
            raise ConfigError("name", self.name, allowed)
        runs, before = grid.planned(), self.runs() if is_there else []
        if (self.path / "table.md").is_file() and {run.key for run in before} - {run.key for run in runs}:
            raise ConfigError("name", self.name, f"{self.path} has the tables of another sweep; give another name")
        told = self._changes(before, runs)
        self.note(grid)
        return told

    def _changes(self, before: Sequence[SavedRun], runs: Iterable[PlannedRun]) -> str:
        names, changes, again = {run.key: run.name for run in before}, dict[str, None](), 0
        for run in runs:
            earlier = self._store.of_name(names.get(run.key, run.name))
            if not earlier.resumable or self._store.state(run) is State.FINISHED:
                continue
            task = earlier.task()
            of_run = changed(task.get("written_by", {}), run.identity)
            if task.get("data") != run.identity["files"].get("dataset", task.get("data")):
                of_run.append("what the dataset gives")
            if of_run or earlier.path.name != run.name:
                again += 1
                changes.update(dict.fromkeys(of_run))
        return f"{have_changed([*changes])} since {again} of these runs were made: they are made again" if again else ""

    def note(self, grid: Grid) -> None:
        """Write which runs the tables need, each with its names in them."""
        private_folder(self.path)
        names = {folder.path.name: (folder.row, folder.column) for folder in grid.folders()} if grid.is_named else {}
        runs = {run.name: [run.key, *names.get(run.name, ("", ""))] for run in grid.wanted()}
        write_atomically(self.path / RUNS, json.dumps(runs, indent=1).encode())

    def runs(self) -> list[SavedRun]:
        """Return the runs whose tables lie here, in their order."""
        try:
            return [SavedRun(name, *map(str, values)) for name, values in read_json(self.path / RUNS).items()]
        except TypeError as error:
            raise DamagedFile(self.path / RUNS) from error


def saved_grids(store: Store) -> list[str]:
    """Return the names of the sweeps and comparisons of which a store knows the runs."""
    return sorted(path.parent.name for path in store.tables(SWEEPS).glob(f"*/{RUNS}"))


def saved_runs(store: Store, name: str) -> list[RunFolder]:
    """Return the folders of the runs of a sweep or comparison, which need not exist yet, with their names in it."""
    if name not in (names := saved_grids(store)):
        allowed = f"there is no such sweep in {store.root}; there are: {', '.join(names) or 'none'}"
        raise ConfigError("sweep", name, allowed)
    return [RunFolder(store.root / "runs" / run.name, run.row, run.column) for run in SavedGrid(store, name).runs()]


def made_name(methods: Iterable[str], grid: Grid) -> str:
    """Return a name that stays where there are more seeds, or where files or modules have changed."""
    keys = "".join(sorted(run.key for run in grid.first_runs()))
    return f"{'-'.join(methods)[:MAX_CHARACTERS]}-{hashlib.sha256(keys.encode()).hexdigest()[:6]}"


def write_tables(tables: Sequence[Table], folder: Path) -> None:
    """Write tables as ``table.md``, ``table.tex``, ``table.csv`` and, if there are more, ``table-2.csv`` …."""
    private_folder(folder)
    head = f"Made on {time.strftime('%Y-%m-%d')}.\n\n"
    write_atomically(folder / "table.md", (head + "\n".join(table.markdown() for table in tables)).encode())
    write_atomically(folder / "table.tex", "\n".join(table.latex() for table in tables).encode())
    names = ["table.csv", *(f"table-{number}.csv" for number in range(2, len(tables) + 1))]
    for file, table in zip(names, tables, strict=False):
        write_atomically(folder / file, table.csv().encode())
    for old in {*folder.glob("table*.csv")} - {folder / file for file in names[: len(tables)]}:
        old.unlink()
