"""What starts runs: settings are checked before torch, which takes a second, is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, redirect_stderr
from functools import partial, wraps
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, Unpack, cast

from ..core import references
from ..core.errors import ConfigError
from ..core.settings import checked, plain, setting
from ..setup.all_settings import functions, require_used
from ..setup.objects import as_setting, functions_as_text


class RunOptions(TypedDict, total=False):
    """How the runs of a grid are made; :func:`sweep` explains each."""

    jobs: int
    workers: int | None
    output_dir: str | PathLike[str] | None
    executor: str
    federation: str | None
    discard_models: bool
    callbacks: Sequence[Listener]
    quiet: bool


if TYPE_CHECKING:
    from ..engine.listener import Listener
    from .comparisons import Comparison, Experiment, Sweep
    from .runs import Run
    from .settings import Settings, SweepSettings

    class GridArguments(RunOptions, SweepSettings, total=False):
        """What :func:`compare`, :func:`sweep` and :func:`experiment` take alike."""


TWO = "a comparison needs two methods or more, or a setting to vary (--vary)"


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _one_without_name(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Refuse arguments without a name, but for the first one, in a line."""

    @wraps(function)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        if len(arguments) > 1:
            first = function.__code__.co_varnames[0]
            allowed = f'needs a name, as in dataset="digits"; only {first} may be given without one'
            raise ConfigError(function.__name__, plain(arguments[1]), allowed)
        return function(*arguments, **named)

    return call


