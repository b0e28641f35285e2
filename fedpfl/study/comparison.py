"""A comparison of methods: a grid whose rows are methods and whose columns are data sets.

The settings of each method are chosen on validation samples; then it is run with every seed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from ..core.checksummed_files import to_toml
from ..core.errors import ConfigError
from ..core.files import write_atomically
from ..core.metrics import (
    ACCURACY,
    CLASSES,
    bounds,
    is_share,
    labels_of,
    lower_is_better,
    require_reachable,
    score_name,
)
from ..core.metrics import names as names_of
from ..launch.shipped import read_toml
from ..results.identity import has_same_clients
from ..results.tables import Cell as TableCell
from ..results.tables import Spread, Table
from ..setup.all_settings import absolute_places, owners, require_used, tagged
from ..setup.config import Config
from ..version import __version__
from . import run_numbers
from .analysis.registry import NoOptions, NotRecorded
from .analysis.repetitions import has_validation, other_code, other_threads
from .analysis.significance import interval, metric_of, significance
from .bundle import Bundle, require_whole
from .grid import Cell, Grid, in_words
from .run_store import Store
from .table_layout import Column, Line, cell_names, in_lines, lines_of, number_column, rows_by_columns

# Of each client's training samples, where settings are chosen and the user has not said how many.
VALIDATION_FRACTION = 0.2
_TRIED = {"tune": "tuned", "vary": "varied"}
NUMBERS = ("personalised-last", "worst-tenth-last", "megabytes", "seconds")
NUMBERS_WITH_VALIDATION = ("personalised-chosen", "worst-tenth-chosen", "megabytes", "seconds")
NAME = "comparison.toml"
# What the file of a comparison has.
_FILE: dict[str, Any] = {
    "methods": list, "seeds": int, "target": (int, float), "settings": dict, "tune": dict, "vary": dict, "on": list,
    "hashes": dict,
}  # fmt: skip
_KINDS = {list: "a list", int: "a whole number", (int, float): "a number", dict: "a table"}
_LISTED = {"methods": "methods", "on": "tables of settings"}
# Of runs with the setting new-clients.
NEW = f"{run_numbers.NEW_CLIENTS}:local-train"
# For people a column is in the largest of these units that its largest number reaches.
UNITS = {"MB": {"kB": 1e-3, "MB": 1.0, "GB": 1e3}, "s": {"s": 1.0, "min": 60.0, "h": 3600.0}}


class ComparisonGrid(Grid):
    """Methods by data sets, whose runs are in ``store``.

    ``methods`` has the text that the setting ``method`` has for each, by its name, and ``on`` the settings of each data
    set, by its name. ``tune`` has the values that are tried, every one with every other one, for the methods that have
    these settings, and ``vary`` those of which each makes a row of its own. Each row is run with the seeds 1 …
    ``seeds``.
    """

    def __init__(
        self,
        methods: Mapping[str, str],
        base: Mapping[str, Any],
        tune: Mapping[str, Sequence[Any]],
        seeds: int,
        on: Mapping[str, Mapping[str, Any]],
        store: Store,
        vary: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.tune, vary = tune, dict(vary or {})
        _require_tried(methods, base, tune, vary)
        owned = owners()
        base = {"validation-fraction": VALIDATION_FRACTION, **base} if tune else base
        rows: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...]]] = {}
        for name, text in methods.items():
            choose = {key: values for key, values in tune.items() if name in owned.get(key, (name,))}
            choices = (
                tuple(dict(zip(choose, values, strict=True)) for values in product(*choose.values())) if choose else ()
            )
            varied = {key: values for key, values in vary.items() if name in owned.get(key, (name,))}
            for values in product(*varied.values()):
                settings = dict(zip(varied, values, strict=True))
                rows[f"{name} {in_words(settings)}".strip()] = {"method": text, **settings}, choices
        cells = [
            Cell(row, column, {**base, **data, **settings}, choices=choices)
            for column, data in on.items()
            for row, (settings, choices) in rows.items()
        ]
        super().__init__([replace(cell, metrics=_after_the_end(cell.settings)) for cell in cells], seeds, store)


def _after_the_end(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the measurements after a run: of clients that it holds out, where its method has a model for them."""
    if not settings.get("new-clients"):
        return frozenset()
    config = Config.parse(dict(settings))
    return frozenset([NEW] * (config.method.aggregation.rule.one_model and config.training.kind.classes))


