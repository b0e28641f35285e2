"""The tables of an experiment: what was measured beside what the paper says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from ..analysis import Result, analyses
from ..analysis.figure import Figure, Lines, Points
from ..core.errors import ConfigError, FedpflError
from ..core.settings import parse
from ..results.run import RunFolder
from ..results.tables import Cell as TableCell
from ..results.tables import Spread, Table
from . import metrics
from .description import BY_COLUMN, Cell, Experiment, Ranking
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
        A cell's settings are not allowed, there is no such analysis, or there are no samples to choose settings by.

    Attributes
    ----------
    cells : dict of (str, str) to Cell
        By row and column; with what is chosen, once it is.
    trials : dict of (str, str) to list of (dict, PlannedRun)
        The values among which a cell's are chosen, and the run that tries them.
    chosen : dict of (str, str) to dict
        What is chosen, for the cells of which all trials have ended.
    runs : dict of (str, str, int) to PlannedRun
        By row, column and seed; without those of a cell for which nothing is chosen yet.
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
        self.trials = self._trials()
        self.chosen = {
            place: choice for place, tried in self.trials.items() if (choice := self._best(tried)) is not None
        }
        for place, choice in self.chosen.items():
            self.cells[place] = _with(self.cells[place], choice)
        decided = [place for place in self.cells if place not in self.trials or place in self.chosen]
        self.runs: dict[tuple[str, str, int], PlannedRun] = {
            (*place, seed): self._plan(self.cells[place], seed)
            for seed in self.seeds  # the first seed fills the table, the next ones make it surer
            for place in decided
        }

    def _trials(self) -> dict[tuple[str, str], list[tuple[dict[str, Any], PlannedRun]]]:
        found = {}
        for (row, column), cell in self.cells.items():
            if choices := self.experiment.choices(self.scale, row, column, self.more):
                found[row, column] = [(choice, self._plan(_with(cell, choice), self.seeds[0])) for choice in choices]
        for tried in found.values():
            for choice, run in tried:
                if not run.settings["validation-fraction"]:
                    raise ConfigError("choose", [*choice], f"{self.experiment.name}: needs validation-fraction above 0")
        return found

    def _best(self, tried: Sequence[tuple[dict[str, Any], PlannedRun]]) -> dict[str, Any] | None:
        """Return what is best on the samples for validation; None while a trial is open, or where all have failed."""
        best: tuple[float, dict[str, Any]] | None = None
        for choice, run in tried:
            state = self.store.state(run)
            if state in (State.MISSING, State.INTERRUPTED):
                return None
            if state is State.FINISHED:
                value = metrics.measure("validation-best", self.store.folder(run), self.store.cell(run))
                if value is not None and (best is None or value > best[0]):
                    best = value, choice
        return None if best is None else best[1]

    def planned(self) -> list[PlannedRun]:
        """Return all runs that are known so far, each once, those that try values first."""
        tried = [run for of in self.trials.values() for _, run in of]
        return list({run.name: run for run in (*tried, *self.runs.values())}.values())

    def wanted(self) -> list[PlannedRun]:
        """Return the runs that numbers are still missing without: not a trial that failed beside better ones."""
        decided = {key[:2] for key in self.runs}
        tried = [run for place, of in self.trials.items() if place not in decided for _, run in of]
        return list({run.name: run for run in (*tried, *self.runs.values())}.values())

    @property
    def undecided(self) -> int:
        """How many runs there will be besides, once values are chosen for all cells."""
        return (len(self.cells) - len({key[:2] for key in self.runs})) * (len(self.seeds) - 1)

    def state(self, row: str, column: str, seed: int) -> State:
        """Say how far the run of a cell is; before its values are chosen, whether they still can be."""
        if run := self.runs.get((row, column, seed)):
            return self.store.state(run)
        tried = {self.store.state(run) for _, run in self.trials[row, column]}
        return State.FAILED if tried == {State.FAILED} else State.MISSING

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
        return [value for seed in self.seeds if (value := self.value(metric, row, column, seed)) is not None]

    def states(self) -> dict[str, State]:
        """Return how far each run is, by name."""
        return {run.name: self.store.state(run) for run in self.planned()}

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
        return RunFolder(self.store.folder(run).path, row, column, self.store.cell(run))

    def failures(self) -> Iterator[str]:
        """Yield a sentence for each run that failed."""
        for (row, column, seed), run in self.runs.items():
            if self.store.state(run) is State.FAILED:
                yield f"{row}, {column}, seed {seed}: {self.store.reason(run)}"
        for (row, column), tried in self.trials.items():
            for choice, run in tried:
                if self.store.state(run) is State.FAILED:
                    yield f"{row}, {column}, {_in_words(choice)}: {self.store.reason(run)}"

    def value(self, metric: str, row: str, column: str, seed: int) -> float | None:
        """Return what the run of a cell with one seed measured; None where it is not finished or has no such number."""
        if others := self.pooled(row, column):
            values = [self.value(metric, row, other, seed) for other in others]
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
        return metrics.measure(metric, self.store.folder(run), self.store.cell(run), clients)


def _with(cell: Cell, choice: Mapping[str, Any]) -> Cell:
    return replace(cell, settings={**cell.settings, **choice})


def _in_words(choice: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in choice.items())


def tables(measured: Measured) -> list[Table]:
    """Return an experiment's tables: one for each metric, or a ranking for each column; and the curves."""
    if measured.experiment.ranking:
        out = [ranking.table for ranking in rankings(measured)]
    else:
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
    states = {measured.state(row, other, seed) for seed in measured.seeds for other in of}
    if states == {State.FINISHED}:
        return None  # the method has no such number
    return "failed" if State.FAILED in states else "not run yet"


