"""Several runs: compared, and run over a range of settings."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..analysis.registry import NoOptions, NotRecorded
from ..analysis.significance import significance
from ..core import custom
from ..core.errors import ConfigError, FedpflError
from ..core.settings import parse
from ..data import DataSettings, default_clients
from ..engine.listener import Listener
from ..experiments import sweep as sweeps
from ..experiments.comparison import comparison, tables
from ..experiments.grid import Grid, Job, Process, Resources
from ..experiments.measured import in_words
from ..experiments.store import DEFAULT_ROOT, PlannedRun, State, Store
from ..launch import simulation
from ..launch.plan import DEFAULT_CLIENTS, prepare
from ..launch.progress import LineDisplay, grid_display
from ..methods import find
from ..results.run import RunFolder
from ..results.tables import Table
from . import frames
from .plot import Plot, require_drawing
from .runs import Run, _plain, functions_as_text, report, require_listeners

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..launch.known import SweepSettings


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
    """

    def __init__(
        self, runs: Sequence[Run], tables: Sequence[Table] = (), chosen: Mapping[Any, dict[str, Any]] | None = None
    ) -> None:
        require_drawing("a comparison", "matplotlib", "jinja2")
        from ..report.sections import comparison as overview

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
        return frames.from_table(self._tables[0])

    @property
    def pairs(self) -> DataFrame:
        """A row for each two methods, with the same clients: mean difference in points, Wilcoxon's p, Holm's p.

        With several data sets these stand in the first level of the index.
        """
        found = {table.title: frames.from_table(table) for table in self._tables[1:] if "p, Holm" in table.columns}
        if not found:
            raise FedpflError("no two of these runs have the same clients, so differences cannot be tested")
        return next(iter(found.values())) if len(found) == 1 else frames.pandas("pairs").concat(found)

    @property
    def conclusion(self) -> str:
        """Which differences are more than chance, in a sentence; empty where none can be tested."""
        return " ".join(table.note for table in self._tables[1:])

    def plot(self) -> Plot:
        """Draw the personalised accuracies over the rounds."""
        if not self._figures:
            raise ConfigError("runs", len(self.runs), "none of these runs has a tested round yet")
        return Plot(self._figures[0], self._labels)

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


