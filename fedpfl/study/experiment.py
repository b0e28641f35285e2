"""The grid of an experiment at a scale: a paper's table or figure with the numbers that its runs recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, FedpflError, one_of
from ..launch import shipped
from ..results.tables import Spread
from . import run_numbers
from .analysis import ANALYSES
from .experiment_file import ExperimentFile, load
from .grid import Grid
from .run_store import PlannedRun, State, Store


def files() -> dict[str, Path]:
    """Return the files of all experiments by name: of the working directory, or those that come with fedpfl."""
    shipped_folder = shipped.folder(shipped.EXPERIMENTS)
    for place in (Path(shipped.EXPERIMENTS), *([shipped_folder] if shipped_folder else ())):
        if paths := shipped.experiments(place):
            return paths
    raise ConfigError("experiments", shipped.EXPERIMENTS, "there are no experiment files here; run in fedpfl's folder")


def read(name: str) -> ExperimentFile:
    """Read an experiment by its name or the path of its file."""
    if name.endswith(".toml"):
        return load(Path(name).expanduser())
    paths = files()
    if name not in paths:
        raise ConfigError("experiment", name, one_of(name, paths, "a .toml file"))
    return load(paths[name])


class ExperimentGrid(Grid):
    """The runs of an experiment at a scale; ``seeds`` and ``more`` override scale and file.

    A column that puts others together has no runs, and a number may be relative to that of another row.
    """

    def __init__(
        self,
        experiment: ExperimentFile,
        scale: str,
        store: Store,
        seeds: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        for name in experiment.analyses:
            if name not in ANALYSES:
                allowed = f"{experiment.name}: must be one of {', '.join(ANALYSES)}"
                raise ConfigError("analyses", name, allowed)
        self.experiment, self.scale, self.more = experiment, scale, dict(more or {})
        self.extent = experiment.scale(scale)
        super().__init__(experiment.cells(scale, more), seeds or self.extent.seeds, store)

    def value(self, metric: str, row: str, column: str, seed: int) -> float | None:
        """Return a number of the run of a cell with one seed; None where it is not finished or has no such number."""
        if others := self.pooled(row, column):
            values = [self.value(metric, row, other, seed) for other in others]
            numbers = [value for value in values if value is not None]
            return run_numbers.find(metric).pool(numbers) if len(numbers) == len(others) else None
        value = self._plain(metric, row, column, seed)
        base = self.experiment.relative_to
        if not base or value is None:
            return value
        other = self._plain(metric, base, column, seed)
        return value / other if other else None

    def _plain(self, metric: str, row: str, column: str, seed: int) -> float | None:
        run = self.runs.get((row, column, seed))
        name = self.experiment.metric(row, metric)
        kind, _, which = name.partition(":")
        if run and kind == run_numbers.ATTACK and self.store.state(run) is State.FINISHED:
            return self._attacked(run, run_numbers.ATTACKED[which])
        return super().value(name, row, column, seed)

    def _attacked(self, run: PlannedRun, column: str) -> float | None:
        """Return a number of the analysis of a run alone; None where it cannot be made, as its table tells."""
        options = {
            key.replace("-", "_"): value for key, value in self.options(run_numbers.ATTACK).items() if key != "of"
        }
        try:
            table = ANALYSES[run_numbers.ATTACK].make([self.named(run, "", "")], **options).tables[0]
        except FedpflError:
            return None
        cell = table.rows[0][list(table.columns).index(column)]
        return cell.mean if isinstance(cell, Spread) else float(str(cell))

    def pooled(self, row: str, column: str) -> list[str]:
        """Return the columns of this scale that a column puts together, for a row; none for a column that is run."""
        return [other for other in self.experiment.pooled(column) if (row, other) in self.cells]

    def options(self, analysis: str) -> dict[str, Any]:
        """Return the options that the experiment and this scale give an analysis, and ``of``."""
        return {**self.experiment.analyses.get(analysis, {}), **self.extent.analyses.get(analysis, {})}
