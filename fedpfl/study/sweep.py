"""Sweeps: the same run with other settings, on a grid, and with several seeds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..core import references
from ..core.errors import ConfigError, printable
from ..core.metrics import ACCURACY
from ..launch.shipped import value_of
from ..results.tables import Cell as TableCell
from ..results.tables import Spread, Table
from ..setup.all_settings import owners, require_used, tagged
from .grid import Cell, Grid, in_words, method_of
from .run_store import State, Store
from .table_layout import Column, Line, in_lines, lines_of, number_column

COLUMNS = ("personalised-best", "personalised-last", "global-best", "gigabytes", "seconds")
# The columns of the tables; the first one is the number by which the best point is chosen.
SELECT = {"test": COLUMNS, "validation": ("validation-best", "personalised-chosen", "gigabytes", "seconds")}
DASH = "–"  # a setting of another method than the point's
NO_NUMBER = "A dash: not run yet, failed, or no such number."


class SweepGrid(Grid):
    """Points in the space of settings, a row for each, whose runs are in ``store``.

    ``grid`` is like ``learning-rate=0.01,0.05``, or the values by key: every value with every value of the other keys.
    ``select`` orders runs by the best accuracy: ``test`` flatters the first of them, ``validation`` uses the samples
    that ``validation-fraction`` sets aside.
    """

    is_named = False

    def __init__(
        self,
        base: Mapping[str, Any],
        grid: Sequence[str] | Mapping[str, Sequence[Any]],
        seeds: int,
        store: Store,
        select: str = "test",
    ) -> None:
        if select not in SELECT:
            raise ConfigError("select", select, "must be one of " + ", ".join(SELECT))
        fixed = listed(grid)
        self.keys = [*fixed]
        if not self.keys and seeds < 2:
            raise ConfigError("grid", "", "give a grid, or several seeds (--seeds)")
        for key in self.keys:
            if key in tagged("idle"):
                raise ConfigError("grid", key, "changes no result: all its values would give the same run")
        points = [dict(zip(fixed, values, strict=True)) for values in itertools.product(*fixed.values())]
        # All methods are found before it is asked whose setting a key is.
        self.methods = sorted({method_of({**base, **point}) for point in points})
        self.points: list[dict[str, Any]] = []
        for point in (_own_settings(point, base) for point in points):
            if point not in self.points:
                self.points.append(point)
        require_used(fixed, self.methods)
        # Numbered, because words need not tell points apart.
        self._rows = {f"{number} {in_words(point)}".strip(): point for number, point in enumerate(self.points, 1)}
        super().__init__((Cell(row, "", {**base, **point}) for row, point in self._rows.items()), seeds, store)
        self.select, self._metrics = select, SELECT[select]
        runs = self.runs.values()
        if select == "validation":
            chosen_by = sorted({str(run.settings["choose-by"]) for run in runs})
            if len(chosen_by) > 1:
                raise ConfigError("select", select, f"needs the same choose-by in all runs, not {', '.join(chosen_by)}")
            if chosen_by[0] != ACCURACY:
                self._metrics = (f"validation:{chosen_by[0]}", *self._metrics[1:])
        if select == "validation" and not all(run.settings["validation-fraction"] for run in runs):
            raise ConfigError("select", select, "needs validation-fraction above 0, in all runs")

    @property
    def what(self) -> str:
        """What is swept, in words."""
        points = f"{len(self.points)} points over {', '.join(self.keys)}"
        return points if self.keys else f"{len(self.seeds)} seeds"

    def tables(self, title: str) -> list[Table]:
        """Return a table with a line for each run and, with several seeds, one with a line for each point.

        In both the best number, as ``select`` means it, comes first.
        """
        states, lines = self.states(), lines_of(self)
        of_runs = [replace(line, seeds=[seed]) for line in lines for seed in self.seeds]
        runs = [self.runs[line.row, line.column, line.seeds[0]] for line in of_runs]
        errors = {run.name: printable(self.store.reason(run)) for run in runs if states[run.name] is State.FAILED}

        def names(line: Line) -> list[str]:
            return [self.runs[line.row, line.column, seed].name for seed in line.seeds]

        def done(line: Line) -> str:
            return f"{sum(states[name] is State.FINISHED for name in names(line))}/{len(line.seeds)}"

        keys = [Column(key, partial(self._value, key)) for key in self.keys]
        numbers = [number_column(self, name, 3, self.metric(name).title) for name in self._metrics]
        error = Column("error", lambda line: next((errors[name] for name in names(line) if name in errors), None))
        reasons = [error] if errors else []
        singles = [replace(number, cell=partial(_mean, number)) for number in numbers]
        seeds = Column("seed", lambda line: line.seeds[0])
        about = [Column("state", lambda line: states[names(line)[0]].value), Column("run", lambda line: names(line)[0])]
        failed = [f"Failed: {name}: {reason}" for name, reason in errors.items()]
        lacking = [*self.failed_clients()]
        note = " ".join([NO_NUMBER, self._order(), *lacking, *failed])
        columns = [*keys, seeds, *singles, *reasons, *about]
        optional = [number.head for number in reversed(numbers[1:])]
        lowest = self.metric(self._metrics[0]).lowest_is_best
        tables = [in_lines(f"{title}, each run", columns, of_runs, singles[0], lowest, note, optional)]
        if len(self.seeds) > 1:
            mean = f"Mean ± standard deviation over {len(self.seeds)} seeds."
            note = " ".join([mean, NO_NUMBER, self._order(), *lacking])
            columns = [*keys, *numbers, *reasons, Column("runs done", done)]
            tables.append(in_lines(f"{title}, each point", columns, lines, numbers[0], lowest, note, optional))
        return tables

    def cell_in_words(self, row: str, column: str) -> str:
        """Return the settings of a point."""
        return in_words(self._rows[row]) or "each seed's run"

    def _value(self, key: str, line: Line) -> TableCell:
        return _text(self._rows[line.row].get(key, DASH))

    def _order(self) -> str:
        if self.select == "validation":
            return "Ordered by the score on validation samples, without test samples."
        return "Ordered by accuracy on test samples, so the first line is too optimistic (see --select validation)."


def _own_settings(point: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return a point without settings of other methods; points that differ only in these are one."""
    method, owned = method_of({**base, **point}), owners()
    return {key: value for key, value in point.items() if method in owned.get(key, (method,))}


def _mean(number: Column, line: Line) -> TableCell:
    cell = number.cell(line)
    return cell.mean if isinstance(cell, Spread) else cell


def _text(value: Any) -> str:
    if isinstance(value, str) and value.startswith(f"{references.PYTHON}:"):
        return references.short_name(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def listed(grid: Sequence[str] | Mapping[str, Sequence[Any]], option: str = "grid") -> dict[str, list[Any]]:
    """Return the values of each setting, given as ``key=value,value`` or by key."""
    if isinstance(grid, Mapping):
        return {key: list(values) for key, values in grid.items()}
    values_by_key = {}
    for text in grid:
        key, _, values = text.partition("=")
        if not key.strip() or not values:
            raise ConfigError(option, text, "must be key=value,value,… with texts in quotes or bare")
        values_by_key[key.strip()] = [value_of(key.strip(), part.strip()) for part in values.split(",")]
    return values_by_key
