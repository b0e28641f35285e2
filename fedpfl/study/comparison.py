"""A comparison of methods: an experiment whose rows are methods and whose columns are data sets.

The settings of each method are chosen on validation samples; then it is run with every seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, printable
from ..core.files import write_atomically
from ..core.metrics import ACCURACY, TARGETS, known, labels_of, lower_is_better
from ..core.metrics import names as names_of
from ..core.stored import to_toml
from ..launch.shipped import read_toml
from ..results.same_clients import has_same_clients
from ..results.tables import Cell, Spread, Table
from ..setup.all_settings import absolute_places, owners, tagged
from ..setup.config import Config
from ..version import __version__
from . import run_numbers
from .analysis.registry import NoOptions, NotRecorded
from .analysis.repetitions import other_code, other_threads
from .analysis.significance import has_validation, interval, metric_of, significance
from .description import Experiment
from .measured import Measured, chosen_in_words, in_words
from .store import PlannedRun, Store

# Of each client's training samples, where settings are chosen and the user has not said how many.
VALIDATION_FRACTION = 0.2
_TRIED = {"tune": "tuned", "vary": "varied"}
SCALE = "paper"  # the name of an experiment's whole size, which a comparison always has
NUMBERS = ("personalised-last", "worst-tenth-last", "megabytes", "seconds")
NUMBERS_WITH_VALIDATION = ("personalised-chosen", "worst-tenth-chosen", "megabytes", "seconds")
# Columns of a paper's tables after the one that decides, which two bounds follow: itself and the worst tenth.
_PIVOTED = (0, 3)
# What the file of a comparison has.
_FILE: dict[str, Any] = {
    "methods": list, "seeds": int, "target": (int, float), "settings": dict, "tune": dict, "vary": dict, "on": list,
}  # fmt: skip
_OF = {"methods": "methods", "on": "tables of settings"}
# For people a column is in the largest of these units that its largest value reaches.
UNITS = {"megabytes": {"kB": 1e-3, "MB": 1.0, "GB": 1e3}, "seconds": {"s": 1.0, "min": 60.0, "h": 3600.0}}


def comparison(
    methods: Mapping[str, str],
    base: Mapping[str, Any],
    tune: Mapping[str, Sequence[Any]],
    seeds: int,
    on: Mapping[str, Mapping[str, Any]],
    store: Store,
    vary: Mapping[str, Sequence[Any]] | None = None,
) -> Measured:
    """Plan a comparison, whose runs are in ``store``.

    ``methods`` has the text that the setting ``method`` has for each, by its name, and ``on`` the settings of each data
    set, by its name. ``tune`` has the values that are tried, every one with every other one, for the methods that have
    these settings, and ``vary`` those of which each makes a row of its own. Each row is run with the seeds 1 …
    ``seeds``.
    """
    owned, vary = owners(), dict(vary or {})
    for option, key, values in [
        *(("tune", *pair) for pair in tune.items()),
        *(("vary", *pair) for pair in vary.items()),
    ]:
        if key in owned and not methods.keys() & {*owned[key]}:
            owner = ", ".join(owned[key])
            raise ConfigError(option, key, f"is a setting of {owner}, and the methods are {', '.join(methods)}")
        if key in tagged("idle") or key in ("method", "seed"):
            raise ConfigError(option, key, f"is the same for all methods and cannot be {_TRIED[option]}")
        if not values:
            raise ConfigError(option, key, "needs at least one value")
    if both := tune.keys() & vary.keys():
        raise ConfigError("vary", min(both), "is tuned; a setting is tuned or varied")
    if tune and not base.get("validation-fraction", VALIDATION_FRACTION):
        raise ConfigError("tune", ", ".join(tune), "needs validation-fraction above 0")
    base = {"validation-fraction": VALIDATION_FRACTION, **base} if tune else base
    rows: dict[str, dict[str, Any]] = {}
    for name, text in methods.items():
        choose = {key: [*of] for key, of in tune.items() if name in owned.get(key, (name,))}
        own = {key: of for key, of in vary.items() if name in owned.get(key, (name,))}
        for values in product(*own.values()):
            given = dict(zip(own, values, strict=True))
            rows[f"{name} {in_words(given)}".strip()] = {"method": text, **given, "choose": choose}
    described = {
        "title": "Comparison", "paper": "", "metrics": ["personalised-last"], "seeds": seeds, "settings": dict(base),
        "rows": rows, "columns": {name: {**settings} for name, settings in on.items()},
        "choose": {key: [*values] for key, values in tune.items()},
        "scale": {SCALE: {"rows": [*rows], "columns": [*on]}},
    }  # fmt: skip
    return Measured(Experiment.model_validate(described, context=Path("compare")), SCALE, store, seeds)


def write(
    folder: Path, methods: Sequence[str], seeds: int, on: Mapping[str, Mapping[str, Any]], target: float | None,
    given: Mapping[str, Mapping[str, Any]],
) -> None:  # fmt: skip
    """Write a comparison as ``comparison.toml``; ``given`` are the settings that are given, tuned and varied."""
    settings = given["settings"] if len(on) > 1 else {**given["settings"], **next(iter(on.values()))}
    parts = [to_toml({"methods": [*methods], "seeds": seeds, **({} if target is None else {"target": target})})]
    for name, values in {**given, "settings": absolute_places(settings)}.items():
        parts += [f"\n[{name}]\n{to_toml(values)}"] if values else []
    for name, own in on.items() if len(on) > 1 else ():
        parts.append(f"\n[[on]]\n{to_toml({'name': name, **absolute_places(own)})}")
    text = f"# fedpfl {__version__}: `fedpfl compare FILE` runs this comparison again.\n{''.join(parts)}"
    write_atomically(folder / "comparison.toml", text.encode())


def from_file(path: Path) -> dict[str, Any]:
    """Read what :func:`write` has written; ``ConfigError`` for anything else."""
    found = read_toml(path, "METHOD...")
    for key, value in found.items():
        if key not in _FILE or not isinstance(value, _FILE[key]) or isinstance(value, bool):
            raise ConfigError(key, value, f"{path.name}: a comparison has {', '.join(_FILE)}")
    for key in ("methods", "on"):
        if not all(isinstance(one, str if key == "methods" else dict) for one in found.get(key, ())):
            raise ConfigError(key, found[key], f"{path.name}: must be a list of {_OF[key]}")
    for key in ("tune", "vary"):
        if wrong := [name for name, values in found.get(key, {}).items() if not isinstance(values, list)]:
            raise ConfigError(wrong[0], found[key][wrong[0]], f"{path.name}: {key}: must be a list of values")
    if found.get("seeds", 1) < 1:
        raise ConfigError("seeds", found["seeds"], f"{path.name}: must be at least 1")
    return found


def first_runs(measured: Measured) -> list[PlannedRun]:
    """Return the runs that do not depend on the number of seeds, nor on what is chosen."""
    tried = [run for of in measured.trials.values() for _, run in of]
    return tried + [
        run for (*place, seed), run in measured.runs.items() if seed == 1 and tuple(place) not in measured.trials
    ]


def tables(measured: Measured, title: str, fitting: bool = False, target: float | None = None) -> list[Table]:
    """Return a table with a line for each method, that of what a target costs, and those of the differences.

    Of several data sets there are tables of methods by data sets, as papers have them.
    Traffic is in MB and time in seconds, or both in units that fit.
    """
    whole, first = _methods(measured, title, fitting)
    found = [whole, *([] if target is None else [_costs(measured, target)])]
    places = [first + place for place in _PIVOTED] if "data" in whole.columns else []
    last = [_by_data(measured, whole, place) for place in places]
    finished = measured.finished()
    try:
        return [*found, *(significance(finished, NoOptions()).tables if finished else ()), *last]
    except NotRecorded:  # one method alone has finished
        return [*found, *last]


def _by_data(measured: Measured, table: Table, column: int) -> Table:
    """Return a column of a table of methods, with a column for each data set."""
    digits = table.digits if isinstance(table.digits, int) else table.digits[column]
    cells = {(row[0], row[1]): row[column] for row in table.rows}
    rows = [[row, *(cells.get((row, data)) for data in measured.at.columns)] for row in measured.at.rows]
    sign = -1 if lower_is_better(_metric(measured)) else 1
    marked = dict.fromkeys(range(1, 1 + len(measured.at.columns)), sign)
    title, note = f"{table.columns[column]}, by method and data", f"{table.note.partition('. ')[0]}."
    return Table(title, ["method", *measured.at.columns], rows, digits, note=note, marked=marked)


def settings_used(measured: Measured) -> Table:
    """Return the settings that are no defaults, of all runs or of one row: for the appendix of a paper."""
    rows = list[list[Cell]]()
    of_row: dict[str, dict[str, list[str]]] = {}
    for (row, *_), run in measured.runs.items():
        defaults = Config.parse({"method": run.settings["method"]}).flat()
        for key, value in run.settings.items():
            if key not in {"method", "seed", *tagged("idle")} and value != defaults.get(key):
                of_row.setdefault(key, {}).setdefault(row, []).append(str(value))
    for key, each in sorted(of_row.items()):
        texts = {row: ", ".join(dict.fromkeys(values)) for row, values in each.items()}
        same = len(texts) == len(measured.at.rows) and len({*texts.values()}) == 1
        rows += [[key, "all", next(iter(texts.values()))]] if same else [[key, row, of] for row, of in texts.items()]
    return Table("Settings that are not defaults", ["setting", "method", "value"], rows)


def _methods(measured: Measured, title: str, fitting: bool) -> tuple[Table, int]:
    """Return the table of methods, and which column has the number that decides."""
    kind, own = (run_numbers.CHOSEN, NUMBERS_WITH_VALIDATION) if _validated(measured) else (run_numbers.LAST, NUMBERS)
    asked = dict.fromkeys(name for run in measured.planned() for name in names_of(str(run.settings["metrics"])))
    virtual = ["seconds-virtual"] if any(run.settings["devices-model"] for run in measured.planned()) else []
    by = _metric(measured)
    first = own[0] if by == ACCURACY else f"{kind}:{by}"
    names = [*dict.fromkeys([first, *own[:2], *(f"{kind}:{name}" for name in asked), *own[2:], *virtual])]
    numbers = {name: run_numbers.find(name) for name in names}
    found = {cell: {name: measured.values(name, *cell) for name in names} for cell in measured.cells}
    headings = {name: number.short_title for name, number in numbers.items()}
    for name, units in UNITS.items() if fitting else ():
        largest = max((value for of in found.values() for value in of[name]), default=0.0)
        headings[name] = [unit for unit, size in units.items() if size <= max(largest, min(units.values()))][-1]
        for of in found.values():
            of[name] = [value / units[headings[name]] for value in of[name]]
    several, failures = len(measured.at.columns) > 1, [printable(failure) for failure in measured.failures()]
    lines: list[tuple[int, float, list[Cell]]] = []
    bounds = (-math.inf if _regression(measured) else 0.0, 1.0)
    if by != ACCURACY:
        bounds = (known(by).lowest, known(by).highest)
    unit, sign = 100 if numbers[first].share else 1, 1 if lower_is_better(by) else -1
    for (row, column), values in found.items():
        accuracy, *others = [number.spread(values[name]) for name, number in numbers.items()]
        low, high = (unit * bound for bound in bounds)
        between = interval([unit * value for value in values[first]], low, high) or (None, None)
        cells: list[Cell] = [row, *([column] if several else [])]
        cells += [chosen_in_words(measured, (row, column))] if measured.trials else []
        cells += [accuracy, *between, *others, f"{len(values[first])}/{len(measured.seeds)}"]
        order = sign * accuracy.mean if accuracy else math.inf
        lines.append((measured.at.columns.index(column), order, cells))
    heads = ["method", *(["data"] if several else []), *(["chosen"] if measured.trials else [])]
    lead, *rest = headings.values()
    heads += [lead, "95 % interval from", "to", *rest, "runs done"]
    failed = [f"Failed: {failure.rstrip('.')}." for failure in failures]
    note = " ".join(
        [*_remarks(measured), *other_threads(measured.finished()), *other_code(measured.finished()), *failed]
    )
    # Custom metrics may be small numbers, and so may MB that fit nothing; of the others one decimal means something.
    fine = {*asked, *([] if by == ACCURACY else ["95 % interval from", "to"])}
    digits = [4 if head in fine else 3 if head == "MB" and not fitting else 1 for head in heads]
    # The last to be left out is the one after the first, the accuracy of the worst tenth.
    optional = ["runs done", *reversed(rest)]
    rows = [cells for *_, cells in sorted(lines, key=lambda line: line[:2])]
    return Table(title, heads, rows, digits, note=note, optional=optional), heads.index(lead)


def _costs(measured: Measured, target: float) -> Table:
    """Return rounds, traffic and time until the mean over the clients reaches a value in a test."""
    by, several = _metric(measured), len(measured.at.columns) > 1
    rows: list[list[Cell]] = []
    for row, column in measured.cells:
        values = {kind: measured.values(f"{kind}:{by}={target:g}", row, column) for kind in run_numbers.COSTS}
        spreads = [Spread.of(of) if of else None for of in values.values()]
        reached = f"{len(next(iter(values.values())))}/{len(measured.seeds)}"
        rows.append([row, *([column] if several else []), *spreads, reached])
    heads = [
        "method",
        *(["data"] if several else []),
        *(heading for heading, _ in run_numbers.COSTS.values()),
        "reached",
    ]
    note = "Up to the first test that reaches it, of the runs that do; MB both ways, tests included, s of training."
    title = f"Until {by} on test samples, mean over clients, is {target:g}"
    return Table(title, heads, rows, 1, note=note)


def _regression(measured: Measured) -> bool:
    """Return whether R², which has no least value, stands in the place of the accuracy."""
    return any(labels_of(run.settings["loss"]) == TARGETS for run in measured.planned())


def _metric(measured: Measured) -> str:
    return metric_of(run.settings for run in measured.planned())


def _validated(measured: Measured) -> bool:
    """Return whether every run has validation scores, by which its round is chosen; data may bring samples for them."""
    runs = [folder for column in measured.at.columns for folder in measured.finished(column)]
    if not runs:
        return all(run.settings["validation-fraction"] for run in measured.planned())
    return has_validation(runs)


def _untested(line: Mapping[str, Any]) -> bool:
    """Return whether a client failed in a round's test; one that failed in training may have been tested."""
    tested = line.get("personalised", {}).get("each")
    return bool(tested and line.get("failed", {}).keys() - tested.keys())


