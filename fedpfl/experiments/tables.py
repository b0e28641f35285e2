"""The tables of an experiment: what was measured beside what the paper says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from ..analysis import Result, analyses
from ..analysis.figure import Figure, Lines
from ..core.errors import ConfigError, FedpflError
from ..core.settings import parse
from ..results.run import RunFolder
from ..results.tables import Cell as TableCell
from ..results.tables import Spread, Table
from . import metrics
from .description import BY_COLUMN, Cell, Experiment
from .store import INDIFFERENT, PlannedRun, State, Store, plan

CURVE_ROUNDS = 20
GENERATED = "{generated}"


class Measured:
    """The runs of an experiment at a scale, and what they left.

    Parameters
    ----------
    experiment : Experiment
        The experiment.
    scale : str
        One of ``SCALES``.
    store : Store
        Where its runs lie.
    seeds : int, optional
        Seeds 1 … n instead of the scale's.
    more : mapping, optional
        Settings that win over the file's.

    Raises
    ------
    ConfigError
        A cell's settings are not allowed, or there is no such analysis.
    """

    def __init__(
        self,
        experiment: Experiment,
        scale: str,
        store: Store,
        seeds: int | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        for name in experiment.analyses:
            if name not in analyses():
                known = ", ".join(analyses())
                raise ConfigError("analyses", name, f"{experiment.name}: must be one of {known}")
        self.experiment, self.scale, self.store, self.more = experiment, scale, store, dict(more or {})
        self.seeds = range(1, (seeds or experiment.scale(scale).seeds) + 1)
        self.cells = {(cell.row, cell.column): cell for cell in experiment.cells(scale, more)}
        self.runs: dict[tuple[str, str, int], PlannedRun] = {
            (row, column, seed): self._plan(cell, seed)
            for seed in self.seeds  # the first seed fills the table, the next ones make it surer
            for (row, column), cell in self.cells.items()
        }

    def _plan(self, cell: Cell, seed: int) -> PlannedRun:
        settings, generate = cell.settings, cell.generate
        if generate:
            generate = (*generate, "--seed", str(seed))
            folder = str(self.store.generated(generate))
            settings = {
                key: value.replace(GENERATED, folder) if isinstance(value, str) else value
                for key, value in settings.items()
            }
        return plan(settings, seed, self.experiment.needs(cell.row), generate)

    def values(self, metric: str, row: str, column: str) -> list[float]:
        """Return what the finished runs of a cell measured, by seed."""
        return [value for seed in self.seeds if (value := self._value(metric, row, column, seed)) is not None]

    def states(self) -> dict[str, State]:
        """Return how far each run is, by name."""
        return {run.name: self.store.state(run) for run in self.runs.values()}

    def finished(self, column: str | None = None) -> list[RunFolder]:
        """Return the folders of the finished runs, or of those of one column, each once and with its names."""
        places: dict[str, list[tuple[str, str]]] = {}
        for (row, other, _), run in self.runs.items():
            if column in (None, other) and self.store.state(run) is State.FINISHED:
                places.setdefault(run.name, []).append((row, other))
        runs = {run.name: run for run in self.runs.values()}
        return [
            self._named(runs[name], *(" / ".join(dict.fromkeys(of)) for of in zip(*at, strict=True)))
            for name, at in places.items()
        ]

    def _named(self, run: PlannedRun, row: str, column: str) -> RunFolder:
        return RunFolder(self.store.folder(run).path, row, column, self.store.beside(run))

    def failures(self) -> Iterator[str]:
        """Yield a sentence for each run that failed."""
        for (row, column, seed), run in self.runs.items():
            if self.store.state(run) is State.FAILED:
                yield f"{row}, {column}, seed {seed}: {self.store.reason(run)}"

    def _value(self, metric: str, row: str, column: str, seed: int) -> float | None:
        if others := self.pooled(row, column):
            values = [self._value(metric, row, other, seed) for other in others]
            known = [value for value in values if value is not None]
            return metrics.find(metric).pool(known) if len(known) == len(others) else None
        value = self._plain(self.experiment.metric(row, metric), row, column, seed)
        base = self.experiment.relative_to
        if not base or value is None:
            return value
        other = self._plain(self.experiment.metric(base, metric), base, column, seed)
        return None if other is None else value / other

    def pooled(self, row: str, column: str) -> list[str]:
        """Return the columns of this scale that a column puts together, for a row; none for a column that is run."""
        return [other for other in self.experiment.pooled(column) if (row, other) in self.cells]

    def options(self, analysis: str) -> dict[str, Any]:
        """Return what the experiment and this scale give an analysis: its options, and ``of``."""
        at = self.experiment.scale(self.scale)
        return {**self.experiment.analyses.get(analysis, {}), **at.analyses.get(analysis, {})}

    def _attacked(self, run: PlannedRun, pool: Callable[[Sequence[float]], float]) -> float | None:
        from ..analysis.attack import AttackOptions, attempts_of

        given = self.options(metrics.ATTACK)
        given.pop("of", None)
        try:
            options = parse(AttackOptions, given)
            return pool([attempt.psnr for attempt in attempts_of(self._named(run, "", ""), options)])
        except FedpflError:  # why it is not there stands in the table of the analysis
            return None

    def _plain(self, metric: str, row: str, column: str, seed: int) -> float | None:
        run = self.runs.get((row, column, seed))
        if run is None or self.store.state(run) is not State.FINISHED:
            return None
        kind, _, which = metric.partition(":")
        if kind == metrics.ATTACK:
            return self._attacked(run, metrics.POOLS[which])
        clients = self.cells[row, column].clients
        return metrics.measure(metric, self.store.folder(run), self.store.beside(run), clients)


def tables(measured: Measured) -> list[Table]:
    """Return an experiment's tables: one for each metric, and the curves."""
    out = [_table(measured, metric) for metric in measured.experiment.metrics]
    return out + [_curves(measured, curve) for curve in measured.experiment.curves if measured.finished()]