class RankingOf(NamedTuple):
    """How a column's rows are ranked.

    Attributes
    ----------
    column : str
        The column.
    table : Table
        A line for each row, the best first, with what was chosen for it and its distance from the baseline.
    figure : Points or None
        The first metric over another one; None where no run has both.
    protocol : tuple of str
        How all columns were measured: the first part of the table's note.
    remarks : tuple of str
        What is to be said of this column alone: the rest of it.
    """

    column: str
    table: Table
    figure: Points | None
    protocol: tuple[str, ...]
    remarks: tuple[str, ...]


def rankings(measured: Measured) -> list[RankingOf]:
    """Return what an experiment with a ranking shows of each column."""
    experiment, at = measured.experiment, measured.experiment.scale(measured.scale)
    if experiment.ranking is None:
        return []
    return [_ranking(measured, experiment.ranking, column) for column in at.columns]


def _ranking(measured: Measured, ranking: Ranking, column: str) -> RankingOf:
    experiment, at = measured.experiment, measured.experiment.scale(measured.scale)
    first, compared = experiment.metrics[0], ranking.baseline in at.rows
    lines: list[tuple[float, list[TableCell]]] = []
    below: list[str] = []
    for row in at.rows:
        numbers = [_cell(measured, metric, metrics.find(metric), row, column) for metric in experiment.metrics]
        chosen = measured.chosen.get((row, column))
        cells = [row, *numbers, *([_in_words(chosen) if chosen else None] if measured.trials else [])]
        if compared:
            over = None if row == ranking.baseline else _over(measured, first, row, ranking.baseline, column)
            cells.insert(2, over)
            if over and over.mean < 0:
                below.append(row)
        lines.append((numbers[0].mean if isinstance(numbers[0], Spread) else -math.inf, cells))
    lines.sort(key=lambda line: -line[0])
    heads = ["", *(_short(metrics.find(metric)) for metric in experiment.metrics)]
    heads += ["chosen"] if measured.trials else []
    if compared:
        heads.insert(2, f"over {ranking.baseline}")
    said = (f"Scale {measured.scale}: {at.remarks}", experiment.remarks, *_repeated(measured))
    protocol = tuple(part for part in said if part)
    remarks = tuple(_remarks(measured, ranking, column, below if compared else None))
    rows = [cells for _, cells in lines]
    title = f"{experiment.title}: {column} ({measured.scale} scale)"
    table = Table(title, heads, rows, digits=1, note=" ".join([*protocol, *remarks]))  # many columns, few seeds
    figure = _drawn(measured, ranking, column, title, [str(cells[0]) for cells in rows])
    return RankingOf(column, table, figure, protocol, remarks)


