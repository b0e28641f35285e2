"""Several runs: compared, and run over a range of settings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import custom
from ..core.errors import ConfigError, FedpflError
from ..core.settings import parse
from ..data import DataSettings, default_clients
from ..engine.listener import Listener
from ..experiments import sweep as sweeps
from ..experiments.grid import Grid, Job, Process, Resources
from ..experiments.store import DEFAULT_ROOT, PlannedRun, State, Store
from ..launch import simulation
from ..launch.plan import DEFAULT_CLIENTS, prepare
from ..launch.progress import LineDisplay, grid_display
from ..results.tables import Table
from . import frames
from .plot import Plot, require_drawing
from .runs import Run, _plain, load, report, require_listeners

if TYPE_CHECKING:
    from pandas import DataFrame


class Comparison:
    """Runs side by side; those that differ in nothing but their seed count as repetitions of one.

    Attributes
    ----------
    runs : list of Run
        The runs.
    notes : list of str
        What a reader has to know, for example that the runs are not of the same data.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        require_drawing("a comparison", "matplotlib", "jinja2")
        from ..report.sections import comparison

        self.runs = list(runs)
        with ExitStack() as stack:
            for run in self.runs:
                stack.enter_context(run.objects())
            self._table, self._figures, self._labels, self.notes = comparison([run._folder for run in self.runs])

    @property
    def table(self) -> DataFrame:
        """A row for each kind of run: rounds, accuracies in percent, traffic, seconds; means and std over seeds."""
        return frames.from_table(self._table)

    def plot(self) -> Plot:
        """Draw the personalised accuracies over the rounds."""
        if not self._figures:
            raise ConfigError("runs", len(self.runs), "no round of these has been tested so far")
        return Plot(self._figures[0], self._labels)

    def report(self, path: str | PathLike[str] = "report.html", title: str = "") -> Path:
        """Write a page about the runs that needs no network; return where it is."""
        return report(self.runs, path, title)

    def __repr__(self) -> str:
        return "\n".join([self._table.markdown(), *self.notes])

    def _repr_markdown_(self) -> str:
        return repr(self)


def compare(runs: Sequence[Run | str | PathLike[str] | type[Any]], **settings: Any) -> Comparison:
    """Put runs side by side, or run methods and put their runs side by side.

    Parameters
    ----------
    runs : sequence of Run, str or path; or of methods
        Runs, their names, or their folders. Where there are settings or classes: methods (names, ``MODULE:NAME``,
        subclasses of :class:`fedpfl.Method`), each of which is run.
    **settings
        What the runs of methods have in common, and other arguments of :func:`sweep`, such as ``seeds``.

    Raises
    ------
    ConfigError
        There is none, or something is no run.
    FedpflError
        The run of a method failed.
    """
    if isinstance(runs, (str, PathLike, Run)) or not runs:
        raise ConfigError("runs", runs, "must be a list of at least one run")
    if not settings and not any(isinstance(run, type) for run in runs):
        return Comparison([run if isinstance(run, Run) else load(str(run)) for run in runs])
    if any(isinstance(run, (Run, Path)) for run in runs):
        raise ConfigError("runs", runs, "must be runs without any settings, or methods")
    found = sweep({"method": runs}, **settings)
    if found.failed:
        raise FedpflError("; ".join(f"{name}: {reason}" for name, reason in found.failed.items()))
    return found.compare()


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
        return compare(self.runs)

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
    **settings: Any,
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
    require_listeners(callbacks)
    custom.set_folder(Path())
    given = {_key(key): value for key, value in settings.items() if value is not None}
    kinds = {"data": "dataset"} if not isinstance(given.get("data", ""), (str, PathLike)) else {}
    if kinds and "dataset" in given:
        raise ConfigError("data", custom.article(given["data"]), "is a data set, and dataset names another one")
    objects: dict[str, object] = {}
    with ExitStack() as stack:

        def text_of(key: str, value: Any) -> Any:
            plain = _plain(value)
            if isinstance(plain, (bool, int, float, str)):
                return plain
            if key not in custom.GROUPS:
                raise ConfigError(key, custom.article(plain), "must be a number, a text, true or false")
            same = (text for text, thing in objects.items() if thing is plain)
            text = next(same, None) or stack.enter_context(custom.as_setting(key, plain))
            objects[text] = plain
            return text

        base = {kinds.get(key, key): text_of(kinds.get(key, key), value) for key, value in given.items()}
        base.setdefault("num-clients", default_clients(parse(DataSettings, base)) or DEFAULT_CLIENTS)
        fixed = {_key(key): [text_of(_key(key), value) for value in values] for key, values in (grid or {}).items()}
        drawn = [f"{_key(key)}={text}" for key, text in (random or {}).items()]
        planned = sweeps.SweepPlan(base, fixed, drawn, samples, seeds, select)
        here = bool(callbacks) or any(not _is_in_package(thing) for thing in objects.values())
        if here and jobs > 1:
            raise ConfigError(
                "jobs", jobs, "must be 1 with callbacks or Python objects, whose runs are in this process"
            )
        store = Store(Path(output_dir or DEFAULT_ROOT))

        def start(run: PlannedRun, store: Store, share: Resources) -> Job:
            share = share if workers is None else share._replace(workers=workers)
            return _InProcessRun(run, store, share, callbacks) if here else Process(run, store, share)

        with grid_display(quiet) as shown:
            states = Grid(planned.runs, store, start).run(shown, jobs)
        tables = planned.tables(store, f"Sweep: {len(planned.points)} points over {', '.join(planned.keys)}")
    failed = {name: store.reason(run) for run in planned.runs if states[name := run.name] is not State.FINISHED}
    if len(failed) == len(planned.runs):
        raise FedpflError("no run of the sweep finished; {}: {}".format(*next(iter(failed.items()))))
    done = [
        Run(
            store.folder(run),
            {kind: objects[text] for kind in custom.GROUPS if (text := run.settings[kind]) in objects},
        )
        for run in planned.runs
        if run.name not in failed
    ]
    points = [{key: objects.get(value, value) for key, value in point.items()} for point in planned.points]
    return Sweep(tables, done, points, failed)


def _key(name: str) -> str:
    return name.replace("_", "-")


def _is_in_package(thing: object) -> bool:
    """Return whether a Python object is of this package, which every process has."""
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "fedpfl"