def _table(measured: Measured, metric: str) -> Table:
    experiment, at = measured.experiment, measured.experiment.scale(measured.scale)
    found = metrics.find(metric)
    published = experiment.paper_values.get(metric)
    order = list(experiment.columns)
    kinds = [f"{measured.scale} scale", *(["published"] if published else [])]  # nobody shall take one for the other
    heads = [f"{column} ({kind})" for column in at.columns for kind in kinds]
    rows: list[list[TableCell]] = []
    for row in at.rows:
        cells: list[TableCell] = [row]
        for column in at.columns:
            cells.append(_cell(measured, metric, found, row, column))
            if published:
                cells.append(_published(published[row][order.index(column)]))
        rows.append(cells)
    what, digits = _heading(experiment, found)
    return Table(f"{experiment.title}: {what}", ["", *heads], rows, digits, note=_note(measured, metric))


def _heading(experiment: Experiment, found: metrics.Metric) -> tuple[str, int]:
    """Return what the numbers of a table are, and their decimal places."""
    if experiment.relative_to:
        return f"{found.heading}, relative to {experiment.relative_to}", 4
    if found.share:
        return (found.heading, 4) if experiment.fractions else (f"{found.heading}, %", 2)
    return found.heading, found.digits


def _cell(measured: Measured, metric: str, found: metrics.Metric, row: str, column: str) -> TableCell:
    if (row, column) in measured.experiment.not_covered:
        return None
    values = measured.values(metric, row, column)
    if values:
        percent = found.share and not measured.experiment.fractions and not measured.experiment.relative_to
        return Spread.of([100 * value if percent else value for value in values])
    of = measured.pooled(row, column) or [column]
    states = {measured.store.state(measured.runs[row, other, seed]) for seed in measured.seeds for other in of}
    if states == {State.FINISHED}:
        return None  # the method has no such number
    return "failed" if State.FAILED in states else "not run yet"


def _published(value: str | float | None) -> TableCell:
    return None if value is None else str(value)


def figures(measured: Measured) -> list[Figure]:
    """Return a figure for each metric, where the experiment names an x axis: values over the numbers in its names.

    What else is in a cell's names is the name of the curve; the paper's values are curves of their own.
    """
    experiment, at = measured.experiment, measured.experiment.scale(measured.scale)
    place = re.compile(rf"(?:^|, ){re.escape(experiment.x)} (-?[\d.]+(?:e-?\d+)?)(?=,|$)")
    out: list[Figure] = []
    order = list(experiment.columns)
    for metric in experiment.metrics if experiment.x else ():
        found, published = metrics.find(metric), experiment.paper_values.get(metric)
        points: dict[str, list[tuple[float, Spread]]] = {}
        for row, column in product(at.rows, at.columns):
            name = f"{row}, {column}"
            where = place.search(name)
            if not where:
                continue
            curve = place.sub("", name, count=1).removeprefix(", ")
            cells = {curve: _cell(measured, metric, found, row, column)}
            if published:
                cells[f"{curve}, published"] = _published(published[row][order.index(column)])
            for of, cell in cells.items():
                if value := _number(cell):
                    points.setdefault(of, []).append((float(where.group(1)), value))
        series = {name: sorted(of, key=lambda point: point[0]) for name, of in points.items()}
        if series:
            lines = {name: ([x for x, _ in of], [value.mean for _, value in of]) for name, of in series.items()}
            bands = {name: [value.std or 0.0 for _, value in of] for name, of in series.items()
                     if any(value.std for _, value in of)}  # fmt: skip
            heading, _ = _heading(experiment, found)
            out.append(Lines(f"{experiment.title}: {heading}", experiment.x, heading, lines, bands))
    return out