def _require_tried(
    methods: Collection[str], base: Mapping[str, Any], tune: Mapping[str, Sequence[Any]],
    vary: Mapping[str, Sequence[Any]],
) -> None:  # fmt: skip
    """Refuse settings that cannot be tuned or varied."""
    require_used({**tune, **vary}, methods)
    for option, key, values in [
        *(("tune", *pair) for pair in tune.items()),
        *(("vary", *pair) for pair in vary.items()),
    ]:
        if key in tagged("idle") or key in ("method", "seed"):
            raise ConfigError(option, key, f"is the same for all methods and cannot be {_TRIED[option]}")
        if not values:
            raise ConfigError(option, key, "needs at least one value")
    if both := tune.keys() & vary.keys():
        raise ConfigError("vary", min(both), "is also in --tune; a setting can be tuned or varied, not both")
    if tune and not base.get("validation-fraction", VALIDATION_FRACTION):
        raise ConfigError("tune", ", ".join(tune), "needs validation-fraction above 0")


def write(
    folder: Path, methods: Sequence[str], seeds: int, on: Mapping[str, Mapping[str, Any]], target: float | None,
    parts_of_file: Mapping[str, Mapping[str, Any]], bundle: Bundle | None = None,
) -> None:  # fmt: skip
    """Write a comparison as ``comparison.toml``; ``parts_of_file`` are the settings that are given, tuned and varied.

    With ``bundle`` it names the copies there of the files that the settings name, and has a hash of each.
    """
    placed = absolute_places if bundle is None else bundle.copied
    settings = parts_of_file["settings"] if len(on) > 1 else {**parts_of_file["settings"], **next(iter(on.values()))}
    parts = [to_toml({"methods": [*methods], "seeds": seeds, **({} if target is None else {"target": target})})]
    for name, values in {**parts_of_file, "settings": placed(settings)}.items():
        parts += [f"\n[{name}]\n{to_toml(values)}"] if values else []
    for name, data in on.items() if len(on) > 1 else ():
        parts.append(f"\n[[on]]\n{to_toml({'name': name, **placed(data)})}")
    if bundle is not None:
        parts.append(
            "\n[hashes]\n" + "".join(f'{json.dumps(name)} = "{digest}"\n' for name, digest in bundle.hashes.items())
        )
    text = f"# fedpfl {__version__}: `fedpfl compare {NAME}` runs this comparison again.\n{''.join(parts)}"
    write_atomically(folder / NAME, text.encode())


def from_file(path: Path) -> dict[str, Any]:
    """Read what :func:`write` has written; ``ConfigError`` for anything else."""
    content = read_toml(path, "METHOD...")
    for key, value in content.items():
        if key not in _FILE:
            raise ConfigError(key, value, f"{path.name}: must be one of the keys {', '.join(_FILE)}")
        if not isinstance(value, _FILE[key]) or isinstance(value, bool):
            raise ConfigError(key, value, f"{path.name}: must be {_KINDS[_FILE[key]]}")
    for key in ("methods", "on"):
        if not all(isinstance(entry, str if key == "methods" else dict) for entry in content.get(key, ())):
            raise ConfigError(key, content[key], f"{path.name}: must be a list of {_LISTED[key]}")
    for key in ("tune", "vary"):
        if wrong := [name for name, values in content.get(key, {}).items() if not isinstance(values, list)]:
            raise ConfigError(wrong[0], content[key][wrong[0]], f"{path.name}: {key}: must be a list of values")
    if not math.isfinite(content.get("target", 0)):
        raise ConfigError("target", content["target"], f"{path.name}: must be a finite number")
    if content.get("seeds", 1) < 1:
        raise ConfigError("seeds", content["seeds"], f"{path.name}: must be at least 1")
    require_whole(path, content.pop("hashes", {}))
    return content


def require_target(grid: ComparisonGrid, target: float | None) -> None:
    """Refuse a target that no run of a comparison can reach."""
    if target is not None:
        require_reachable("target", target, _metric(grid), target)


def tables(grid: ComparisonGrid, title: str, target: float | None = None) -> list[Table]:
    """Return a table with a line for each method, that of what a target costs, and those of the differences.

    Of several data sets there are tables of methods by data sets, as papers have them.
    """
    numbers, note = _numbers(grid), " ".join(_notes(grid))
    laid_out = [_methods(grid, title, numbers, note), *([] if target is None else [_costs(grid, target)])]
    # The number that decides, and the next one: an accuracy, or R², of all or of the worst tenth.
    signs = (-1 if lower_is_better(_metric(grid)) else 1, 1)
    pivots = (
        [_by_data(grid, *pair, note) for pair in zip(numbers[:2], signs, strict=True)] if len(grid.columns) > 1 else []
    )
    finished = grid.finished()
    try:
        return [*laid_out, *(significance(finished, NoOptions()).tables if finished else ()), *pivots]
    except NotRecorded:  # one method alone has finished
        return [*laid_out, *pivots]


