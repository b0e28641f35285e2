"""What starts runs: settings are checked before torch, which takes a second, is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr
from functools import partial, wraps
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from ..core import custom
from ..core.errors import ConfigError, FedpflError
from ..core.settings import checked, plain, setting
from ..setup.all_settings import functions
from ..setup.objects import as_setting

if TYPE_CHECKING:
    from ..engine.listener import Listener
    from .comparisons import Comparison, Sweep
    from .runs import Run
    from .settings import Settings, SweepSettings

Given = ParamSpec("Given")
Found = TypeVar("Found")


def _one_without_name(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Refuse arguments without a name, but for the first one, in a line."""

    @wraps(function)
    def call(*given: Given.args, **named: Given.kwargs) -> Found:
        if len(given) > 1:
            first = function.__code__.co_varnames[0]
            allowed = f'needs a name, as in dataset="digits"; only {first} may be given without one'
            raise ConfigError(function.__name__, plain(given[1]), allowed)
        return function(*given, **named)

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
    continue_from: str | PathLike[str] | Run | None = None,
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
    continue_from : str, path or Run, optional
        Begin a new run, with this one's settings, from its shared and personal arrays; clients' data may have changed.
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
    ...     method="fedper", dataset="digits", model="mlp", num_clients=4, num_server_rounds=2, quiet=True
    ... )
    >>> run
    <Run ...-fedper-digits: fedper on digits, 2 of 2 rounds, personalised ... %>
    >>> run.summary["personalised_accuracy"] > 0.5
    True
    """
    _require_counts(workers=workers)
    method = custom.as_named(method)
    # An earlier run may have a custom method, whose settings are not known yet.
    if resume is None and continue_from is None:
        named = {"method": method, "model": model, "dataset": dataset, "data": data, "num_clients": num_clients}
        _require_allowed([method], {**named, **settings})
    from ..data import fetch
    from ..launch import simulation
    from ..launch.plan import prepare
    from ..launch.progress import display
    from ..launch.shipped import app_settings
    from .runs import (  # fmt: skip
        Run,
        functions_as_text,
        how_to_resume,
        place_of,
        python_objects,
        require_listeners,
        stored_texts,
    )

    require_listeners(callbacks)
    given, objects = python_objects(method, model, dataset, data), dict[str, object]()
    with ExitStack() as stack:

        def text_of(kind: str, thing: object, before: str) -> str:
            text = stack.enter_context(as_setting(kind, thing, before, again=True))
            if text.startswith(f"{custom.PYTHON}:"):
                objects[text] = thing
            return text

        values = _by_key(settings)
        before = stored_texts(resume or continue_from, values)
        if continue_from is not None:
            before.pop("dataset", None)  # its data may be others
        for key in sorted(functions()):
            if key in values:
                values[key] = functions_as_text(values[key], partial(text_of, key), before.get(key, ""))
        for kind, thing in given.items():
            values[kind] = text_of(kind, thing, before.get(kind, ""))
        texts = {"method": method, "model": model, "dataset": dataset, "data": data}
        values.update({key: plain(text) for key, text in texts.items() if isinstance(text, (str, PathLike))})
        again, earlier = (place_of(stack, run) for run in (resume, continue_from))
        plan = prepare(None, app_settings(Path()) or {}, values, num_clients, again, continued=earlier)
        shown = display(plan.config.run.num_server_rounds, quiet)
        try:
            with redirect_stderr(StringIO()) if quiet else ExitStack():
                fetch(plan.config.data)
            simulation.run(plan, shown, workers, callbacks)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(how_to_resume(plan, objects)) from None
    return Run(plan.folder, objects)


def compare(
    methods: str | type[Any] | Run | Sequence[str | type[Any] | Run] = (),
    *others: str | type[Any] | Run,
    tune: Mapping[str, Sequence[Any]] | None = None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    target: float | None = None,
    seeds: int = 3,
    on: Sequence[Mapping[str, Any]] = (),
    jobs: int = 1,
    workers: int | None = None,
    output_dir: str | PathLike[str] | None = None,
    callbacks: Sequence[Listener] = (),
    quiet: bool = False,
    **settings: Unpack[SweepSettings],
) -> Comparison:
    """Run methods on the same data and test which differences are significant, as ``fedpfl compare`` does.

    Each method's settings are chosen on validation samples, with seed 1; then it is run with all seeds. What is
    done already is not run again.

    Parameters
    ----------
    methods, *others : str, class, or a sequence of these
        Methods: names, ``MODULE:NAME``, subclasses of :class:`fedpfl.Method`; also one text with commas. Or runs that
        were made before (:class:`Run`); then nothing is run.
    tune : mapping of str to sequence, optional
        Settings and the values among which each method's are chosen: ``{"learning_rate": [0.003, 0.01, 0.03]}``. A
        setting of one method is chosen for it alone. Needs validation samples: ``validation_fraction`` is 0.2
        unless given.
    vary : mapping of str to sequence, optional
        Settings of which each value makes a row of its own, for an ablation: ``{"ditto_pull": [0.1, 1, 10]}``. A
        setting of one method is varied for it alone.
    target : float, optional
        Also measure rounds, traffic and time until the accuracy, or the metric ``choose_by``, is this: 0.9.
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
    >>> import fedpfl
    >>> class Mine(fedpfl.Method):
    ...     name = "mine"
    ...
    ...     def is_shared(self, name, model):
    ...         return not name.startswith("head.")
    >>> found = fedpfl.compare(
    ...     ["local", Mine], tune={"learning_rate": [0.01, 0.03]}, seeds=2, dataset="digits", model="mlp",
    ...     num_clients=4, num_server_rounds=1, quiet=True,
    ... )
    >>> sorted(found.table["method"]), sorted(found.chosen)
    (['local', 'mine'], ['local', 'mine'])
    """
    _require_counts(seeds=seeds, jobs=jobs, workers=workers)
    first = [name.strip() for name in methods.split(",")] if isinstance(methods, str) else methods
    methods = [custom.as_named(method) for method in [*(first if isinstance(first, Sequence) else [first]), *others]]
    if len(methods) < 2 and not vary and all(isinstance(method, (str, type)) for method in methods):
        raise ConfigError("methods", methods, "a comparison needs two methods or more, or `vary`")
    if "method" in settings:
        raise ConfigError("method", settings["method"], "cannot be set here: `methods` lists what is compared")
    if not isinstance(on, Sequence) or not all(isinstance(own, Mapping) for own in on):
        raise ConfigError("on", on, 'must be a list with the settings of each data set: [{"dataset": "digits"}]')
    chosen_from = [{"method": method} for method in methods]
    _require_allowed(methods, settings, *on, *chosen_from, *_each("tune", tune or {}), *_each("vary", vary or {}))
    from ..launch.plan import project_settings
    from ..methods import find
    from ..study.comparison import comparison, tables
    from ..study.measured import in_words
    from ..study.store import State
    from .comparisons import Comparison, Runs, key_of, number_of_clients
    from .figures import require_drawing
    from .runs import Run

    require_drawing("a comparison", "matplotlib", "jinja2")  # before anything is run
    made = [run for run in methods if isinstance(run, Run)]
    if made:
        if len(made) < len(methods) or settings or tune or vary or on or target is not None:
            raise ConfigError("methods", [*methods], "must be methods alone, or runs alone without settings")
        return Comparison(made)
    with ExitStack() as stack:
        runs = Runs(stack, output_dir, jobs, workers, callbacks, quiet)
        base = {**project_settings(Path(), "method"), **runs.texts(settings)}
        given = [runs.text_of("method", method) for method in methods]
        named = {find(text).name: text for text in given}
        if len(named) < 2 and not vary:
            raise ConfigError("methods", given, "a comparison needs two methods or more, or `vary`")
        data_sets = {}
        for own in map(runs.texts, on or [{}]):
            data_sets[in_words(own)] = {**own, "num-clients": number_of_clients({**base, **own})}
        tried, varied = (
            {key_of(key): [runs.text_of(key_of(key), value) for value in values] for key, values in (of or {}).items()}
            for of in (tune, vary)
        )
        planned = comparison(named, base, tried, seeds, data_sets, runs.store, varied)
        states = runs.run(planned.wanted())
        planned.choose(final=True)
        states |= runs.run([run for run in planned.wanted() if run.name not in states])
        failed = [f"{run.name}: {runs.store.reason(run)}" for run in planned.wanted()
                  if states[run.name] is not State.FINISHED]  # fmt: skip
        if failed:
            raise FedpflError("; ".join(failed))
        found = tables(planned, f"Comparison of {', '.join(named)}", target=target)
        chosen = {row if len(data_sets) == 1 else (row, column): choice
                  for (row, column), choice in planned.chosen.items()}  # fmt: skip
        return Comparison(runs.made(planned.runs.values()), found, chosen)


@_one_without_name
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
    _require_counts(samples=samples, seeds=seeds, jobs=jobs, workers=workers)
    if "method" in settings:
        settings["method"] = custom.as_named(settings["method"])
    if isinstance(grid, dict) and isinstance(grid.get("method"), (list, tuple)):
        grid = {**grid, "method": [*map(custom.as_named, grid["method"])]}
    tried = [*_each("grid", grid or {})]
    methods = [settings.get("method"), *(point["method"] for point in tried if "method" in point)]
    if "method" not in (random or {}):
        _require_allowed(methods, settings, *tried, named=random or {})
    from ..launch.plan import project_settings
    from ..study.store import State
    from ..study.sweep import SELECT, SweepPlan
    from .comparisons import Runs, Sweep, key_of, number_of_clients

    if select not in SELECT:
        raise ConfigError("select", select, "must be one of " + ", ".join(SELECT))
    with ExitStack() as stack:
        runs = Runs(stack, output_dir, jobs, workers, callbacks, quiet)
        base = {**project_settings(Path()), **runs.texts(settings)}
        base.setdefault("num-clients", number_of_clients(base))
        drawn = [f"{key_of(key)}={text}" for key, text in (random or {}).items()]
        planned = SweepPlan(base, runs.listed(grid or {}), drawn, samples, seeds, select)
        states = runs.run(planned.runs)
        found = planned.tables(runs.store, f"Sweep: {len(planned.points)} points over {', '.join(planned.keys)}")
    failed = {name: runs.store.reason(run) for run in planned.runs if states[name := run.name] is not State.FINISHED}
    if len(failed) == len(planned.runs):
        raise FedpflError("no run of the sweep finished; {}: {}".format(*next(iter(failed.items()))))
    done = runs.made(run for run in planned.runs if run.name not in failed)
    points = [{key: runs.objects.get(value, value) for key, value in point.items()} for point in planned.points]
    return Sweep(found, done, points, failed)


def _each(option: str, tried: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yield each value that is tried of each setting; ``ConfigError`` for what are no settings with lists of values."""
    if not isinstance(tried, Mapping):
        raise ConfigError(option, tried, 'must be settings with the values to try: {"learning_rate": [0.01, 0.05]}')
    for key, values in tried.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ConfigError(option, {key: values}, f"must have a list of values: {{{key!r}: [{values!r}]}}")
        if not [*values]:
            raise ConfigError(option, key, "needs at least one value")
        yield from ({key: value} for value in values)


def _require_allowed(methods: Iterable[Any], *given: Mapping[str, Any], named: Mapping[str, Any] | None = None) -> None:
    """Refuse wrong settings of runs of these methods before anything slow is imported.

    Python objects, and settings of methods that are not of this package, are checked when they are known. ``named`` are
    settings whose values are.
    """
    if any(not isinstance(method or "", str) or custom.is_custom("method", method or "") for method in methods):
        return
    from ..setup.all_settings import check

    check({}, {}, _by_key(named or {}))
    for values in given:
        texts = {key: value for key, value in _by_key(values).items() if type(value) in (bool, int, float, str)}
        check(texts, {})


def _by_key(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): plain(value) for key, value in settings.items() if value is not None}


def _require_counts(**counts: Any) -> None:
    """Raise :class:`ConfigError` for an argument that is given and no number of something."""
    for key, value in counts.items():
        if value is not None:
            checked(key, plain(value), setting(1, "", minimum=0 if key == "workers" else 1))
