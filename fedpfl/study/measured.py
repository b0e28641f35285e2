"""The runs of an experiment at a scale: which there are, which settings are chosen, and what they measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.errors import ConfigError, FedpflError
from ..core.settings import parse
from ..results.run_folder import RunFolder
from . import run_numbers
from .analysis import ANALYSES
from .description import Cell, Experiment
from .store import PlannedRun, State, Store, plan, unique

GENERATED = "{generated}"

Place = tuple[str, str]  # row and column


class Measured:
    """The runs of an experiment at a scale, and what they recorded; ``seeds`` and ``more`` override scale and file.

    ``cells`` are by row and column, with the chosen settings once there are any. ``trials`` have the settings among
    which a cell's are chosen, each with the run that tries them; ``chosen`` those of the cells whose trials have all
    ended. ``runs`` are by row, column and seed, without those of a cell for which nothing is chosen yet.
    """

    def __init__(
        self,
        experiment: Experiment,
        scale: str,
        store: Store,
        seeds: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        for name in experiment.analyses:
            if name not in ANALYSES:
                known = ", ".join(ANALYSES)
                raise ConfigError("analyses", name, f"{experiment.name}: must be one of {known}")
        self.experiment, self.scale, self.store, self.more = experiment, scale, store, dict(more or {})
        self.at = experiment.scale(scale)
        self.seeds = range(1, (seeds or self.at.seeds) + 1)
        self.cells = {(cell.row, cell.column): cell for cell in experiment.cells(scale, more)}
        self.trials = self._trials()
        self.chosen: dict[Place, dict[str, Any]] = {}
        self.runs: dict[tuple[str, str, int], PlannedRun] = {}
        self.choose()

    def _trials(self) -> dict[Place, list[tuple[dict[str, Any], PlannedRun]]]:
        found = {}
        for place, cell in self.cells.items():
            if choices := self.experiment.choices(self.scale, *place, self.more):
                found[place] = [(choice, self._plan(_with(cell, choice), self.seeds[0])) for choice in choices]
        for choice, run in (trial for tried in found.values() for trial in tried):
            if not run.settings["validation-fraction"]:
                raise ConfigError("choose", [*choice], f"{self.experiment.name}: needs validation-fraction above 0")
        return found

    def choose(self, final: bool = False) -> None:
        """Choose the settings of each cell whose trials have ended, and plan its runs.

        A trial that failed is tried again; only where the choice is ``final`` it counts as worse than all others.
        """
        for place, tried in self.trials.items():
            if (choice := self._best(tried, final)) is not None:
                self.chosen[place] = choice
                self.cells[place] = _with(self.cells[place], choice)
        self.runs = {
            (*place, seed): self._plan(cell, seed)
            for seed in self.seeds  # the first seed fills the table, the next ones make it surer
            for place, cell in self.cells.items()
            if place not in self.trials or place in self.chosen
        }

    def _best(self, tried: Sequence[tuple[dict[str, Any], PlannedRun]], final: bool) -> dict[str, Any] | None:
        """Return what is best on the validation samples; None while a trial is open, or where all have failed."""
        is_open = (State.MISSING, State.INTERRUPTED, *(() if final else (State.FAILED,)))
        if any(self.store.state(run) in is_open for _, run in tried):
            return None
        values = [(self.store.measure(run, "validation-score"), choice) for choice, run in tried]
        known = [(value, choice) for value, choice in values if value is not None]
        return max(known, key=lambda trial: trial[0])[1] if known else None  # the first of several

    def _plan(self, cell: Cell, seed: int) -> PlannedRun:
        settings, generate = cell.settings, cell.generate
        if generate:
            generate = (*generate, "--seed", str(seed))
            folder = str(self.store.generated(generate))
            settings = {
                key: value.replace(GENERATED, folder) if isinstance(value, str) else value
                for key, value in settings.items()
            }
        return plan(settings, seed, self.experiment.needs(cell.row), generate)

    def planned(self) -> list[PlannedRun]:
        """Return all runs that are known so far, each once, trials first."""
        return self._once(self.trials)

    def wanted(self) -> list[PlannedRun]:
        """Return the runs without which numbers are missing: trials of cells for which nothing is chosen, or failed."""
        return self._once({*self.trials.keys() - self.chosen.keys(), *self.failed_trials()})

    def failed_trials(self) -> dict[Place, list[dict[str, Any]]]:
        """Return the settings whose trials failed, by the cells for which others were chosen."""
        found = {
            place: [choice for choice, run in self.trials[place] if self.store.state(run) is State.FAILED]
            for place in self.chosen.keys() & self.trials.keys()
        }
        return {place: choices for place, choices in found.items() if choices}

    def _once(self, tried: Collection[Place]) -> list[PlannedRun]:
        trials = [run for place, of in self.trials.items() if place in tried for _, run in of]
        return unique([*trials, *self.runs.values()])

    @property
    def undecided(self) -> int:
        """How many more runs there will be, once settings are chosen for all cells."""
        return len(self.trials.keys() - self.chosen.keys()) * (len(self.seeds) - 1)

    def state(self, row: str, column: str, seed: int) -> State:
        """Return the state of a cell's run; before its settings are chosen, whether they still can be."""
        if run := self.runs.get((row, column, seed)):
            return self.store.state(run)
        tried = {self.store.state(run) for _, run in self.trials[row, column]}
        return State.FAILED if tried == {State.FAILED} else State.MISSING

    def states(self) -> dict[str, State]:
        """Return the state of each run, by name."""
        return {run.name: self.store.state(run) for run in self.planned()}

    def finished(self, column: str | None = None, row: str | None = None) -> list[RunFolder]:
        """Return the folders of the finished runs, or of those of a column or row, each once and with its names."""
        places: dict[str, list[Place]] = {}
        for (of, other, _), run in self.runs.items():
            if column in (None, other) and row in (None, of) and self.store.state(run) is State.FINISHED:
                places.setdefault(run.name, []).append((of, other))
        runs = {run.name: run for run in self.runs.values()}
        return [
            self._named(runs[name], *(" / ".join(dict.fromkeys(of)) for of in zip(*at, strict=True)))
            for name, at in places.items()
        ]

    def _named(self, run: PlannedRun, row: str, column: str) -> RunFolder:
        return RunFolder(self.store.folder(run).path, row, column, self.store.cell(run))

    def failures(self, column: str | None = None) -> Iterator[str]:
        """Yield a sentence for each run that failed, of all columns or of one."""
        runs = [(row, of, f"seed {seed}", run) for (row, of, seed), run in self.runs.items()]
        tried = [(*place, in_words(choice), run) for place, of in self.trials.items() for choice, run in of]
        for row, of, what, run in (*runs, *tried):
            if column in (None, of) and self.store.state(run) is State.FAILED:
                yield f"{', '.join(filter(None, (row, of, what)))}: {self.store.reason(run)}"

    def values(self, metric: str, row: str, column: str) -> list[float]:
        """Return what the finished runs of a cell measured, by seed."""
        return [value for seed in self.seeds if (value := self.value(metric, row, column, seed)) is not None]

    def value(self, metric: str, row: str, column: str, seed: int) -> float | None:
        """Return what the run of a cell with one seed measured; None where it is not finished or has no such number."""
        if others := self.pooled(row, column):
            values = [self.value(metric, row, other, seed) for other in others]
            known = [value for value in values if value is not None]
            return run_numbers.find(metric).pool(known) if len(known) == len(others) else None
        value = self._plain(metric, row, column, seed)
        base = self.experiment.relative_to
        if not base or value is None:
            return value
        other = self._plain(metric, base, column, seed)
        return None if other is None else value / other

    def _plain(self, metric: str, row: str, column: str, seed: int) -> float | None:
        run = self.runs.get((row, column, seed))
        if run is None:
            return None
        name = self.experiment.metric(row, metric)
        kind, _, which = name.partition(":")
        if kind == run_numbers.ATTACK and self.store.state(run) is State.FINISHED:
            return self._attacked(run, run_numbers.POOLS[which])
        return self.store.measure(run, name, self.cells[row, column].clients)

    def _attacked(self, run: PlannedRun, pool: Callable[[Sequence[float]], float]) -> float | None:
        from .analysis.attack import AttackOptions, attempts_of

        given = self.options(run_numbers.ATTACK)
        given.pop("of", None)
        try:
            options = parse(AttackOptions, given)
            return pool([attempt.psnr for attempt in attempts_of(self._named(run, "", ""), options)])
        except FedpflError:  # the table of the analysis gives the reason
            return None

    def pooled(self, row: str, column: str) -> list[str]:
        """Return the columns of this scale that a column puts together, for a row; none for a column that is run."""
        return [other for other in self.experiment.pooled(column) if (row, other) in self.cells]

    def options(self, analysis: str) -> dict[str, Any]:
        """Return what the experiment and this scale give an analysis: its options, and ``of``."""
        return {**self.experiment.analyses.get(analysis, {}), **self.at.analyses.get(analysis, {})}


def chosen_in_words(measured: Measured, place: Place) -> str | None:
    """Return what is chosen for a cell, and which trials failed; None where nothing is chosen."""
    if place not in measured.chosen:
        return None
    failed = "; ".join(in_words(choice) for choice in measured.failed_trials().get(place, ()))
    return in_words(measured.chosen[place]) + (f" (failed: {failed})" if failed else "")


def in_words(choice: Mapping[str, Any]) -> str:
    """Return chosen settings as words."""
    return ", ".join(f"{key} {value}" for key, value in choice.items())


def _with(cell: Cell, choice: Mapping[str, Any]) -> Cell:
    return replace(cell, settings={**cell.settings, **choice})