def _short(metric: metrics.Metric) -> str:
    return f"{metric.short or metric.heading}{', %' * metric.share}"


def _over(measured: Measured, metric: str, row: str, baseline: str, column: str) -> Spread | None:
    """Return by how much a row is above the baseline, in points; each seed by itself, as both have the same data."""
    factor = 100 if metrics.find(metric).share else 1
    pairs = [
        tuple(measured.value(metric, name, column, seed) for name in (row, baseline)) for seed in measured.seeds
    ]  # fmt: skip
    differences = [factor * (own - other) for own, other in pairs if own is not None and other is not None]
    return Spread.of(differences) if differences else None


def _drawn(measured: Measured, ranking: Ranking, column: str, title: str, best_first: Sequence[str]) -> Points | None:
    """Draw the first metric over another one. The legend has the table's order, which is also that of the points."""
    experiment = measured.experiment
    names = (ranking.over, experiment.metrics[0])
    found = {row: [_cell(measured, name, metrics.find(name), row, column) for name in names] for row in best_first}
    series = {row: ([x.mean], [y.mean]) for row, (x, y) in found.items() if isinstance(x, Spread)
              and isinstance(y, Spread)}  # fmt: skip
    if not series:
        return None
    x_label, _ = _heading(experiment, metrics.find(ranking.over))
    y_label = _short(metrics.find(experiment.metrics[0]))  # as above the table; the whole is longer than the axis
    return Points(title, x_label, y_label, series, log_x=all(xs[0] > 0 for xs, _ in series.values()))


def _remarks(measured: Measured, ranking: Ranking, column: str, below: Sequence[str] | None) -> Iterator[str]:
    """Yield what is to be said of a column's ranking; ``below`` are the rows below the baseline, if it is there."""
    experiment, at = measured.experiment, measured.experiment.scale(measured.scale)
    if below:
        yield f"Below {ranking.baseline} on these data: {', '.join(below)}."
    elif below is not None:
        others = [row for row in at.rows if row != ranking.baseline]
        if any(measured.values(experiment.metrics[0], row, column) for row in others):
            yield f"None of the others is below {ranking.baseline} on these data."
    yield from _candidates(measured, column)
    yield from _thin(measured, experiment.metrics[0], column)
    for metric in experiment.metrics:
        yield from _without(measured, metric, column)
    yield from (f"Failed: {_sentence(failure)}" for failure in measured.failures() if f", {column}, " in failure)


def _candidates(measured: Measured, column: str) -> Iterator[str]:
    """Say among which values those of a column's rows are chosen."""
    rows: dict[str, list[str]] = {}
    for (row, other), tried in measured.trials.items():
        if other == column:
            rows.setdefault("; ".join(_in_words(choice) for choice, _ in tried), []).append(row)
    for values, of in sorted(rows.items(), key=lambda item: len(item[1])):
        others = "each row" if len(rows) == 1 else "each other row"
        whose = others if len(of) == max(map(len, rows.values())) else ", ".join(of)
        yield f"Chosen for {whose} with seed {measured.seeds[0]} on the samples for validation, among {values}."


def _published(value: str | float | None) -> TableCell:
    return None if value is None else str(value)