def in_fitting_units(table: Table) -> Table:
    """Return a table of methods for people, with traffic and time in units that fit."""
    columns, rows = list(table.columns), [list(row) for row in table.rows]
    digits = [table.digits] * len(columns) if isinstance(table.digits, int) else list(table.digits)
    for head, units in UNITS.items():
        if head in columns and "reached" not in columns:
            place = columns.index(head)
            numbers = [cell for row in rows if isinstance(cell := row[place], Spread)]
            largest = max((cell.mean for cell in numbers), default=0.0)
            columns[place], size = [unit for unit in units.items() if unit[1] <= max(largest, min(units.values()))][-1]
            digits[place] = 1
            for row in rows:
                if isinstance(cell := row[place], Spread):
                    row[place] = Spread(cell.mean / size, None if cell.std is None else cell.std / size, cell.n)
    names = dict(zip(table.columns, columns, strict=True))
    optional = [names.get(head, head) for head in table.optional]
    return replace(table, columns=columns, rows=rows, digits=digits, optional=optional)


def _by_data(grid: ComparisonGrid, number: Column, sign: int, note: str) -> Table:
    """Return a table of methods by data sets with one number, the best of each data set marked.

    ``sign`` is 1 where the highest number is the best, and -1 where the lowest is.
    """

    def cell(row: str, column: str) -> TableCell:
        return number.cell(Line(row, column, grid.seeds))

    title, note = f"{number.head}, by method and data", f"{note.partition('. ')[0]}."
    return rows_by_columns(title, grid.rows, grid.columns, {"": cell}, number.digits, "method", note, sign)


def settings_used(grid: ComparisonGrid) -> Table:
    """Return the settings that are no defaults, of all runs or of one row: for the appendix of a paper.

    A value that not all data sets have is followed by those that have it.
    """
    rows = list[list[TableCell]]()
    of_row: dict[str, dict[str, dict[str, list[str]]]] = {}
    for (row, column, _), run in grid.runs.items():
        defaults = Config.parse({"method": run.settings["method"]}).flat()
        for key, value in run.settings.items():
            if key not in {"method", "seed", *tagged("idle")} and value != defaults.get(key):
                shown = Path(str(value)).name if key in tagged("file") else value  # no path of this machine
                columns = of_row.setdefault(key, {}).setdefault(row, {}).setdefault(str(shown), [])
                columns += [column] if column not in columns else []
    for key, each in sorted(of_row.items()):
        texts = {
            row: ", ".join(
                value if len(columns) == len(grid.columns) else f"{value} ({', '.join(columns)})"
                for value, columns in values.items()
            )
            for row, values in each.items()
        }
        same = len(texts) == len(grid.rows) and len({*texts.values()}) == 1
        rows += (
            [[key, "all", next(iter(texts.values()))]] if same else [[key, row, text] for row, text in texts.items()]
        )
    return Table("Settings that are not defaults", ["setting", "method", "value"], rows)


def _numbers(grid: ComparisonGrid) -> list[Column]:
    """Return the columns of numbers, first the one that decides."""
    kind, usual = (run_numbers.CHOSEN, NUMBERS_WITH_VALIDATION) if _validated(grid) else (run_numbers.LAST, NUMBERS)
    asked = dict.fromkeys(name for run in grid.planned() for name in names_of(str(run.settings["metrics"])))
    by = _metric(grid)
    first = usual[0] if by == ACCURACY else f"{kind}:{by}"
    wanted = [f"{kind}:{name}" for name in asked]
    # Custom metrics may be small numbers, and so may MB that fit nothing; of the others one decimal means something.
    digits = {"megabytes": 3, **dict.fromkeys(wanted, 4)}
    digits |= {} if is_share(ACCURACY, grid.loss) else dict.fromkeys(usual[:2], 4)
    new = [NEW] * any(NEW in cell.metrics for cell in grid.cells.values())
    names = dict.fromkeys([first, *usual[:2], *wanted, *new, *usual[2:]])
    return [number_column(grid, name, digits.get(name, 1)) for name in names]