@_one_without_name
def run(
    method: str | type[Any] | None = None,
    *,
    model: Any = None,
    dataset: Any = None,
    data: Any = None,
    num_clients: int | None = None,
    workers: int | None = None,
    resume: str | PathLike[str] | Run | None = None,
    callbacks: Sequence[Listener] = (),
    quiet: bool = False,
    **settings: Unpack[Settings],
) -> Run:
    """Simulate a federation on this machine and wait for its end, as ``fedpfl run`` does.

    Parameters
    ----------
    method : str or class, optional
        A method's name, ``MODULE:NAME``, or a subclass of :class:`fedpfl.Method`.
    model : str or callable, optional
        A model's name, ``MODULE:NAME``, or a function that builds a module; it gets ``input_shape``, ``num_classes``
        and ``vocabulary`` if it takes arguments of these names.
    dataset, data : str, Dataset, list or callable, optional
        ``dataset`` is a data set's name or ``MODULE:NAME``, and ``data`` the path that some data sets need. Either may
        also be one data set, which is divided: a :class:`fedpfl.Dataset`, a pandas DataFrame, a torch Dataset or
        DataLoader, a Hugging Face Dataset, or arrays (x, y); with a test set of its own as a tuple (training, test), a
        dict of ``train`` and ``test``, or (x_train, y_train, x_test, y_test). Or a list, or a dict by names, with such
        data of each client; or a function that makes one of these.
    num_clients : int, optional
        Clients among which the data are divided; by default all owners that the data name, or 10.
    workers : int, optional
        Processes that run the clients, by default one for each core, none with a GPU. 0: this process runs them all, so
        that a debugger can step into them. The numbers are the same.
    resume : str, path or Run, optional
        Resume this run, with its settings.
    callbacks : sequence of Listener
        Follow the run on the server, in this order, after fedpfl's own.
    quiet : bool
        Show no progress.
    **settings
        All other settings of ``fedpfl config``, with underscores instead of dashes: ``learning_rate=0.05``.

    Returns
    -------
    Run
        The run, with what it has stored.

    Raises
    ------
    FedpflError
        A setting, the data or the model is not as it should be, or the run failed; in one line.
    KeyboardInterrupt
        It was interrupted; no process remains, and the message explains how to resume it.

    Notes
    -----
    As with ``fedpfl run``, what is not given is as the app in this folder has it (``[tool.flwr.app.config]`` in its
    ``pyproject.toml``), or else at its default; the same holds for :func:`compare` and :func:`sweep`.

    Examples
    --------
    >>> import fedpfl
    >>> run = fedpfl.run(
    ...     method="fedper", dataset="digits", model="mlp", num_clients=4, num_server_rounds=2, local_epochs=1,
    ...     quiet=True,
    ... )
    >>> run
    <Run ...-fedper-digits: fedper on digits, 2 of 2 rounds, personalised ... %>
    >>> run.summary["personalised_accuracy"] > 0.5
    True
    """
    workers = _count("workers", workers)
    method = references.as_named(method)
    # An earlier run may have a custom method, whose settings are not known yet.
    if resume is None:
        named = {"method": method, "model": model, "dataset": dataset, "data": data, "num_clients": num_clients}
        _require_allowed([method], {**named, **settings})
    from ..data import fetch
    from ..engine.listener import require_listeners
    from ..launch import simulation
    from ..launch.plan import prepare
    from ..launch.progress import Display
    from ..launch.shipped import app_settings
    from .runs import (  # fmt: skip
        Run,
        how_to_resume,
        place_of,
        python_objects,
        stored_texts,
    )

    require_listeners("callbacks", callbacks)
    python, objects = python_objects(method, model, dataset, data), dict[str, object]()
    with ExitStack() as stack:
        # Before those that are given now, which take the place of the earlier run's.
        again = place_of(stack, resume, objects)

        def text_of(kind: str, thing: object, before: str) -> str:
            text = stack.enter_context(as_setting(kind, thing, before, again=True))
            if text.startswith(f"{references.PYTHON}:"):
                objects[text] = thing
            return text

        values = _by_key(settings)
        before = stored_texts(resume, values)
        for key in sorted(functions()):
            if key in values:
                values[key] = functions_as_text(key, values[key], partial(text_of, key), before.get(key, ""))
        for kind, thing in python.items():
            values[kind] = text_of(kind, thing, before.get(kind, ""))
        texts = {"method": method, "model": model, "dataset": dataset, "data": data}
        values.update({key: plain(text) for key, text in texts.items() if isinstance(text, (str, PathLike))})
        if num_clients is not None:
            values["num-clients"] = plain(num_clients)
        plan = prepare(None, app_settings(Path()) or {}, values, again)
        require_used(values, [plan.config.method.name])
        shown = Display(plan.config.run.num_server_rounds, quiet)
        try:
            with redirect_stderr(StringIO()) if quiet else ExitStack():
                fetch(plan.config.data)
            simulation.run(plan, shown, workers, callbacks)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(how_to_resume(plan, objects)) from None
    return Run(plan.folder, objects)


