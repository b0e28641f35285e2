"""Several runs: compared, and run over a range of settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import custom, own_code
from ..core.errors import ConfigError, FedpflError
from ..core.settings import plain
from ..data import DataSettings, default_clients
from ..engine.listener import Listener
from ..launch import simulation
from ..launch.plan import DEFAULT_CLIENTS, prepare
from ..launch.progress import LineDisplay, grid_display
from ..results.run_folder import RunFolder
from ..results.tables import Table
from ..setup.all_settings import code_in, functions
from ..setup.objects import as_setting
from ..study.analysis.registry import NoOptions, NotRecorded
from ..study.analysis.significance import significance
from ..study.grid import Grid, Job, Process, Resources
from ..study.store import DEFAULT_ROOT, PlannedRun, State, Store
from . import dataframes
from .figures import Plot, require_drawing
from .runs import Run, functions_as_text, report, require_listeners

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..study.report.draw import Style


class Comparison:
    """Runs side by side; those that differ in nothing but their seed count as repetitions of one.

    Attributes
    ----------
    runs : list of Run
        The runs.
    chosen : dict of str to dict
        Of methods that were tuned: the settings that were chosen, by method, or by (method, data set) where there are
        several data sets.
    notes : list of str
        What a reader has to know, for example that the runs are not of the same data.

    Examples
    --------
    >>> import fedpfl
    >>> settings = {"dataset": "digits", "model": "mlp", "num_clients": 4, "num_server_rounds": 1, "quiet": True}
    >>> found = fedpfl.compare([fedpfl.run(method=method, **settings) for method in ("local", "fedavg")])
    >>> found.table["run"].tolist()
    ['local', 'fedavg']
    >>> found.conclusion
    "No difference is statistically significant ... Wilcoxon's signed-rank test over the clients."
    """

    def __init__(
        self, runs: Sequence[Run], tables: Sequence[Table] = (), chosen: Mapping[Any, dict[str, Any]] | None = None
    ) -> None:
        require_drawing("a comparison", "matplotlib", "jinja2")
        from ..study.report.sections import comparison as overview

        self.runs, self.chosen = list(runs), dict(chosen or {})
        folders = [run._folder for run in self.runs]
        with ExitStack() as stack:
            for run in self.runs:
                stack.enter_context(run.objects())
            table, self._figures, self._labels, self.notes = overview(folders)
            self._tables = list(tables) or [table, *_differences(folders)]

    @property
    def table(self) -> DataFrame:
        """A row for each method or kind of run: accuracies in percent, traffic, seconds; means and std over seeds."""
        return dataframes.from_table(self._tables[0])

    @property
    def pairs(self) -> DataFrame:
        """A row for each two methods, with the same clients: mean difference in points, Wilcoxon's p, Holm's p.

        With several data sets these stand in the first level of the index.
        """
        found = {table.title: dataframes.from_table(table) for table in self._tables[1:] if "p, Holm" in table.columns}
        if not found:
            raise FedpflError("no two of these runs have the same clients, so differences cannot be tested")
        return next(iter(found.values())) if len(found) == 1 else dataframes.pandas("pairs").concat(found)

    @property
    def until(self) -> DataFrame:
        """A row for each method: rounds, MB and seconds until ``target``; mean and std over the seeds that reach it."""
        found = [table for table in self._tables if "reached" in table.columns]
        if not found:
            raise FedpflError("no target was given: fedpfl.compare(…, target=0.9)")
        return dataframes.from_table(found[0])

    @property
    def conclusion(self) -> str:
        """Which differences are statistically significant, in a sentence; empty where none can be tested."""
        return " ".join(table.note for table in self._tables[1:] if "reached" not in table.columns)

    def plot(self, title: str = "", style: Style | Sequence[Style] = ()) -> Plot:
        """Draw the personalised accuracies over the rounds, with bands of one standard deviation over seeds."""
        if not self._figures:
            raise ConfigError("runs", len(self.runs), "none of these runs has a tested round yet")
        return Plot(self._figures[0], self._labels, title, style)

    def report(self, path: str | PathLike[str] = "report.html", title: str = "") -> Path:
        """Write a page about the runs that needs no network; return where it is."""
        return report(self.runs, path, title)

    def __repr__(self) -> str:
        return "\n".join([*(table.markdown() for table in self._tables), *self.notes])

    def _repr_markdown_(self) -> str:
        return repr(self)


def _differences(folders: Sequence[RunFolder]) -> list[Table]:
    try:
        return significance(folders, NoOptions()).tables
    except NotRecorded:  # no two kinds of runs have the same clients
        return []


class Sweep:
    """The results of a sweep.

    Attributes
    ----------
    runs : list of Run
        The runs that have finished.
    points : list of dict
        The settings of each point.
    failed : dict of str to str
        Why runs failed, by their names; the tables have it in a column ``error``.

    Examples
    --------
    >>> import fedpfl
    >>> class Mine(fedpfl.Method):
    ...     name = "mine"
    >>> found = fedpfl.sweep(
    ...     {"local_epochs": [1, 2]}, method=Mine, dataset="digits", model="mlp", num_clients=4, num_server_rounds=1,
    ...     quiet=True,
    ... )
    >>> found.points
    [{'local-epochs': 1}, {'local-epochs': 2}]
    >>> len(found.table), len(found.runs), found.failed
    (2, 2, {})
    """

    def __init__(
        self, tables: Sequence[Table], runs: list[Run], points: list[dict[str, Any]], failed: dict[str, str]
    ) -> None:
        self._tables, self.runs, self.points, self.failed = list(tables), runs, points, failed

    @property
    def table(self) -> DataFrame:
        """A row for each point, the best first."""
        return dataframes.from_table(self._tables[-1])

    @property
    def each(self) -> DataFrame:
        """A row for each run, the best first."""
        return dataframes.from_table(self._tables[0])

    def compare(self) -> Comparison:
        """Put the runs that have finished side by side."""
        return Comparison(self.runs)

    def __repr__(self) -> str:
        return self._tables[-1].markdown()

    def _repr_markdown_(self) -> str:
        return repr(self)


class _InProcessRun:
    """A run in this process, which has the Python objects that it needs; it is over when it has been made."""

    def __init__(self, run: PlannedRun, store: Store, share: Resources, callbacks: Sequence[Listener]) -> None:
        again = str(store.folder(run).path) if store.folder(run).resumable else None
        values = tomllib.loads(store.prepare(run).read_text(encoding="utf-8"))
        self._outcome: dict[str, Any] = {"status": "finished:completed", "error": None}
        try:
            planned = prepare(None, {}, values, None, again)
            simulation.run(planned, LineDisplay(run.rounds, quiet=True), share.workers, callbacks)
        except FedpflError as error:
            self._outcome = {"status": "failed", "error": str(error), "trained": False}

    def outcome(self) -> dict[str, Any]:
        """Return how the run ended."""
        return self._outcome

    def interrupt(self) -> bool:
        """Return that it has ended."""
        return True


class Runs:
    """The runs of a sweep or a comparison: their store, the Python objects among their settings, how they start."""

    def __init__(
        self, stack: ExitStack, output_dir: str | PathLike[str] | None, jobs: int, workers: int | None,
        callbacks: Sequence[Listener], quiet: bool,
    ) -> None:  # fmt: skip
        require_listeners(callbacks)
        own_code.set_folder(Path())
        self._stack, self._jobs, self._workers, self._callbacks, self._quiet = stack, jobs, workers, callbacks, quiet
        self.store, self.objects = Store(Path(output_dir or DEFAULT_ROOT)), dict[str, object]()

    def texts(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings by their keys, with a text in the place of each Python object."""
        given = {key_of(key): value for key, value in settings.items() if value is not None}
        if "run-name" in given:
            raise ConfigError("run-name", given["run-name"], "cannot be set here: each run gets its own name")
        kinds = {"data": "dataset"} if not isinstance(given.get("data", ""), (str, PathLike)) else {}
        if kinds and "dataset" in given:
            raise ConfigError(
                "data", custom.article(given["data"]), "is a data set, but the setting dataset names another one"
            )
        return {kinds.get(key, key): self.text_of(kinds.get(key, key), value) for key, value in given.items()}

    def listed(self, grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the values of settings by their keys, with a text in the place of each Python object."""
        return {key_of(key): [self.text_of(key_of(key), value) for value in values] for key, values in grid.items()}

    def text_of(self, key: str, value: Any) -> Any:
        """Return a setting's value, or the text that stands for a Python object."""
        value = plain(value)
        if isinstance(value, (bool, int, float, str)):
            return value
        if key in functions():
            return functions_as_text(value, lambda thing, _: self._object(key, thing))
        if key not in custom.GROUPS:
            raise ConfigError(key, custom.article(value), "must be a number, a text, true or false")
        return self._object(key, value)

    def _object(self, key: str, thing: object) -> str:
        same = (text for text, known in self.objects.items() if known is thing)
        text = next(same, None) or self._stack.enter_context(as_setting(key, thing))
        self.objects[text] = thing
        return text

    def run(self, planned: Sequence[PlannedRun]) -> dict[str, State]:
        """Run what is not finished, and return the state of each run by its name."""
        here = bool(self._callbacks) or any(not _is_in_package(thing) for thing in self.objects.values())
        if here and self._jobs > 1:
            raise ConfigError(
                "jobs", self._jobs, "must be 1 with callbacks or Python objects, whose runs are in this process"
            )

        def start(run: PlannedRun, store: Store, share: Resources) -> Job:
            share = share if self._workers is None else share._replace(workers=self._workers)
            return _InProcessRun(run, store, share, self._callbacks) if here else Process(run, store, share)

        with grid_display(self._quiet) as shown:
            return Grid(planned, self.store, start).run(shown, self._jobs)

    def made(self, planned: Iterable[PlannedRun]) -> list[Run]:
        """Return runs that have finished."""
        return [
            Run(
                self.store.folder(run),
                {text: self.objects[text] for _, text in code_in(run.settings) if text in self.objects},
            )
            for run in planned
        ]


def number_of_clients(settings: Mapping[str, Any]) -> int:
    """Return the number of clients that is given, or all that the data name, or 10."""
    given = settings.get("num-clients")
    return int(given or default_clients(DataSettings.of(settings)) or DEFAULT_CLIENTS)


def key_of(name: str) -> str:
    """Return the key of a setting that is named in Python."""
    return name.replace("_", "-")


def _is_in_package(thing: object) -> bool:
    """Return whether a Python object is a class or function of this package, which every process has."""
    return hasattr(thing, "__qualname__") and str(thing.__module__).partition(".")[0] == "fedpfl"
