"""Several runs: compared, run over a range of settings, or as a paper's table has them."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..core import references, user_code
from ..core.errors import ConfigError, DataError, FedpflError
from ..core.files import write_atomically
from ..core.settings import joined, plain
from ..data import DataSettings, default_clients
from ..engine.listener import Listener, require_listeners
from ..launch import simulation
from ..launch.plan import DEFAULT_CLIENTS, prepare, project_settings
from ..launch.progress import Display, GridLines
from ..launch.shipped import app_settings
from ..results.new_clients import try_new_clients
from ..results.run_folder import RunFolder
from ..results.tables import Table
from ..setup.all_settings import all_settings, code_in, functions, single
from ..setup.objects import as_setting, functions_as_text
from ..study import execution
from ..study.analysis.figure import Figure, write_data
from ..study.analysis.registry import NoOptions, NotRecorded
from ..study.analysis.significance import significance
from ..study.comparison import in_fitting_units
from ..study.execution import Job, Resources, Start, making_data
from ..study.grid import Grid
from ..study.run_store import DEFAULT_ROOT, PlannedRun, State, Store, require_files
from ..study.saved_grid import SavedGrid, made_name
from . import dataframes
from .figures import Plot, can_draw, require_drawing
from .runs import Run, report

if TYPE_CHECKING:
    from pandas import DataFrame

    from ..study.report.draw import Style
    from ..study.superlink_executor import SuperLinkExecutor

EXECUTORS = ("local", "flower")


class RunsFailed(FedpflError):
    """Runs of a grid failed; ``result`` has what the others recorded."""

    def __init__(self, message: str, result: Results) -> None:
        super().__init__(message)
        self.result = result


class Results:
    """What the runs of a grid have recorded.

    Attributes
    ----------
    tables : list of Table
        All tables, for people, spreadsheets and papers: ``table.markdown()``, ``table.csv()``, ``table.latex()``.
    runs : list of Run
        The runs that have finished.
    failed : dict of str to str
        Why runs failed, by their names.
    folder : Path or None
        Where the tables are written; None if they are not.
    """

    def __init__(
        self, tables: Sequence[Table], runs: Sequence[Run], failed: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.tables, self.runs, self.failed, self.folder = list(tables), list(runs), dict(failed or {}), folder

    def __repr__(self) -> str:
        return "\n".join(table.markdown() for table in self.tables)

    def _repr_markdown_(self) -> str:
        return repr(self)


ResultsT = TypeVar("ResultsT", bound=Results)


class Comparison(Results):
    """Runs side by side; those that differ in nothing but their seed count as repetitions of one.

    Attributes
    ----------
    tables, runs, failed, folder
        As of all :class:`Results`.
    chosen : dict of str to dict
        Of methods that were tuned: the settings that were chosen, by method, or by (method, data set) where there are
        several data sets.

    Examples
    --------
    >>> import fedpfl
    >>> settings = {"dataset": "digits", "model": "mlp", "num_clients": 4, "num_server_rounds": 1, "local_epochs": 1}
    >>> found = fedpfl.compare([fedpfl.run(method=method, quiet=True, **settings) for method in ("local", "fedavg")])
    >>> found.table["run"].tolist()
    ['local', 'fedavg']
    >>> found.conclusion
    "No difference is statistically significant ... Wilcoxon's signed-rank test over the clients."
    """

    def __init__(
        self, runs: Sequence[Run], tables: Sequence[Table] = (), chosen: Mapping[Any, Mapping[str, Any]] | None = None,
        failed: Mapping[str, str] | None = None, folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.runs, self.chosen = list(runs), {place: dict(choice) for place, choice in (chosen or {}).items()}
        self._numbers = list(tables) or [self._overview[0], *self._differences()]
        super().__init__([*map(in_fitting_units, self._numbers[:1]), *self._numbers[1:]], runs, failed, folder)

    @cached_property
    def _overview(self) -> tuple[Table, list[Figure], list[str], list[str]]:
        """The overview of the runs, the figures of their accuracies, their labels, and notes."""
        require_drawing("a comparison")
        from ..study.report.sections import comparison as overview

        with self._with_objects() as folders:
            return overview(folders)

    def _differences(self) -> list[Table]:
        try:
            with self._with_objects() as folders:
                return significance(folders, NoOptions()).tables
        except NotRecorded:  # no two kinds of runs have the same clients
            return []

    @contextmanager
    def _with_objects(self) -> Iterator[list[RunFolder]]:
        """Provide the folders of the runs, and the Python objects among their settings."""
        with ExitStack() as stack:
            for run in self.runs:
                stack.enter_context(run.objects())
            yield [run._folder for run in self.runs]

    @property
    def notes(self) -> list[str]:
        """What a reader has to know, for example that the runs are not of the same data."""
        return self._overview[3]

    @property
    def table(self) -> DataFrame:
        """A row for each method or kind of run: accuracies in percent, traffic, seconds; means and std over seeds."""
        return dataframes.from_table(self._numbers[0])

    @property
    def pairs(self) -> DataFrame:
        """A row for each two methods, with the same clients: mean difference in points, Wilcoxon's p, Holm's p.

        With several data sets these stand in the first level of the index.
        """
        frames = {table.title: dataframes.from_table(table) for table in self.tables[1:] if "p, Holm" in table.columns}
        if not frames:
            raise FedpflError("no two of these runs have the same clients, so differences cannot be tested")
        return next(iter(frames.values())) if len(frames) == 1 else dataframes.pandas("pairs").concat(frames)

    @property
    def until(self) -> DataFrame:
        """A row for each method: rounds, MB and seconds until ``target``; mean and std over the seeds that reach it."""
        tables = [table for table in self.tables if "reached" in table.columns]
        if not tables:
            raise FedpflError("no target was given: fedpfl.compare(…, target=0.9)")
        return dataframes.from_table(tables[0])

    @property
    def conclusion(self) -> str:
        """Which differences are statistically significant, in a sentence; empty where none can be tested."""
        return " ".join(table.note for table in self.tables[1:] if "reached" not in table.columns)

    def plot(self, title: str = "", style: Style | Sequence[Style] = ()) -> Plot:
        """Draw the personalised accuracies over the rounds, with bands of one standard deviation over seeds."""
        _, figures, labels, _ = self._overview
        if not figures:
            raise ConfigError("runs", len(self.runs), "none of these runs has a tested round yet")
        return Plot(figures[0], labels, title, style)

    def report(self, path: str | PathLike[str] = "report.html", title: str = "") -> Path:
        """Write a page about the runs that needs no network; return where it is."""
        return report(self.runs, path, title)

    def __repr__(self) -> str:
        return "\n".join([super().__repr__(), *self.notes])


class Sweep(Results):
    """The results of a sweep.

    Attributes
    ----------
    tables, runs, failed, folder
        As of all :class:`Results`; the tables have a column ``error``.
    points : list of dict
        The settings of each point.

    Examples
    --------
    >>> import fedpfl
    >>> class Mine(fedpfl.Method):
    ...     name = "mine"
    >>> found = fedpfl.sweep(
    ...     {"local_steps": [1, 2]}, method=Mine, dataset="digits", model="mlp", num_clients=4, num_server_rounds=1,
    ...     quiet=True,
    ... )
    >>> found.points
    [{'local-steps': 1}, {'local-steps': 2}]
    >>> len(found.table), len(found.runs), found.failed
    (2, 2, {})
    """

    def __init__(self, points: Sequence[dict[str, Any]], *results: Any, **named: Any) -> None:
        super().__init__(*results, **named)
        self.points = list(points)

    @property
    def table(self) -> DataFrame:
        """A row for each point, the best first."""
        return dataframes.from_table(self.tables[-1])

    @property
    def each(self) -> DataFrame:
        """A row for each run, the best first."""
        return dataframes.from_table(self.tables[0])

    def __repr__(self) -> str:
        return self.tables[-1].markdown()


class Experiment(Results):
    """The results of an experiment: a paper's table or figure.

    Attributes
    ----------
    tables, runs, failed, folder
        As of all :class:`Results`.
    figures : list of Figure
        The plain data of its figures.

    Examples
    --------
    >>> import fedpfl
    >>> results = fedpfl.experiment(
    ...     "feddecomp-table-1", rows=["Local"], columns=["CIFAR-10, α 0.5"], model="mlp", num_server_rounds=1,
    ...     quiet=True,
    ... )
    >>> len(results.table), len(results.runs)
    (1, 1)
    """

    def __init__(self, figures: Sequence[Figure], rows: Sequence[str], *results: Any, **named: Any) -> None:
        super().__init__(*results, **named)
        self.figures, self._rows = list(figures), list(rows)

    @property
    def table(self) -> DataFrame:
        """The first table."""
        return dataframes.from_table(self.tables[0])

    def plot(self, number: int = 0, title: str = "", style: Style | Sequence[Style] = ()) -> Plot:
        """Draw one of the figures."""
        if not 0 <= number < len(self.figures):
            raise ConfigError("number", number, f"must be below {len(self.figures)}, the number of figures")
        return Plot(self.figures[number], self._rows, title, style)


def with_runs(result: ResultsT, what: str) -> ResultsT:
    """Return the results of a grid; raise :class:`RunsFailed` with the reason of the first run if none finished."""
    if not result.runs:
        raise RunsFailed("no run of the {} finished; {}: {}".format(what, *next(iter(result.failed.items()))), result)
    return result


class _InProcessRun:
    """A run in this process, which has the Python objects that it needs, and what is measured after it."""

    def __init__(self, run: PlannedRun, store: Store, share: Resources, callbacks: Sequence[Listener]) -> None:
        again = str(store.folder(run).path) if store.folder(run).resumable else None
        values = tomllib.loads(store.prepare(run).read_text(encoding="utf-8"))
        trained = store.trained(run)
        self._outcome: dict[str, Any] = {"status": "finished:completed", "error": None}
        try:
            with making_data(run, store) as command:
                if command:
                    _carry_out(command)
            if not trained:
                planned = prepare(None, {}, values, again)
                simulation.run(planned, Display(run.rounds, quiet=True), share.workers, callbacks)
                trained = True
            for mode in run.modes:
                if not (place := store.measured(run, mode)).is_file():
                    write_atomically(place, json.dumps(try_new_clients(store.folder(run), mode)).encode())
        except FedpflError as error:
            self._outcome = {"status": "failed", "error": str(error), "trained": trained}

    def outcome(self) -> dict[str, Any]:
        """Return how the run ended."""
        return self._outcome

    def interrupt(self) -> bool:
        """Return that it has ended."""
        return True


def _carry_out(command: Sequence[str]) -> None:
    """Run a program; raise the last line that it says if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise DataError(f"{Path(command[1]).name}: {said[-1].removeprefix('error: ')}")