def figures(measured: Measured) -> list[Figure]:
    """Return a figure for each metric, where the experiment names an x axis: values over the numbers in its names.

    What else is in a cell's names is the name of the curve; the paper's values are curves of their own.
    """
    experiment, at = measured.experiment, measured.experiment.scale(measured.scale)
    out: list[Figure] = [ranking.figure for ranking in rankings(measured) if ranking.figure]
    place = re.compile(rf"(?:^|, ){re.escape(experiment.x)} (-?[\d.]+(?:e-?\d+)?)(?=,|$)")
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
    parts += _repeated(measured)
    parts += _thin(measured, metric)
    parts += _without(measured, metric)
    reasons: dict[str, list[str]] = {}
    for (row, column), reason in experiment.not_covered.items():
        if row in at.rows and column in at.columns:
            reasons.setdefault(reason, []).append(f"{row}, {column}")
    parts += [f"Not covered: {'; '.join(cells)}: {_sentence(reason)}" for reason, cells in reasons.items()]
    published = experiment.paper_values.get(metric)
    if published is None or any(None in cells for cells in published.values()):
        parts.append(f"Of the paper: {_sentence(experiment.published.missing)}")
    parts += [f"Failed: {_sentence(failure)}" for failure in measured.failures()]
    return " ".join(part for part in parts if part)


def _repeated(measured: Measured) -> Iterator[str]:
    """Say which seeds there are, and what was set besides the file."""
    seeds = ", ".join(map(str, measured.seeds))
    yield f"Seed {seeds}." if len(measured.seeds) == 1 else f"Mean ± standard deviation over seeds {seeds}."
    if more := [f"{key} = {value!r}" for key, value in measured.more.items() if key not in INDIFFERENT]:
        yield f"Set besides: {', '.join(more)}."


def _thin(measured: Measured, metric: str, only: str | None = None) -> Iterator[str]:
    """Name the cells, of all columns or of one, that have numbers of some seeds alone."""
    thin: dict[int, list[str]] = {}
    for row, column in measured.cells:
        count = len(measured.values(metric, row, column))
        if only in (None, column) and 0 < count < len(measured.seeds):
            thin.setdefault(count, []).append(f"{row}, {column}" if only is None else row)
    between = "; " if only is None else ", "
    for count, cells in sorted(thin.items()):
        yield f"Only {count} {'seed' if count == 1 else 'seeds'}: {between.join(cells)}."


def _without(measured: Measured, metric: str, only: str | None = None) -> Iterator[str]:
    """Say why cells, of all columns or of one, have no number."""
    found = metrics.find(metric)
    without: dict[str, list[str]] = {}
    for row, column in measured.cells:
        if only in (None, column) and _cell(measured, metric, found, row, column) is None:
            reason = measured.experiment.no_number.get((metric, row, column), "")
            without.setdefault(reason, []).append(f"{row}, {column}" if only is None else row)
    what = "such number" if only is None else f"“{found.short or found.heading}”"
    for reason, cells in without.items():
        yield _sentence(f"These runs have no {what}: {'; '.join(cells)}{': ' if reason else ''}{reason}")


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."


def _curves(measured: Measured, name: str) -> Table:
    """Lay out a curve by round, at no more than ``CURVE_ROUNDS`` of them; each cell is a column."""
    heading, number = metrics.find_curve(name)
    found: dict[str, dict[int, list[float]]] = {}
    for (row, column, _), run in measured.runs.items():
        if measured.store.state(run) is not State.FINISHED:
            continue
        points = found.setdefault(f"{row}, {column}", {})
        history = measured.store.folder(run).history().only(measured.cells[row, column].clients)
        for of, value in history.curve(number).items():
            points.setdefault(of, []).append(float(value))
    rounds = sorted({of for points in found.values() for of in points})
    step = -(-len(rounds) // CURVE_ROUNDS) or 1
    shown = [of for at, of in enumerate(rounds) if at % step == 0 or at == len(rounds) - 1]
    rows: list[list[TableCell]] = [
        [of, *(Spread.of(points[of]) if of in points else None for points in found.values())] for of in shown
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