def compare(
    methods: str | PathLike[str] | type[Any] | Run | Sequence[str | type[Any] | Run] = (),
    *others: str | type[Any] | Run,
    tune: Mapping[str, Sequence[Any]] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    target: float | None = None,
    seeds: int | None = None,
    on: Sequence[Mapping[str, Any]] = (),
    by: str = "",
    bundle: str | PathLike[str] = "",
    name: str = "",
    **more: Unpack[GridArguments],
) -> Comparison:
    """Run methods on the same data and test which differences are significant; `fedpfl compare` calls it.

    Each method's settings are chosen on validation samples, with seed 1; then it is run with all seeds. What is
    done already is not run again.

    Parameters
    ----------
    methods, *others : str, class, or a sequence of these
        Methods: names, ``MODULE:NAME``, subclasses of :class:`fedpfl.Method`; also one text with commas. The first may
        be the file ``comparison.toml`` of an earlier comparison, which is made again. Or runs that were made before
        (:class:`Run`); then nothing is run.
    tune : mapping of str to sequence, optional
        Settings and the values among which each method's are chosen: ``{"learning_rate": [0.003, 0.01, 0.03]}``. A
        setting of one method is chosen for it alone. Needs validation samples: ``validation_fraction`` is 0.2
        unless given.
    vary : mapping of str to sequence, optional
        Settings of which each value makes a row of its own, for an ablation: ``{"ditto_pull": [0.1, 1, 10]}``. A
        setting of one method is varied for it alone.
    target : float, optional
        Also measure rounds, traffic and time until the accuracy, or the metric ``choose_by``, is this: 0.9.
    seeds : int, optional
        Each method is run with the seeds 1 … n, by default 3.
    on : sequence of mapping, optional
        Settings of several data sets, with a ``name`` for tables if they have one: ``[{"dataset": "digits"},
        {"name": "MNIST, few", "dataset": "mnist", "max_samples": 1000}]``.
    by : str, optional
        Compare, choose and test by this metric: short for the settings ``metrics`` and ``choose_by``.
    bundle : str or path, optional
        A new folder to hand over: ``comparison.toml``, copies of the files that settings name and of your modules, and
        hashes of these. There ``fedpfl compare comparison.toml`` makes the comparison again.
    name, jobs, workers, output_dir, executor, federation, discard_models, callbacks, quiet
        As in :func:`sweep`.
    **settings
        What all runs have in common; Python objects as in :func:`run`.

    Returns
    -------
    Comparison
        Tables, differences with their tests, chosen settings, runs.

    Raises
    ------
    ConfigError
        A setting is not allowed.
    FedpflError
        A run failed; the others' numbers are in ``result``.

    Examples
    --------
    >>> import fedpfl
    >>> class Mine(fedpfl.Method):
    ...     name = "mine"
    ...
    ...     def is_shared(self, name, model):
    ...         return not name.startswith("head.")
    >>> found = fedpfl.compare(
    ...     ["local", Mine], tune={"learning_rate": [0.01, 0.03]}, seeds=2, dataset="digits", model="mlp",
    ...     num_clients=4, num_server_rounds=1, local_epochs=1, quiet=True,
    ... )
    >>> sorted(found.table["method"]), sorted(found.chosen)
    (['local', 'mine'], ['local', 'mine'])
    """
    seeds = _count("seeds", seeds)
    target = None if target is None else cast(float, checked("target", plain(target), setting(1.0, "")))
    options, settings = _apart(more)
    first = [methods] if isinstance(methods, str) or not isinstance(methods, Sequence) else methods
    parts = [
        part for method in (*first, *others) for part in (method.split(",") if isinstance(method, str) else [method])
    ]
    compared = [references.as_named(part.strip() if isinstance(part, str) else part) for part in parts]
    file = dict[str, Any]()
    if compared and isinstance(compared[0], (str, PathLike)) and str(compared[0]).endswith(".toml"):
        from ..study.comparison import from_file

        file = from_file(Path(compared[0]).expanduser())
        compared = [*map(references.as_named, file.get("methods", ())), *compared[1:]]
    varied = vary or file.get("vary")
    if len(compared) < 2 and not varied and all(isinstance(method, (str, type)) for method in compared):
        raise ConfigError("methods", compared, TWO)
    if "method" in settings:
        raise ConfigError("method", settings["method"], "cannot be set here: `methods` lists what is compared")
    if not isinstance(on, Sequence) or not all(isinstance(data, Mapping) for data in on):
        raise ConfigError("on", on, 'must be a list with the settings of each data set: [{"dataset": "digits"}]')
    of_data = [{key: value for key, value in data.items() if key != "name"} for data in on]
    if named := [data["method"] for data in of_data if "method" in data]:
        raise ConfigError("method", named[0], "cannot be set in on: `methods` lists what is compared")
    texts_of_methods = [{"method": method} for method in compared]
    tried = [*_each("tune", tune or {}), *_each("vary", vary or {})]
    _require_allowed(compared, settings, *of_data, *texts_of_methods, *tried)
    from ..core.metrics import ACCURACY, entries
    from ..data import DataSettings, with_partitioner
    from ..data.settings import in_words as data_in_words
    from ..methods import find
    from ..study.bundle import Bundle
    from ..study.comparison import ComparisonGrid, require_target, settings_used, tables, write
    from ..study.grid import in_words
    from ..study.saved_grid import write_tables
    from .comparisons import Comparison, Runs, RunsFailed, number_of_clients, of_project
    from .runs import Run

    stored_runs = [run for run in compared if isinstance(run, Run)]
    if stored_runs:
        if len(stored_runs) < len(compared) or settings or tune or vary or on or target is not None:
            raise ConfigError("methods", compared, "must be methods alone, or runs alone without settings")
        return Comparison(stored_runs)
    with ExitStack() as stack:
        runs = Runs(stack, **options)
        common = runs.texts(settings)
        base = {**({} if file else of_project("method")), **file.get("settings", {}), **common}
        texts = [runs.text_of("method", method) for method in compared]
        texts_by_name = {
            find(text).name: text if references.is_custom("method", text) else find(text).name for text in texts
        }
        if len(texts_by_name) < 2 and not varied:
            raise ConfigError("methods", texts, TWO)
        require_used(common, texts_by_name)
        if by:
            asked = entries(str(base.get("metrics", "")))
            metrics = asked if by in (*asked, ACCURACY) else [*asked, by]
            base.update({"choose-by": references.short_name(by), "metrics": ",".join(metrics)})
        data_sets = {}
        for data in on or file.get("on") or [{}]:
            values = runs.texts({key: value for key, value in data.items() if key != "name"})
            name_of_data = str(data.get("name", "")) or in_words(values)
            data_sets[name_of_data] = {**values, "num-clients": number_of_clients({**base, **values})}
        tuning, varying = (
            {**file.get(key, {}), **runs.listed(values or {})} for key, values in (("tune", tune), ("vary", vary))
        )
        seeds, target = seeds or file.get("seeds", 3), file.get("target") if target is None else target
        grid = ComparisonGrid(texts_by_name, base, tuning, seeds, data_sets, runs.store, varying)
        require_target(grid, target)
        folder = runs.opened(name, texts_by_name, grid)
        if not runs.objects:  # which no file can name
            settings_of_file = {"settings": base, "tune": tuning, "vary": varying}
            facts = ([*texts_by_name.values()], seeds, data_sets, target, settings_of_file)
            write(folder.path, *facts)
            if bundle:
                write(Path(bundle), *facts, Bundle(Path(bundle), grid.planned()))
        elif bundle:
            raise ConfigError("bundle", str(bundle), "needs methods, models and data that a file can name: MODULE:NAME")
        failed = runs.run(grid)
        folder.note(grid)
        title = f"{', '.join(texts_by_name)} on {len(data_sets)} data sets"
        if len(data_sets) == 1:
            values = {**base, **next(iter(data_sets.values()))}
            division, how = DataSettings.of(values), f"{values['num-clients']} clients"
            if runs.here:  # and not data that only a testbed's devices have
                how = f"{data_in_words(with_partitioner(division))}, {how}"
            title = f"{', '.join(texts_by_name)} on {division.dataset} ({how})"
        chosen = {row if len(data_sets) == 1 else (row, column): choice
                  for (row, column), choice in grid.chosen.items()}  # fmt: skip
        result = Comparison(runs.made(grid), tables(grid, title, target), chosen, failed, folder.path)
        write_tables([*result.tables, settings_used(grid)], folder.path)
    if failed:
        raise RunsFailed("; ".join(f"{name}: {reason}" for name, reason in failed.items()), result)
    return result