def _methods(grid: ComparisonGrid, title: str, numbers: Sequence[Column], note: str) -> Table:
    """Return the table with a line for each method on each data set."""
    lead, *rest = numbers
    by = _metric(grid)
    in_percent = by == ACCURACY and is_share(ACCURACY, grid.loss)
    limits = (0.0, 100.0) if in_percent else bounds(by)
    name = f"{run_numbers.CHOSEN if _validated(grid) else run_numbers.LAST}:{by}"

    @cache
    def values(row: str, column: str) -> list[float]:
        return [(100 if in_percent else 1) * value for value in grid.values(name, row, column)]

    def bound(place: int) -> Callable[[Line], TableCell]:
        return lambda line: (interval(values(line.row, line.column), *limits) or (None, None))[place]

    fine = 1 if in_percent else 4
    between = [Column("95 % interval from", bound(0), fine), Column("to", bound(1), fine)]
    done = Column("runs done", lambda line: f"{len(values(line.row, line.column))}/{len(grid.seeds)}")
    columns = [*cell_names(grid), lead, *between, *rest, done]
    # The last to be left out is the one after the first, the accuracy of the worst tenth.
    optional = [done.head, *(number.head for number in reversed(rest))]
    return in_lines(title, columns, lines_of(grid), lead, lower_is_better(by), note, optional)


def _costs(grid: ComparisonGrid, target: float) -> Table:
    """Return rounds, traffic and time until the mean over the clients reaches a value in a test."""
    by = _metric(grid)
    names = {kind: f"{kind}:{by}={target:g}" for kind in run_numbers.COSTS}
    numbers = [number_column(grid, name, head=run_numbers.COSTS[kind][0]) for kind, name in names.items()]

    def reached(line: Line) -> str:
        return f"{len(grid.values(next(iter(names.values())), line.row, line.column))}/{len(grid.seeds)}"

    columns = [*cell_names(grid, chosen=False), *numbers, Column("reached", reached)]
    note = "Until the first test that reaches it, in the runs that do. MB: both ways, with tests. s: of training alone."
    title = f"Until {by} on test samples, mean over clients, is {target:g}"
    return in_lines(title, columns, lines_of(grid), note=note)


def _metric(grid: ComparisonGrid) -> str:
    return metric_of(run.settings for run in grid.planned())


def _validated(grid: ComparisonGrid) -> bool:
    """Return whether every run has validation scores, by which its round is chosen; data may bring samples for them."""
    runs = [folder for column in grid.columns for folder in grid.finished(column)]
    if not runs:
        return all(run.settings["validation-fraction"] for run in grid.planned())
    return has_validation(runs)


def _notes(grid: ComparisonGrid) -> Iterator[str]:
    """Yield how the numbers came about, and which runs failed."""
    yield from _remarks(grid)
    finished = grid.finished()
    yield from (*other_threads(finished), *other_code(finished))
    yield from grid.failures()


def _remarks(grid: ComparisonGrid) -> Iterator[str]:
    which = "round with the best validation score" if _validated(grid) else "last round"
    by = _metric(grid)
    what = by if by != ACCURACY else score_name(grid.loss).capitalize()
    yield f"{what} on test samples, in the {which}."
    seeds = len(grid.seeds)
    if seeds > 1:
        cut = "what is possible" if by != ACCURACY else "0 and 100 %" if is_share(by, grid.loss) else "1"
        interval_of = f"that of the mean, by Student's t, cut at {cut}"
        yield f"Mean ± standard deviation over {seeds} seeds; the 95 % interval is {interval_of}."
        if not all(has_same_clients(folder.config()) for folder in grid.finished()):
            yield "Each seed also divides the data among other clients, which ± covers; partition-seed = 1 keeps them."
    if grid.trials:
        among = "; ".join(f"{key} {', '.join(map(str, values))}" for key, values in grid.tune.items())
        yield f"Settings were chosen for each method with seed 1 on the validation samples, among {among}."
        most = max(map(len, grid.trials.values()))
        fewer = {row: len(grid.trials.get((row, column), ())) for row, column in grid.cells}
        less = "; ".join(f"{row}: {count}" for row, count in fewer.items() if count < most)
        yield f"That took {most} runs for each method and data set{less and f' ({less})'}."
    if any(cell.metrics for cell in grid.cells.values()):
        lacking = [row for (row, _), cell in grid.cells.items() if not cell.metrics]
        why = f"; {', '.join(dict.fromkeys(lacking))}: no model for them" if lacking else ""
        yield f"New clients did not take part: they trained what is personal after the last round{why}."
    elif any(cell.settings.get("new-clients") for cell in grid.cells.values()):
        why = (
            "no method has a model for them" if labels_of(grid.loss) == CLASSES else "they are tested on classes alone"
        )
        yield f"New clients did not take part, and there is no number of them: {why}."
    yield from grid.failed_clients()
    ends = []
    for (row, column), choice in grid.chosen.items():
        for key, value in choice.items():
            tried = grid.tune[key]
            if len(tried) > 1 and not isinstance(value, (str, bool)) and value in (min(tried), max(tried)):
                ends.append(f"{row}{column and f' on {column}'}: {key} {value}")
    if ends:
        yield f"At the edge of the tried values; a wider range may be better: {'; '.join(ends)}."
