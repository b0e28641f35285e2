"""A grid: cells of a table, the runs that fill them, and what these have recorded.

A sweep, a comparison and a paper's table or figure are grids of which only the cells differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..core.errors import ConfigError, printable
from ..core.metrics import ACCURACY, CLASSES, is_share
from ..core.settings import by_key, typed
from ..methods import find
from ..results.run_folder import RunFolder
from ..results.tables import Spread
from ..setup.config import RunSettings
from . import run_numbers
from .run_store import PlannedRun, State, Store, plan, unique

GENERATED = "{generated}"

Place = tuple[str, str]  # row and column
Choice = Mapping[str, Any]  # settings that are chosen


@dataclass(frozen=True)
class Cell:
    """One place in a grid.

    ``settings`` are those of its runs, without the seed and defaults. ``clients`` are those over which personalised
    accuracies are averaged; empty: all. ``generate`` is the script, with its arguments, that makes the cell's data.
    ``choices`` are settings one of which is chosen on validation samples; empty: nothing is chosen. ``metrics`` are
    measured of its runs.
    """

    row: str
    column: str
    settings: Mapping[str, Any]
    clients: tuple[int, ...] = ()
    generate: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    metrics: frozenset[str] = frozenset()

    @property
    def method(self) -> str:
        """The name of its method."""
        return method_of(self.settings)

    def plan(self, seed: int, store: Store, choice: Choice | None = None) -> PlannedRun:
        """Check a run of the cell, with chosen settings, and name it."""
        settings, generate = {**self.settings, **(choice or {})}, self.generate
        if generate:
            generate = (*generate, "--seed", str(seed))
            folder = str(store.generated(generate))
            settings = {
                key: value.replace(GENERATED, folder) if isinstance(value, str) else value
                for key, value in settings.items()
            }
        run = plan(settings, seed, self.metrics, generate)
        if wrong := [client for client in self.clients if not 0 <= client < run.settings["num-clients"]]:
            allowed = f"columns.{self.column}: must be from 0 to {run.settings['num-clients'] - 1}, a client of the run"
            raise ConfigError("clients", wrong[0], allowed)
        return run


class Grid:
    """Cells, each run with the seeds 1 … ``seeds``, and what their runs in ``store`` recorded.

    ``cells`` are by row and column, with the chosen settings once there are any. ``trials`` have the settings among
    which a cell's are chosen, each with the run that tries them; ``chosen`` those of the cells whose trials have all
    ended. ``runs`` are by row, column and seed, without those of a cell for which nothing is chosen yet.
    """

    # Whether reports and analyses call runs by their rows and columns, instead of by the settings in which they differ.
    is_named = True

    def __init__(self, cells: Iterable[Cell], seeds: int, store: Store) -> None:
        self.store, self.seeds = store, range(1, seeds + 1)
        self.cells = {(cell.row, cell.column): cell for cell in cells}
        self.trials = {
            place: [
                (choice, replace(cell, metrics=frozenset()).plan(self.seeds[0], store, choice))
                for choice in cell.choices
            ]
            for place, cell in self.cells.items()
            if cell.choices
        }
        for choice, run in (trial for tried in self.trials.values() for trial in tried):
            if not run.settings["validation-fraction"]:
                raise ConfigError("choose", [*choice], "needs validation-fraction above 0")
        self.chosen: dict[Place, Choice] = {}
        self.runs: dict[tuple[str, str, int], PlannedRun] = {}
        self.choose()

    @property
    def rows(self) -> list[str]:
        """The names of the rows, in their order."""
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in their order."""
        return list(dict.fromkeys(column for _, column in self.cells))

    @property
    def measures_after_choice(self) -> bool:
        """Whether chosen runs have numbers that are measured with their models, which their trials have not."""
        metrics = {metric for cell in self.cells.values() for metric in cell.metrics}
        return bool(self.trials) and any(run_numbers.mode_of(metric) is not None for metric in metrics)

    def choose(self, final: bool = False) -> None:
        """Choose the settings of each cell whose trials have ended, and plan its runs.

        A trial that failed is tried again; only where the choice is ``final`` it counts as worse than all others.
        """
        for place, tried in self.trials.items():
            if (choice := self._best(tried, final)) is not None:
                self.chosen[place] = choice
                self.cells[place] = replace(
                    self.cells[place], settings={**self.cells[place].settings, **choice}, choices=()
                )
        self.runs = {
            (*place, seed): cell.plan(seed, self.store)
            for seed in self.seeds  # the first seed fills the table, the next ones make it surer
            for place, cell in self.cells.items()
            if place not in self.trials or place in self.chosen
        }

    def _best(self, tried: Sequence[tuple[Choice, PlannedRun]], final: bool) -> Choice | None:
        """Return the choice with the best validation score; None while a trial is open, or where all have failed."""
        is_open = (State.MISSING, State.INTERRUPTED, *(() if final else (State.FAILED,)))
        if any(self.store.state(run) in is_open for _, run in tried):
            return None
        finished = [
            (history.rank(line), choice)
            for choice, run in tried
            if self.store.state(run) is State.FINISHED
            and (line := (history := self.store.folder(run).history()).best_validated())
        ]
        return max(finished, key=lambda trial: trial[0])[1] if finished else None  # the first of several

    def planned(self) -> list[PlannedRun]:
        """Return all runs that are known so far, each once, trials first."""
        return self._once(self.trials)

    def wanted(self) -> list[PlannedRun]:
        """Return the runs without which numbers are missing: trials of cells for which nothing is chosen, or failed."""
        return self._once({*self.trials.keys() - self.chosen.keys(), *self.failed_trials()})

    def first_runs(self) -> list[PlannedRun]:
        """Return the runs that depend neither on the number of seeds nor on what is chosen."""
        return self._once(self.trials, [run for (*place, seed), run in self.runs.items()
                                        if seed == 1 and tuple(place) not in self.trials])  # fmt: skip

    def failed_trials(self) -> dict[Place, list[Choice]]:
        """Return the settings whose trials failed, by the cells for which others were chosen."""
        failed = {
            place: [choice for choice, run in self.trials[place] if self.store.state(run) is State.FAILED]
            for place in self.chosen.keys() & self.trials.keys()
        }
        return {place: choices for place, choices in failed.items() if choices}

    def _once(self, tried: Collection[Place], runs: Iterable[PlannedRun] | None = None) -> list[PlannedRun]:
        trials = [run for place, tried_in_cell in self.trials.items() if place in tried for _, run in tried_in_cell]
        return unique([*trials, *(self.runs.values() if runs is None else runs)])

    def state(self, row: str, column: str, seed: int) -> State:
        """Return the state of a cell's run; before its settings are chosen, whether they still can be."""
        if run := self.runs.get((row, column, seed)):
            return self.store.state(run)
        tried = {self.store.state(run) for _, run in self.trials[row, column]}
        return State.FAILED if tried == {State.FAILED} else State.MISSING

    def states(self) -> dict[str, State]:
        """Return the state of each run, by name."""
        return {run.name: self.store.state(run) for run in self.planned()}

    def folders(self) -> list[RunFolder]:
        """Return the folders of the runs, each once and with the names of its cells."""
        return [folder for _, folder in self._folders()]

    def finished(self, column: str | None = None, row: str | None = None) -> list[RunFolder]:
        """Return those of the folders, or of the folders of a column or row, whose runs have finished."""
        return [folder for run, folder in self._folders(column, row) if self.store.state(run) is State.FINISHED]

    def _folders(self, column: str | None = None, row: str | None = None) -> Iterator[tuple[PlannedRun, RunFolder]]:
        places: dict[str, list[Place]] = {}
        runs = dict[str, PlannedRun]()
        for (of_row, of_column, _), run in self.runs.items():
            if column in (None, of_column) and row in (None, of_row):
                places.setdefault(run.name, []).append((of_row, of_column))
                runs[run.name] = run
        for name, of_run in places.items():
            yield runs[name], self.named(runs[name], *map(_joined, zip(*of_run, strict=True)))

    def named(self, run: PlannedRun, row: str, column: str) -> RunFolder:
        """Return the folder of a run that has names."""
        return RunFolder(self.store.folder(run).path, row, column, self.store.cell(run))

    def failures(self, column: str | None = None) -> Iterator[str]:
        """Yield a sentence for each reason for which runs failed, with their places, of all columns or of one."""
        runs = [(row, in_column, f"seed {seed}", run) for (row, in_column, seed), run in self.runs.items()]
        tried = [
            (*place, in_words(choice), run)
            for place, tried_in_cell in self.trials.items()
            for choice, run in tried_in_cell
        ]
        places: dict[str, list[str]] = {}
        for row, in_column, what, run in (*runs, *tried):
            if column in (None, in_column) and self.store.state(run) is State.FAILED:
                places.setdefault(self.store.reason(run), []).append(", ".join(filter(None, (row, in_column, what))))
        for reason, failed in places.items():
            yield f"Failed: {'; '.join(failed)}: {printable(reason).rstrip('.')}."

    def failed_clients(self, column: str | None = None) -> Iterator[str]:
        """Yield in which cells, of all columns or of one, clients failed: their means are not what they seem to be."""
        untested, untrained = list[str](), list[str]()
        for row, other in self.cells:
            histories = [folder.history() for folder in self.finished(other, row)] if column in (None, other) else []
            name = self.cell_in_words(row, "" if column else other)
            # Such a client is in no mean of its round's test, and may have been one of the worst.
            if any(_untested(line) for history in histories for line in history.lines):
                untested.append(name)
            if any(history.untrained() for history in histories):
                untrained.append(name)
        if untested:
            names = "; ".join(untested)
            yield f"In some rounds clients failed or were absent, and not tested: {names} (`fedpfl report` lists them)."
        if untrained:
            yield f"Clients whose training failed count with the model that they had before: {'; '.join(untrained)}."

    def cell_in_words(self, row: str, column: str) -> str:
        """Return the name of a cell in a sentence."""
        return f"{row}{column and f' on {column}'}"

    def values(self, metric: str, row: str, column: str) -> list[float]:
        """Return a number of the finished runs of a cell, by seed."""
        return [value for seed in self.seeds if (value := self.value(metric, row, column, seed)) is not None]

    def value(self, metric: str, row: str, column: str, seed: int) -> float | None:
        """Return a number of the run of a cell with one seed; None where it is not finished or has no such number."""
        run = self.runs.get((row, column, seed))
        return None if run is None else self.store.measure(run, metric, self.cells[row, column].clients)

    @cached_property
    def loss(self) -> str:
        """The loss of the runs, by which tests measure the accuracy or R²; that of the first run with R², if any."""
        losses = [str(run.settings["loss"]) for run in self.planned()]
        return next((loss for loss in losses if not is_share(ACCURACY, loss)), losses[0] if losses else CLASSES)

    def metric(self, name: str) -> run_numbers.Metric:
        """Return a metric of its runs by name."""
        return run_numbers.find(name, self.loss)

    def spread(self, metric: str, row: str, column: str, seeds: Collection[int] | None = None) -> Spread | None:
        """Summarise a cell's numbers over all seeds or some, shares in percent; None where there are none."""
        values = [self.value(metric, row, column, seed) for seed in (self.seeds if seeds is None else seeds)]
        return self.metric(metric).spread([value for value in values if value is not None])


def method_of(settings: Mapping[str, Any]) -> str:
    """Return the name of the method that settings name."""
    text = typed("method", settings.get("method", RunSettings.method), by_key(RunSettings)["method"])
    return find(str(text)).name


def _untested(line: Mapping[str, Any]) -> bool:
    """Return whether a round's test lacks a client; one that failed in training may have been tested."""
    tested = line.get("personalised", {}).get("each")
    return bool(tested and (line.get("untested") or line.get("failed", {}).keys() - tested.keys()))


def _joined(names: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(names))


def chosen_in_words(grid: Grid, place: Place) -> str | None:
    """Return the choice for a cell as text, with the trials that failed; None where nothing is chosen."""
    if place not in grid.chosen:
        return None
    failed = "; ".join(in_words(choice) for choice in grid.failed_trials().get(place, ()))
    return in_words(grid.chosen[place]) + (f" (failed: {failed})" if failed else "")


def in_words(choice: Choice) -> str:
    """Return chosen settings as words."""
    return ", ".join(f"{key} {value}" for key, value in choice.items())
