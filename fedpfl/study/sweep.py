"""Sweeps: the same run with other settings, on a grid, at random, or both, and with several seeds."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import custom
from ..core.errors import ConfigError, printable
from ..core.files import private_folder, write_atomically
from ..core.metrics import ACCURACY
from ..core.rng import generator
from ..methods import find
from ..results.identity import changed
from ..results.run_folder import RunFolder
from ..results.tables import Cell, Spread, Table
from ..setup.all_settings import owners, tagged
from ..setup.config import RunSettings
from . import run_numbers
from .store import PlannedRun, State, Store, have_changed, plan

COLUMNS = ("personalised-best", "personalised-last", "global-best", "gigabytes", "seconds")
# The columns of the tables; the first one is the number by which the best point is chosen.
SELECT = {"test": COLUMNS, "validation": ("validation-best", "personalised-chosen", "gigabytes", "seconds")}
SWEEPS = "sweeps"  # the folder of their tables
RUNS = "runs.txt"
DASH = "–"  # a setting of another method than the point's
NO_NUMBER = "A dash: not run yet, failed, or no such number."
SIGNIFICANT = 4
LARGEST_INT = 2**53  # up to here floats, as bounds are read, are exact
RANGES = "key=log:LOW:HIGH, key=uniform:LOW:HIGH, key=int:LOW:HIGH or key=choice:A:B:…"


class SweepPlan:
    """Points in the space of settings, each run with the seeds 1 … ``seeds``.

    ``grid`` is like ``learning-rate=0.01,0.05``, or the values by key: every value with every value of the other keys.
    ``random`` is like ``fedprox-mu=log:0.001:1`` (``log``, ``uniform``, ``int``, ``choice``), drawn ``samples`` times
    for each point of the grid; the first samples do not depend on how many there are. ``select`` orders runs by the
    best accuracy: ``test`` flatters the first of them, ``validation`` uses the samples that ``validation-fraction``
    sets aside.
    """

    def __init__(
        self,
        base: Mapping[str, Any],
        grid: Sequence[str] | Mapping[str, Sequence[Any]],
        random: Sequence[str],
        samples: int,
        seeds: int,
        select: str = "test",
    ) -> None:
        fixed = listed(grid)
        drawn = dict(_split(text, "random", RANGES) for text in random)
        if both := set(fixed) & set(drawn):
            raise ConfigError("random", sorted(both), "must not be on the grid as well")
        self.keys = [*fixed, *drawn]
        if not self.keys and seeds < 2:
            raise ConfigError("grid", "", "give a grid, random settings, both, or several seeds (--seeds)")
        for key in self.keys:
            if key in tagged("idle"):
                option = "grid" if key in fixed else "random"
                raise ConfigError(option, key, "changes no result, so that all its values are one run")
        draws = [{key: _draw(key, text, sample) for key, text in drawn.items()} for sample in range(samples)]
        grids = [dict(zip(fixed, values, strict=True)) for values in itertools.product(*fixed.values())]
        points = [{**values, **draw} for values in grids for draw in (draws if drawn else [{}])]
        # All methods are found before it is asked whose setting a key is.
        self.methods = sorted({_method(point, base) for point in points})
        self.points: list[dict[str, Any]] = []
        for point in (_own_settings(point, base) for point in points):
            if point not in self.points:
                self.points.append(point)
        known = owners()
        for key in self.keys:
            if key in known and not {*known[key]} & {*self.methods}:
                allowed = f"is a setting of {', '.join(known[key])}, and the method is {' or '.join(self.methods)}"
                raise ConfigError("grid" if key in fixed else "random", key, allowed)
        self.seeds = range(1, seeds + 1)
        self._runs = [[plan({**base, **point}, seed) for seed in self.seeds] for point in self.points]
        self.select, self._columns = select, SELECT[select]
        if select == "validation" and any(run.settings["choose-by"] != ACCURACY for run in self.runs):
            self._columns = ("validation-score", *self._columns[1:])
        if select == "validation" and not all(run.settings["validation-fraction"] for run in self.runs):
            raise ConfigError("select", select, "needs validation-fraction above 0, in all runs")

    @property
    def runs(self) -> list[PlannedRun]:
        """All runs, those of the first seed first."""
        return [runs[at] for at in range(len(self.seeds)) for runs in self._runs]

    def tables(self, store: Store, title: str) -> list[Table]:
        """Return a table with a line for each run and, with several seeds, one with a line for each point.

        In both the best accuracy, as ``select`` means it, comes first.
        """
        pairs = [(point, run) for point, runs in zip(self.points, self._runs, strict=True) for run in runs]
        states = {run.name: store.state(run) for _, run in pairs}
        errors = {run.name: printable(store.reason(run)) for _, run in pairs if states[run.name] is State.FAILED}
        failed = [f"Failed: {name}: {reason}" for name, reason in errors.items()]
        error = ["error"] if errors else []
        columns = [run_numbers.find(name).title for name in self._columns]
        each = self._lines(
            store,
            [
                (point, [run], [run.settings["seed"]], [*_error_cells([run], errors), states[run.name].value, run.name])
                for point, run in pairs
            ],
        )
        rows = [[cell.mean if isinstance(cell, Spread) else cell for cell in cells] for cells in each]
        note = " ".join([NO_NUMBER, self._order(), *failed])
        found = [
            Table(f"{title}, each run", [*self.keys, "seed", *columns, *error, "state", "run"], rows, 3, note=note)
        ]
        if len(self.seeds) > 1:
            done = [sum(states[run.name] is State.FINISHED for run in runs) for runs in self._runs]
            points = zip(self.points, self._runs, done, strict=True)
            lines = self._lines(
                store,
                [
                    (point, runs, [], [*_error_cells(runs, errors), f"{count}/{len(runs)}"])
                    for point, runs, count in points
                ],
            )
            note = f"Mean ± standard deviation over {len(self.seeds)} seeds. {NO_NUMBER} {self._order()}"
            found.append(
                Table(f"{title}, each point", [*self.keys, *columns, *error, "runs done"], lines, 3, note=note)
            )
        return found

    def _lines(
        self, store: Store, places: Iterable[tuple[Mapping[str, Any], Sequence[PlannedRun], list[Cell], list[Cell]]]
    ) -> list[list[Cell]]:
        """Return a line for each place, the best first: settings of the point, more, the numbers of the runs, more."""
        lines: list[tuple[float, list[Cell]]] = []
        for point, runs, before, after in places:
            spreads = [_spread(name, runs, store) for name in self._columns]
            order = -math.inf if spreads[0] is None else spreads[0].mean
            lines.append((order, [*(_text(point.get(key, DASH)) for key in self.keys), *before, *spreads, *after]))
        return [cells for _, cells in sorted(lines, key=lambda line: -line[0])]

    def _order(self) -> str:
        if self.select == "validation":
            return "Ordered by the score on validation samples, without test samples."
        return "Ordered by accuracy on test samples, so the first line is too optimistic (see --select validation)."


def require_same_sweep(folder: Path, name: str, runs: Iterable[PlannedRun]) -> None:
    """Raise :class:`ConfigError` if the folder has tables of runs with other settings than these.

    With the same settings, whose files or modules have changed, the tables are made again.
    """
    if not (folder / "table.md").is_file():
        return
    if not (folder / RUNS).is_file():
        raise ConfigError("name", name, f"{folder} has tables, but not which runs they are of; give another name")
    if {key for _, key in _run_lines(folder)} - {run.key for run in runs}:
        raise ConfigError("name", name, f"{folder} has the tables of another sweep; give another name")


def changes(folder: Path, store: Store, runs: Iterable[PlannedRun]) -> str:
    """Return what has changed since the runs of an earlier time were made that have these settings; empty if nothing.

    Such runs are made again, under other names.
    """
    if not (folder / RUNS).is_file():
        return ""
    before, found, again = {key: name for name, key in _run_lines(folder)}, dict[str, None](), 0
    for run in runs:
        earlier = store.of_name(before.get(run.key, run.name))
        if earlier.path.name != run.name and earlier.resumable:
            again += 1
            task = earlier.task()
            found.update(dict.fromkeys(changed(task.get("written_by", {}), run.identity)))
            if task.get("data") != run.identity["files"].get("dataset", task.get("data")):
                found["what the dataset gives"] = None
    return f"{have_changed([*found])} since {again} of these runs were made: they are made again" if again else ""


def write_run_names(folder: Path, runs: Iterable[PlannedRun]) -> None:
    """Write the names of the runs into the folder of their tables, each with the hash of its settings alone."""
    private_folder(folder)
    write_atomically(folder / RUNS, "".join(f"{run.name} {run.key}\n" for run in runs).encode())


def read_run_names(folder: Path) -> list[str]:
    """Return the names of the runs whose tables lie in a folder, in the sweep's order."""
    return [name for name, _ in _run_lines(folder)]