@_one_without_name
def sweep(
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int = 1,
    select: str = "test",
    name: str = "",
    **more: Unpack[GridArguments],
) -> Sweep:
    """Run what is not finished of a sweep over settings; `fedpfl sweep` calls it.

    Each run is a process. With callbacks, or Python objects among the settings, the runs are in this process one after
    the other. A run with a Python object that no other process could import is not found again by a later sweep.

    Parameters
    ----------
    grid : mapping of str to sequence, optional
        Settings and their values; every value with all of the others: ``{"learning_rate": [0.01, 0.05]}``.
    seeds : int
        Each point is run with the seeds 1 … n.
    select : {"test", "validation"}
        Whose accuracy puts the lines in order.
    name : str, optional
        Name of the folder of the tables, by which ``fedpfl show``, ``report`` and ``analyse`` know the runs; by default
        made from methods and settings.
    jobs : int, optional
        Runs side by side, by default 1.
    workers : int, optional
        Processes that run the clients of a run, by default one for each core that the run has.
    output_dir : str or path, optional
        Folder of all runs of sweeps, where finished runs are found again. Calls on several machines that see the folder
        share the runs.
    executor : {"local", "flower"}, optional
        This machine, the default, or the devices of the SuperLink ``federation``, one run after the other.
    federation : str, optional
        The SuperLink, as Flower's config.toml names it.
    discard_models : bool, optional
        Delete the models and the clients' state of each finished run.
    callbacks : sequence of Listener, optional
        Follow the runs, one after the other.
    quiet : bool, optional
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

    Examples
    --------
    >>> import fedpfl
    >>> from torch import nn
    >>> def linear(num_classes):
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
    >>> found = fedpfl.sweep(
    ...     {"local_epochs": [1, 2]}, method="local", dataset="digits", model=linear, num_clients=4,
    ...     num_server_rounds=1, quiet=True,
    ... )
    >>> found.table["local-epochs"].sort_values().tolist()
    [1, 2]
    """
    seeds = _count("seeds", seeds) or 1
    options, settings = _apart(more)
    if "method" in settings:
        settings["method"] = references.as_named(settings["method"])
    if isinstance(grid, dict) and isinstance(grid.get("method"), (list, tuple)):
        grid = {**grid, "method": [*map(references.as_named, grid["method"])]}
    tried = [*_each("grid", grid or {})]
    methods = [settings.get("method"), *(point["method"] for point in tried if "method" in point)]
    _require_allowed(methods, settings, *tried)
    from ..study.saved_grid import write_tables
    from ..study.sweep import SweepGrid
    from .comparisons import Runs, Sweep, number_of_clients, of_project, with_runs

    with ExitStack() as stack:
        runs = Runs(stack, **options)
        common = runs.texts(settings)
        base = {**of_project(), **common}
        base.setdefault("num-clients", number_of_clients(base))
        planned = SweepGrid(base, runs.listed(grid or {}), seeds, runs.store, select)
        require_used({key: value for key, value in common.items() if key != "method"}, planned.methods)
        folder = runs.opened(name, planned.methods, planned)
        failed = runs.run(planned)
        tables = planned.tables(f"Sweep {folder.name}: {planned.what}")
        write_tables(tables, folder.path)
        points = [{key: runs.objects.get(value, value) for key, value in point.items()} for point in planned.points]
        result = Sweep(points, tables, runs.made(planned), failed, folder.path)
    return with_runs(result, "sweep")