def compare(
    methods: Sequence[str | type[Any] | Run],
    *,
    tune: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 3,
    on: Sequence[Mapping[str, Any]] = (),
    jobs: int = 1,
    workers: int | None = None,
    output_dir: str | PathLike[str] | None = None,
    callbacks: Sequence[Listener] = (),
    quiet: bool = False,
    **settings: Unpack[SweepSettings],
) -> Comparison:
    """Run methods on the same data and test which differences are more than chance, as ``fedpfl compare`` does.

    Each method's settings are chosen on validation samples, with seed 1; then it is run with all seeds. What is
    done already is not run again.

    Parameters
    ----------
    methods : sequence of str or class
        Methods: names, ``MODULE:NAME``, subclasses of :class:`fedpfl.Method`. Or runs that were made before
        (:class:`Run`); then nothing is run.
    tune : mapping of str to sequence, optional
        Settings and the values among which each method's are chosen: ``{"learning_rate": [0.003, 0.01, 0.03]}``. A
        setting of one method is chosen for it alone. Needs validation samples: ``validation_fraction`` is 0.2
        unless given.
    seeds : int
        Each method is run with the seeds 1 … n.
    on : sequence of mapping, optional
        Settings of several data sets: ``[{"dataset": "digits"}, {"dataset": "mnist"}]``.
    jobs, workers, output_dir, callbacks, quiet
        As in :func:`sweep`.
    **settings
        What all runs have in common; Python objects as in :func:`run`.

    Returns
    -------
    Comparison
        Table, differences with their tests, chosen settings, runs.

    Raises
    ------
    ConfigError
        A setting is not allowed.
    FedpflError
        A run failed.

    Examples
    --------
    >>> found = fedpfl.compare(["local", "fedper"], tune={"learning_rate": [0.01, 0.03]}, seeds=5)  # doctest: +SKIP
    >>> found.conclusion  # doctest: +SKIP
    """
    require_drawing("a comparison", "matplotlib", "jinja2")  # before anything is run
    if isinstance(methods, (str, type, Run)) or not methods:
        raise ConfigError("methods", methods, "must be a list of methods, or of runs")
    made = [run for run in methods if isinstance(run, Run)]
    if made:
        if len(made) < len(methods) or settings or tune or on:
            raise ConfigError("methods", [*methods], "must be methods alone, or runs alone without settings")
        return Comparison(made)
    with ExitStack() as stack:
        runs = _Runs(stack, output_dir, jobs, workers, callbacks, quiet)
        base = runs.texts(settings)
        given = [runs.text_of("method", method) for method in methods]
        named = {find(text).name: text for text in given}
        if len(named) < 2:
            raise ConfigError("methods", given, "a comparison needs two methods or more")
        data_sets = {}
        for own in map(runs.texts, on or [{}]):
            data_sets[in_words(own)] = {**own, "num-clients": _clients({**base, **own})}
        tried = {
            _key(key): [runs.text_of(_key(key), value) for value in values] for key, values in (tune or {}).items()
        }
        planned = comparison(named, base, tried, seeds, data_sets, runs.store)
        runs.run(planned.wanted())
        planned.choose()
        states = runs.run(planned.wanted())
        failed = [f"{run.name}: {runs.store.reason(run)}" for run in planned.wanted()
                  if states[run.name] is not State.FINISHED]  # fmt: skip
        if failed:
            raise FedpflError("; ".join(failed))
        found = tables(planned, f"Comparison of {', '.join(named)}")
        chosen = {row if len(data_sets) == 1 else (row, column): choice
                  for (row, column), choice in planned.chosen.items()}  # fmt: skip
        return Comparison(runs.made(planned.runs.values()), found, chosen)


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
    """

    def __init__(
        self, tables: Sequence[Table], runs: list[Run], points: list[dict[str, Any]], failed: dict[str, str]
    ) -> None:
        self._tables, self.runs, self.points, self.failed = list(tables), runs, points, failed

    @property
    def table(self) -> DataFrame:
        """A row for each point, the best first."""
        return frames.from_table(self._tables[-1])

    @property
    def each(self) -> DataFrame:
        """A row for each run, the best first."""
        return frames.from_table(self._tables[0])

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
            simulation.run(planned, LineDisplay(run.rounds, quiet=True), share.workers, 1, callbacks)
        except FedpflError as error:
            self._outcome = {"status": "failed", "error": str(error), "trained": False}

    def outcome(self) -> dict[str, Any]:
        """Return how the run ended."""
        return self._outcome

    def interrupt(self) -> bool:
        """Return that it has ended."""
        return True


def sweep(
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    random: Mapping[str, str] | None = None,
    samples: int = 10,
    seeds: int = 1,
    select: str = "test",
    jobs: int = 1,
    workers: int | None = None,
    output_dir: str | PathLike[str] | None = None,
    callbacks: Sequence[Listener] = (),
    quiet: bool = False,
    **settings: Unpack[SweepSettings],
) -> Sweep:
    """Run what is not finished of a sweep over settings, as ``fedpfl sweep`` does.

    Each run is a process. With callbacks, or Python objects among the settings, the runs are in this process one after
    the other. A run with a Python object that no other process could import is not found again by a later sweep.

    Parameters
    ----------
    grid : mapping of str to sequence, optional
        Settings and their values; every value with all of the others: ``{"learning_rate": [0.01, 0.05]}``.
    random : mapping of str to str, optional
        Settings that are drawn: ``{"fedprox_mu": "log:0.001:1"}``; also ``uniform:…``, ``int:…`` and ``choice:A:B``.
    samples : int
        How often they are drawn for each point of the grid.
    seeds : int
        Each point is run with the seeds 1 … n.
    select : {"test", "validation"}
        Whose accuracy puts the lines in order.
    jobs : int
        Runs side by side.
    workers : int, optional
        Processes that run the clients of a run, by default one for each core that the run has.
    output_dir : str or path, optional
        Folder of all runs of sweeps, where finished runs are found again.
    callbacks : sequence of Listener
        Follow the runs, one after the other.
    quiet : bool
        Show no progress.
    **settings
        What all runs have in common; Python objects as in :func:`run`.

    Returns
    -------
    Sweep
        Its tables and its runs.

    Raises
    ------
    ConfigError
        A setting is not allowed.
    FedpflError
        No run has finished; the reason of the first.
    """
    if select not in sweeps.SELECT:
        raise ConfigError("select", select, "must be one of " + ", ".join(sweeps.SELECT))
    with ExitStack() as stack:
        runs = _Runs(stack, output_dir, jobs, workers, callbacks, quiet)
        base = runs.texts(settings)
        base.setdefault("num-clients", _clients(base))
        drawn = [f"{_key(key)}={text}" for key, text in (random or {}).items()]
        planned = sweeps.SweepPlan(base, runs.listed(grid or {}), drawn, samples, seeds, select)
        states = runs.run(planned.runs)
        found = planned.tables(runs.store, f"Sweep: {len(planned.points)} points over {', '.join(planned.keys)}")
    failed = {name: runs.store.reason(run) for run in planned.runs if states[name := run.name] is not State.FINISHED}
    if len(failed) == len(planned.runs):
        raise FedpflError("no run of the sweep finished; {}: {}".format(*next(iter(failed.items()))))
    done = runs.made(run for run in planned.runs if run.name not in failed)
    points = [{key: runs.objects.get(value, value) for key, value in point.items()} for point in planned.points]
    return Sweep(found, done, points, failed)


class _Runs:
    """The runs of a sweep or a comparison: their store, the Python objects among their settings, how they start."""

    def __init__(
        self, stack: ExitStack, output_dir: str | PathLike[str] | None, jobs: int, workers: int | None,
        callbacks: Sequence[Listener], quiet: bool,
    ) -> None:  # fmt: skip
        require_listeners(callbacks)
        custom.set_folder(Path())
        self._stack, self._jobs, self._workers, self._callbacks, self._quiet = stack, jobs, workers, callbacks, quiet
        self.store, self.objects = Store(Path(output_dir or DEFAULT_ROOT)), dict[str, object]()

    def texts(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings by their keys, with a text in the place of each Python object."""
        given = {_key(key): value for key, value in settings.items() if value is not None}
        kinds = {"data": "dataset"} if not isinstance(given.get("data", ""), (str, PathLike)) else {}
        if kinds and "dataset" in given:
            raise ConfigError(
                "data", custom.article(given["data"]), "is a data set, but the setting dataset names another one"
            )
        return {kinds.get(key, key): self.text_of(kinds.get(key, key), value) for key, value in given.items()}

    def listed(self, grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the values of settings by their keys, with a text in the place of each Python object."""
        return {_key(key): [self.text_of(_key(key), value) for value in values] for key, values in grid.items()}

    def text_of(self, key: str, value: Any) -> Any:
        """Return a setting's value, or the text that stands for a Python object."""
        plain = _plain(value)
        if isinstance(plain, (bool, int, float, str)):
            return plain
        if key in custom.FUNCTIONS:
            return functions_as_text(plain, lambda thing, _: self._object(key, thing))
        if key not in custom.GROUPS:
            raise ConfigError(key, custom.article(plain), "must be a number, a text, true or false")
        return self._object(key, plain)

    def _object(self, key: str, thing: object) -> str:
        same = (text for text, known in self.objects.items() if known is thing)
        text = next(same, None) or self._stack.enter_context(custom.as_setting(key, thing))
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
                {text: self.objects[text] for _, text in custom.references(run.settings) if text in self.objects},
            )
            for run in planned
        ]


def _clients(settings: Mapping[str, Any]) -> int:
    """Return the number of clients that is given, or all that the data name, or 10."""
    given = settings.get("num-clients")
    return int(given or default_clients(parse(DataSettings, settings)) or DEFAULT_CLIENTS)


def _key(name: str) -> str:
    return name.replace("_", "-")


def _is_in_package(thing: object) -> bool:
    """Return whether a Python object is of this package, which every process has."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "fedpfl"