def _run_lines(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / RUNS).read_text(encoding="utf-8").splitlines()
    return [(name, key) for name, _, key in (line.partition(" ") for line in lines)]


def sweep_names(store: Store) -> list[str]:
    """Return the names of the sweeps of which a store knows the runs."""
    return sorted(path.parent.name for path in store.tables(SWEEPS).glob(f"*/{RUNS}"))


def sweep_runs(store: Store, name: str) -> list[RunFolder]:
    """Return the folders of a sweep's runs, which need not exist yet."""
    if name not in sweep_names(store):
        known = ", ".join(sweep_names(store)) or "none"
        raise ConfigError("sweep", name, f"there is no such sweep in {store.root}; there are: {known}")
    return [RunFolder(store.root / "runs" / run) for run in read_run_names(store.tables(SWEEPS, name))]


def _method(point: Mapping[str, Any], base: Mapping[str, Any]) -> str:
    """Return the name of the method of a point."""
    return find(str({**base, **point}.get("method", RunSettings.method))).name


def _own_settings(point: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point without settings of other methods; points that differ only in these are one."""
    own, known = _method(point, base), owners()
    return {key: value for key, value in point.items() if own in known.get(key, (own,))}


def _spread(name: str, runs: Sequence[PlannedRun], store: Store) -> Spread | None:
    values = [store.measure(run, name) for run in runs]
    return run_numbers.find(name).spread([value for value in values if value is not None])


def _error_cells(runs: Sequence[PlannedRun], errors: Mapping[str, str]) -> list[Cell]:
    """Return a cell with the reason of the first failed run; no cell if no run of the sweep failed."""
    return [next((errors[run.name] for run in runs if run.name in errors), None)] if errors else []


def _text(value: Any) -> str:
    if isinstance(value, str) and value.startswith(f"{custom.PYTHON}:"):
        return custom.short_name(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split(text: str, option: str, allowed: str) -> tuple[str, str]:
    key, equals, rest = text.partition("=")
    if not equals or not key.strip() or not rest:
        raise ConfigError(option, text, f"must be {allowed}")
    return key.strip(), rest


def listed(grid: Sequence[str] | Mapping[str, Sequence[Any]], option: str = "grid") -> dict[str, list[Any]]:
    """Return the values of each setting, given as ``key=value,value`` or by key."""
    if isinstance(grid, Mapping):
        return {key: list(values) for key, values in grid.items()}
    pairs = [_split(text, option, "key=value,value,… with texts in quotes or bare") for text in grid]
    return {key: [toml_or_text(part.strip()) for part in rest.split(",")] for key, rest in pairs}


def toml_or_text(text: str) -> Any:
    """Read a value as TOML; what is no TOML is a text."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _draw(key: str, text: str, sample: int) -> Any:
    """Draw the value of a key in a sample; it depends on nothing else."""
    kind, *bounds = text.split(":")
    rng = generator(0, "sweep", key, sample)
    if kind == "choice" and bounds:
        return toml_or_text(bounds[int(rng.integers(len(bounds)))])
    try:
        low, high = map(float, bounds)
    except ValueError:
        raise ConfigError("random", f"{key}={text}", f"must be {RANGES}") from None
    if not low < high or (kind == "log" and low <= 0):
        raise ConfigError("random", f"{key}={text}", "needs LOW below HIGH, and LOW above 0 for log")
    # Also NumPy's limits: it draws from no range of infinite width, and whole numbers of 64 bits.
    if not math.isfinite(high - low) or (kind == "int" and max(-low, high) >= LARGEST_INT):
        raise ConfigError("random", f"{key}={text}", "has bounds that are too large")
    if kind == "log":
        return _rounded(math.exp(rng.uniform(math.log(low), math.log(high))))
    if kind == "uniform":
        return _rounded(float(rng.uniform(low, high)))
    if kind == "int":
        return int(rng.integers(int(low), int(high) + 1))
    raise ConfigError("random", f"{key}={text}", f"must be {RANGES}")


def _rounded(value: float) -> float:
    return float(f"{value:.{SIGNIFICANT}g}")