class Runs:
    """How the runs of a grid are made: their store, the Python objects among their settings, what starts them."""

    def __init__(
        self, stack: ExitStack, *, jobs: int = 1, workers: int | None = None,
        output_dir: str | PathLike[str] | None = None, executor: str = "local", federation: str | None = None,
        discard_models: bool = False, callbacks: Sequence[Listener] = (), quiet: bool = False,
    ) -> None:  # fmt: skip
        require_listeners("callbacks", callbacks)
        user_code.set_folder(Path())
        self._stack, self._jobs, self._workers, self._callbacks, self._quiet = stack, jobs, workers, callbacks, quiet
        self._elsewhere, self._discard_models = _elsewhere(executor, federation, jobs), discard_models
        self.store, self.objects = Store(Path(output_dir or DEFAULT_ROOT)), dict[str, object]()

    def texts(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings by their keys, with a text in the place of each Python object."""
        values = {key_of(key): value for key, value in settings.items() if value is not None}
        if "run-name" in values:
            raise ConfigError("run-name", values["run-name"], "cannot be set here: each run gets its own name")
        kinds = {"data": "dataset"} if not isinstance(values.get("data", ""), (str, PathLike)) else {}
        if kinds and "dataset" in values:
            raise ConfigError(
                "data", references.article(values["data"]), "is a data set, but the setting dataset names another one"
            )
        return {kinds.get(key, key): self.text_of(kinds.get(key, key), value) for key, value in values.items()}

    def listed(self, grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        """Return the values of settings by their keys, with a text in the place of each Python object."""
        return {key_of(key): [self.text_of(key_of(key), value) for value in values] for key, values in grid.items()}

    def text_of(self, key: str, value: Any) -> Any:
        """Return a setting's value, or the text that stands for a Python object."""
        value = plain(value)
        if isinstance(value, (bool, int, float, str)):
            return value
        if key in functions():
            return functions_as_text(key, value, lambda thing, _: self._object(key, thing))
        if key not in references.GROUPS and isinstance(value, (list, tuple, Mapping)):
            field = all_settings(look=False).get(key)
            # As in fedpfl.run: where a list is no text, the check of settings refuses it.
            return joined(value) if field and type(field.default) is str and key not in single() else value
        if key not in references.GROUPS:
            raise ConfigError(key, references.article(value), "must be a number, a text, true or false")
        return self._object(key, value)

    def _object(self, key: str, thing: object) -> str:
        same = (text for text, earlier in self.objects.items() if earlier is thing)
        text = next(same, None) or self._stack.enter_context(as_setting(key, thing))
        self.objects[text] = thing
        return text

    def opened(self, name: str, methods: Iterable[str], grid: Grid) -> SavedGrid:
        """Return the folder of a grid's tables, of this name or one that is made, and tell what has changed since."""
        folder = SavedGrid(self.store, name or made_name(methods, grid))
        if told := folder.open(grid):
            tell(told)
        return folder

    @property
    def here(self) -> bool:
        """Whether the runs are on this machine."""
        return self._elsewhere is None

    def run(self, grid: Grid) -> dict[str, str]:
        """Make the runs of a grid, and return why those that did not finish did not, by their names."""
        here = bool(self._callbacks) or any(not _is_in_package(thing) for thing in self.objects.values())
        if here and self._jobs > 1:
            raise ConfigError(
                "jobs", self._jobs, "must be 1 with callbacks or Python objects, whose runs are in this process"
            )
        if here and self._elsewhere:
            raise ConfigError(
                "executor", "flower", "takes neither callbacks nor Python objects, whose runs are in this process"
            )
        start, pause = self._start(here), None
        if self._elsewhere:
            self._elsewhere.require(grid.wanted())
            start, pause = self._elsewhere, self._elsewhere.look_seconds
        else:
            require_files(grid.planned())  # before the first run, not after hours
        try:
            shown = GridLines(self._quiet)
            states = execution.run_grid(grid, shown, start, self._jobs, self._discard_models, pause)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._interrupted()) from None
        return {name: self.store.reason(run) or state.value for run in grid.wanted()
                if (state := states[name := run.name]) is not State.FINISHED}  # fmt: skip

    def _start(self, here: bool) -> Start | None:
        """Return the function that starts a run on this machine; None for the default, a process of its own."""

        def start(run: PlannedRun, store: Store, share: Resources) -> Job:
            share = share if self._workers is None else share._replace(workers=self._workers)
            return _InProcessRun(run, store, share, self._callbacks) if here else execution.Process(run, store, share)

        return start if here or self._workers is not None else None

    def _interrupted(self) -> str:
        active = self._elsewhere.active() if self._elsewhere else []
        if not active:
            return "interrupted; the same command continues from here"
        return (
            f"interrupted; {len(active)} runs stay on the testbed: the same command waits for them again, and this "
            f"ends them: flwr stop {' '.join(active)}"
        )

    def made(self, grid: Grid) -> list[Run]:
        """Return the runs of a grid that have finished, with their names in it."""
        settings = {run.name: run.settings for run in grid.runs.values()}
        return [
            Run(
                folder if grid.is_named else RunFolder(folder.path),
                {text: self.objects[text] for _, text in code_in(settings[folder.path.name]) if text in self.objects},
            )
            for folder in grid.finished()
        ]  # fmt: skip