def _remarks(measured: Measured) -> Iterator[str]:
    """Yield how the numbers came about."""
    which = "round with the best validation score" if _validated(measured) else "last round"
    regression, by = _regression(measured), _metric(measured)
    what = by if by != ACCURACY else "R²" if regression else "Accuracy"
    yield f"{what} on test samples, in the {which}."
    seeds = len(measured.seeds)
    if seeds > 1:
        cut = "what is possible" if by != ACCURACY else f"{'' if regression else '0 and '}100 %"
        interval_of = f"that of the mean, by Student's t, cut at {cut}"
        yield f"Mean ± standard deviation over {seeds} seeds; the 95 % interval is {interval_of}."
        if not all(has_same_clients(folder.config()) for folder in measured.finished()):
            yield "Each seed also divides the data among other clients, which ± covers; partition-seed = 1 keeps them."
    if measured.trials:
        among = "; ".join(f"{key} {', '.join(map(str, of))}" for key, of in measured.experiment.choose.items())
        yield f"Settings were chosen for each method with seed 1 on the validation samples, among {among}."
    # A failed client is in no mean of its round's test, and may have been one of the worst.
    failing = [
        f"{row}{column and f' on {column}'}" for row, column in measured.cells
        if any(_untested(line) for folder in measured.finished(column, row) for line in folder.history().lines)
    ]  # fmt: skip
    if failing:
        yield f"In some rounds clients failed and were not tested: {'; '.join(failing)} (`fedpfl report` lists them)."
    ends = []
    for (row, column), choice in measured.chosen.items():
        for key, value in choice.items():
            tried = measured.experiment.choose[key]
            if len(tried) > 1 and not isinstance(value, (str, bool)) and value in (min(tried), max(tried)):
                ends.append(f"{row}{column and f' on {column}'}: {key} {value}")
    if ends:
        yield f"At the edge of the tried values; a wider range may be better: {'; '.join(ends)}."