def _number(cell: TableCell) -> Spread | None:
    """Return a cell's number; the paper's are texts."""
    if isinstance(cell, Spread):
        return cell
    found = re.match(r"-?\d+(?:\.\d+)?", cell) if isinstance(cell, str) else None
    return Spread(float(found.group()), None, 1) if found else None


def _note(measured: Measured, metric: str) -> str:
    experiment, at = measured.experiment, measured.experiment.scale(measured.scale)
    parts = [f"{experiment.paper}. Scale {measured.scale}: {at.remarks}", experiment.remarks]
    seeds = ", ".join(map(str, measured.seeds))
    parts.append(f"Seed {seeds}." if len(measured.seeds) == 1 else f"Mean ± standard deviation over seeds {seeds}.")
    if more := [f"{key} = {value!r}" for key, value in measured.more.items() if key not in INDIFFERENT]:
        parts.append(f"Set besides: {', '.join(more)}.")
    thin = [
        f"{row}, {column} ({len(values)})"
        for row, column in measured.cells
        if 0 < len(values := measured.values(metric, row, column)) < len(measured.seeds)
    ]
    if thin:
        parts.append(f"Fewer seeds than that: {'; '.join(thin)}.")
    without: dict[str, list[str]] = {}
    for row, column in measured.cells:
        if _cell(measured, metric, metrics.find(metric), row, column) is None:
            reason = experiment.no_number.get((metric, row, column), "")
            without.setdefault(reason, []).append(f"{row}, {column}")
    for reason, cells in without.items():
        parts.append(_sentence(f"These runs have no such number: {'; '.join(cells)}{': ' if reason else ''}{reason}"))
    reasons: dict[str, list[str]] = {}
    for (row, column), reason in experiment.not_covered.items():
        if row in at.rows and column in at.columns:
            reasons.setdefault(reason, []).append(f"{row}, {column}")
    parts += [f"Not covered: {'; '.join(cells)}: {_sentence(reason)}" for reason, cells in reasons.items()]
    published = experiment.paper_values.get(metric)
    if published is None or any(None in cells for cells in published.values()):
        parts.append(f"Of the paper: {_sentence(experiment.missing)}")
    parts += [f"Failed: {_sentence(failure)}" for failure in measured.failures()]
    return " ".join(part for part in parts if part)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."


def _curves(measured: Measured, name: str) -> Table:
    """Lay out a curve by round, at no more than ``CURVE_ROUNDS`` of them; each cell is a column."""
    heading, curve = metrics.find_curve(name)
    found: dict[str, dict[int, list[float]]] = {}
    for (row, column, _), run in measured.runs.items():
        if measured.store.state(run) is not State.FINISHED:
            continue
        points = found.setdefault(f"{row}, {column}", {})
        for line in measured.store.folder(run).metrics():
            value = curve(line, measured.cells[row, column].clients)
            if value is not None:
                points.setdefault(int(line["round"]), []).append(value)
    rounds = sorted({number for points in found.values() for number in points})
    step = -(-len(rounds) // CURVE_ROUNDS) or 1
    shown = [number for at, number in enumerate(rounds) if at % step == 0 or at == len(rounds) - 1]
    rows: list[list[TableCell]] = [
        [number, *(Spread.of(points[number]) if number in points else None for points in found.values())]
        for number in shown
    ]
    title = f"{measured.experiment.title}: {heading} by round"
    note = "Every round: metrics.jsonl in the folders of the runs." if len(shown) < len(rounds) else ""
    return Table(title, ["round", *found], rows, 4, note=note)


def analysed(measured: Measured) -> Result:
    """Return what the experiment's analyses find in the runs that have finished."""
    out = Result()
    at = measured.experiment.scale(measured.scale)
    for name in measured.experiment.analyses:
        options = measured.options(name)
        columns = at.columns if options.pop("of") == BY_COLUMN else (None,)
        options = {key.replace("-", "_"): value for key, value in options.items()}
        for column in columns:
            runs = measured.finished(column)
            if not runs:
                continue
            where = f", {column}" if column else ""
            try:
                found = analyses()[name].make(runs, **options)
            except FedpflError as error:
                out.tables.append(Table(f"{name}{where}", ["analysis", "why it is not there"], [[name, str(error)]]))
                continue
            out.tables.extend(replace(table, title=table.title + where) for table in found.tables)
            out.figures.extend(replace(figure, title=figure.title + where) for figure in found.figures)
    return out