@_one_without_name
def experiment(
    name: str | PathLike[str],
    *,
    scale: str = "smoke",
    seeds: int | None = None,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    **more: Unpack[GridArguments],
) -> Experiment:
    """Run what is not finished of an experiment, a paper's table or figure; `fedpfl experiment run` calls it.

    Parameters
    ----------
    name : str or path
        Name of an experiment (``fedpfl experiment list``), or its file.
    scale : {"smoke", "small", "paper"}
        How large it is run.
    seeds : int, optional
        Each cell is run with the seeds 1 … n, by default as many as the scale has.
    rows, columns : sequence of str
        Only these; then no tables are written.
    jobs, workers, output_dir, executor, federation, discard_models, callbacks, quiet
        As in :func:`sweep`.
    **settings
        Settings that override the file.

    Returns
    -------
    Experiment
        Its tables, figures and runs.

    Raises
    ------
    ConfigError
        A setting is not allowed.
    FedpflError
        No run has finished; the reason of the first.

    Examples
    --------
    >>> import fedpfl
    >>> table = fedpfl.experiment(
    ...     "feddecomp-table-1", rows=["FedAvg"], columns=["CIFAR-10, α 0.5"], model="mlp", num_server_rounds=1,
    ...     quiet=True,
    ... )
    >>> len(table.runs), table.failed
    (1, {})
    """
    seeds = _count("seeds", seeds)
    options, settings = _apart(more)
    _require_allowed([settings.get("method")], settings)
    from ..study.experiment import ExperimentGrid, read
    from ..study.paper_tables import tables_and_figures
    from ..study.saved_grid import write_tables
    from .comparisons import Experiment, Runs, with_runs, write_figures

    with ExitStack() as stack:
        runs = Runs(stack, **options)
        common = runs.texts(settings)
        planned = ExperimentGrid(read(str(name)).only(scale, rows, columns), scale, runs.store, seeds, common)
        require_used(common, sorted({cell.method for cell in planned.cells.values()}))
        failed = runs.run(planned)
        tables, figures = tables_and_figures(planned)
        folder = None if rows or columns else runs.store.tables(planned.experiment.name, scale)
        if folder:
            write_tables(tables, folder)
            write_figures(figures, planned.extent.rows, folder)
        result = Experiment(figures, planned.extent.rows, tables, runs.made(planned), failed, folder)
    return with_runs(result, "experiment")