def _elsewhere(executor: str, federation: str | None, jobs: int) -> SuperLinkExecutor | None:
    """Return the testbed that takes the runs; None for this machine."""
    if executor not in EXECUTORS:
        raise ConfigError("executor", executor, f"must be one of {', '.join(EXECUTORS)}")
    if executor == "local":
        if federation:
            raise ConfigError("federation", federation, "does nothing without --executor flower")
        return None
    if not federation:
        raise ConfigError("federation", "", "names the SuperLink of --executor flower in Flower's config.toml")
    if jobs != 1:
        raise ConfigError("jobs", jobs, "must be 1 with --executor flower: a testbed has its devices once")
    from ..study.superlink_executor import SuperLinkExecutor

    return SuperLinkExecutor(federation, None if app_settings(Path()) is None else Path())


def of_project(*without: str) -> dict[str, Any]:
    """Return the settings of the project in this folder, and say which count."""
    values = project_settings(Path(), *without)
    if values:
        tell(f"of pyproject.toml: {', '.join(f'{key} = {value}' for key, value in values.items())}")
    return values


def tell(sentence: str) -> None:
    """Tell who starts runs what their results depend on."""
    print(f"note: {sentence}", file=sys.stderr)


def write_figures(figures: Sequence[Figure], names: Sequence[str], folder: Path) -> None:
    """Write the data of figures into a folder that is there, and draw them as SVG if matplotlib is installed."""
    write_data(figures, folder)
    if not figures:
        return
    if not can_draw():
        tell("the figures' data are written, but not drawn: pip install matplotlib")
        return
    from ..study.report import Section, write_plots

    write_plots(folder, "svg", [Section("", figures=[*figures])], names)


def number_of_clients(settings: Mapping[str, Any]) -> int:
    """Return the number of clients that is given, or all that the data name, or 10."""
    number = settings.get("num-clients")
    return int(number or default_clients(DataSettings.of(settings)) or DEFAULT_CLIENTS)


def key_of(name: str) -> str:
    """Return the key of a setting that is named in Python."""
    return name.replace("_", "-")


def _is_in_package(thing: object) -> bool:
    """Return whether a Python object is a class or function of this package, which every process has."""
    return hasattr(thing, "__qualname__") and str(thing.__module__).partition(".")[0] == "fedpfl"
