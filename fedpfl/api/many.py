"""Several runs: compared, and run over a range of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import parts
from ..core.errors import ConfigError
from ..core.settings import parse
from ..data import DataSettings, default_clients
from ..experiments import sweep as sweeps
from ..experiments.grid import Grid
from ..experiments.store import DEFAULT_ROOT, State, Store
from ..launch.plan import DEFAULT_CLIENTS
from ..launch.progress import grid_display
from ..results.tables import Table
from . import frames
from .plot import Plot, require_drawing
from .runs import Run, _plain, load, report

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
        return frames.of_table(self._table)

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


def compare(runs: Sequence[Run | str | PathLike[str]]) -> Comparison:
    """Put runs side by side.

    Parameters
    ----------
    runs : sequence of Run, str or path
        Runs, their names, or their folders.

    Raises
    ------
    ConfigError
        There is none, or something is no run.
    """
    if isinstance(runs, (str, PathLike, Run)) or not runs:
        raise ConfigError("runs", runs, "must be a list of at least one run")
    return Comparison([run if isinstance(run, Run) else load(run) for run in runs])


class Sweep:
    """The results of a sweep.

    Attributes
    ----------
    runs : list of Run
        The runs that have finished.
    points : list of dict
        The settings of each point.
    """

    def __init__(self, tables: Sequence[Table], runs: list[Run], points: list[dict[str, Any]]) -> None:
        self._tables, self.runs, self.points = list(tables), runs, points

    @property
    def table(self) -> DataFrame:
        """A row for each point, the best first."""
        return frames.of_table(self._tables[-1])

    @property
    def each(self) -> DataFrame:
        """A row for each run, the best first."""
        return frames.of_table(self._tables[0])

    def compare(self) -> Comparison:
        """Put the runs that have finished side by side."""
        return compare(self.runs)

    def __repr__(self) -> str:
        return self._tables[-1].markdown()

    def _repr_markdown_(self) -> str:
        return repr(self)


def sweep(
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    random: Mapping[str, str] | None = None,
    samples: int = 10,
    seeds: int = 1,
    select: str = "test",
    jobs: int = 1,
    output_dir: str | PathLike[str] | None = None,
    quiet: bool = False,
    **settings: Any,
) -> Sweep:
    """Run what is not finished of a sweep over settings, as ``fedpfl sweep`` does.

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
    output_dir : str or path, optional
        Folder of all runs of sweeps, where finished runs are found again.
    quiet : bool
        Show no progress.
    **settings
        What all runs have in common.

    Returns
    -------
    Sweep
        Its tables and its runs.

    Raises
    ------
    ConfigError
        A setting is not allowed, or a Python object was given: each run is a process of its own.
    """
    if select not in sweeps.SELECT:
        raise ConfigError("select", select, "must be one of " + ", ".join(sweeps.SELECT))
    parts.look_in(Path())
    base = {_key(key): _sent(_key(key), value) for key, value in settings.items() if value is not None}
    base.setdefault("num-clients", default_clients(parse(DataSettings, base)) or DEFAULT_CLIENTS)
    fixed = {_key(key): [_sent(_key(key), value) for value in values] for key, values in (grid or {}).items()}
    drawn = [f"{_key(key)}={text}" for key, text in (random or {}).items()]
    planned = sweeps.SweepPlan(base, fixed, drawn, samples, seeds, select)
    store = Store(Path(output_dir or DEFAULT_ROOT))
    with grid_display(quiet) as shown:
        states = Grid(planned.runs, store).run(shown, jobs)
    tables = planned.tables(store, f"Sweep: {len(planned.points)} points over {', '.join(planned.keys)}")
    done = [Run(store.folder(run)) for run in planned.runs if states[run.name] is State.FINISHED]
    return Sweep(tables, done, planned.points)


def _key(name: str) -> str:
    return name.replace("_", "-")


def _sent(key: str, value: Any) -> Any:
    """Return a setting that another process can be given."""
    plain = _plain(value)
    if isinstance(plain, type) or not isinstance(plain, (bool, int, float, str)):
        with parts.given(key, plain) as text:
            if key not in parts.GROUPS or text.startswith(f"{parts.PYTHON}:"):
                allowed = "each run of a sweep is a process of its own: put it into a file and give MODULE:NAME"
                raise ConfigError(key, parts.article(plain), allowed)
            return text
    return plain