def _apart(more: Mapping[str, object]) -> tuple[RunOptions, dict[str, Any]]:
    """Return how runs are made, and the settings of all of them."""
    named = {key: value for key, value in more.items() if key in RunOptions.__annotations__}
    counts = {key: _count(key, named[key]) for key in ("jobs", "workers") if key in named}
    options = cast(RunOptions, {**named, **counts})
    return options, {key: value for key, value in more.items() if key not in options}


def _each(option: str, tried: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield each value that is tried of each setting; ``ConfigError`` for what are no settings with lists of values."""
    if not isinstance(tried, Mapping):
        raise ConfigError(option, tried, 'must be settings with the values to try: {"learning_rate": [0.01, 0.05]}')
    for key, values in tried.items():
        # A set has no order, and an iterator is empty when it is read again.
        if isinstance(values, (str, Mapping, Set, Iterator)) or not isinstance(values, Iterable):
            raise ConfigError(option, {key: values}, f"must have a list of values: {{{key!r}: [{values!r}]}}")
        if not [*values]:
            raise ConfigError(option, key, "needs at least one value")
        yield from ({key: value} for value in values)


def _require_allowed(methods: Iterable[Any], *settings: Mapping[str, Any]) -> None:
    """Refuse wrong settings of runs of these methods before anything slow is imported.

    Python objects, and settings of methods that are not of this package, are checked when they are known.
    """
    from ..core import user_code
    from ..launch.shipped import app_settings
    from ..setup.all_settings import check

    user_code.set_folder(Path())
    if any(not isinstance(method or "", str) or references.is_custom("method", method or "") for method in methods):
        return
    app = app_settings(Path()) or {}
    for values in settings:
        texts = {key: value for key, value in _by_key(values).items() if type(value) in (bool, int, float, str)}
        check(texts, app)


def _by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): plain(value) for key, value in settings.items() if value is not None}


def _count(key: str, value: Any) -> int | None:
    """Return an argument that is a number of something, as Python's; raise :class:`ConfigError` for another one."""
    if value is None:
        return None
    return cast(int, checked(key, plain(value), setting(1, "", minimum=0 if key == "workers" else 1)))
