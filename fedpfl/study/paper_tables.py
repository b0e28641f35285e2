"""The tables and figures of an experiment: what was measured next to the paper's values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import NamedTuple

from ..core.errors import FedpflError
from ..results.history import of_clients
from ..results.tables import Cell as TableCell
from ..results.tables import Spread, Table
from ..setup.all_settings import tagged
from . import run_numbers
from .analysis import ANALYSES, Result
from .analysis.figure import Figure, Lines, Points
from .analysis.significance import accuracies_of, against
from .experiment import ExperimentGrid
from .experiment_file import BY_COLUMN, ExperimentFile, Ranking
from .grid import in_words
from .run_store import State
from .table_layout import Column, Line, chosen_column, in_lines, rows_by_columns

CURVE_ROUNDS = 20

_NUMBER = r"-?(?:\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?"
# What may follow a number of a paper: its deviation, its unit, a remark.
_PUBLISHED = re.compile(rf"\s*({_NUMBER})\s*(?:$|[±%(\\]|\+)")


def tables_and_figures(grid: ExperimentGrid) -> tuple[list[Table], list[Figure]]:
    """Return the tables and the figures of an experiment and of its analyses."""
    result = analysed(grid)
    return [*tables(grid), *result.tables], [*figures(grid), *result.figures]


def tables(grid: ExperimentGrid) -> list[Table]:
    """Return an experiment's tables: one for each metric, or a ranking for each column; and the curves."""
    if grid.experiment.ranking:
        out = [ranking.table for ranking in rankings(grid)]
    else:
        out = [_table(grid, metric) for metric in grid.experiment.metrics]
    return out + [_curves(grid, curve) for curve in grid.experiment.curves if grid.finished()]


def _table(grid: ExperimentGrid, metric: str) -> Table:
    experiment, extent = grid.experiment, grid.extent
    # Named in each heading, so that nobody confuses them.
    numbers: dict[str, Callable[[str, str], TableCell]] = {f"{grid.scale} scale": partial(_cell, grid, metric)}
    if metric in experiment.paper_values:
        numbers["published"] = partial(experiment.paper_value, metric)
    what, digits = _heading(experiment, grid.metric(metric))
    title = f"{experiment.title}: {what}"
    return rows_by_columns(title, extent.rows, extent.columns, numbers, digits, note=_note(grid, metric))


def _heading(experiment: ExperimentFile, number: run_numbers.Metric) -> tuple[str, int]:
    """Return the name of a table's numbers, and their decimal places."""
    if experiment.relative_to:
        return f"{number.heading}, relative to {experiment.relative_to}", 4
    if number.share:
        return (number.heading, 4) if experiment.fractions else (f"{number.heading}, %", 2)
    return number.heading, number.digits


def _cell(grid: ExperimentGrid, metric: str, row: str, column: str) -> TableCell:
    if (row, column) in grid.experiment.not_covered:
        return None
    if values := grid.values(metric, row, column):
        plain = grid.experiment.fractions or grid.experiment.relative_to
        return Spread.of(values) if plain else grid.metric(metric).spread(values)
    others = grid.pooled(row, column)
    if grid.experiment.pooled(column) and not others:
        return None  # none of what it puts together is run
    columns = others or [column]
    states = {grid.state(row, other, seed) for seed in grid.seeds for other in columns}
    if states == {State.FINISHED}:
        return None  # the method has no such number
    return "failed" if State.FAILED in states else "not run yet"


class RankedColumn(NamedTuple):
    """The ranking of a column's rows: a table with the best first, and its figure if a run has both metrics.

    The table's note has ``remarks``, those on this column alone, after how all columns were measured.
    """

    table: Table
    figure: Points | None
    remarks: tuple[str, ...]


def rankings(grid: ExperimentGrid) -> list[RankedColumn]:
    """Return the ranking of each column of an experiment that has one."""
    ranking = grid.experiment.ranking
    return [_ranking(grid, ranking, column) for column in grid.extent.columns] if ranking else []


def _ranking(grid: ExperimentGrid, ranking: Ranking, column: str) -> RankedColumn:
    experiment, extent = grid.experiment, grid.extent
    first, baseline = experiment.metrics[0], ranking.baseline
    columns = [Column("", lambda line: line.row), *(_metric_column(grid, metric) for metric in experiment.metrics)]
    lead = columns[1]
    below: list[str] | None = None
    if baseline in extent.rows:
        over = {row: _difference(grid, first, row, baseline, column) for row in extent.rows if row != baseline}
        below = [row for row, spread in over.items() if spread and spread.mean < 0]
        columns.insert(2, Column(f"over {baseline}", lambda line: over.get(line.row)))
    columns += [chosen_column(grid)] if grid.trials else []
    said = (f"Scale {grid.scale}: {extent.remarks}", experiment.remarks, *_repeated(grid))
    protocol = tuple(part for part in said if part)
    title = f"{experiment.title}: {column} ({grid.scale} scale)"
    lines = [Line(row, column, grid.seeds) for row in extent.rows]
    table = in_lines(title, columns, lines, lead, grid.metric(first).lowest_is_best)
    best_first = [str(row[0]) for row in table.rows]
    remarks = (*_chance(grid, column, best_first, baseline), *_remarks(grid, ranking, column, below))
    table = replace(table, note=" ".join([*protocol, *remarks]))
    figure = _ranking_figure(grid, ranking, column, title, best_first)
    return RankedColumn(table, figure, remarks)


def _metric_column(grid: ExperimentGrid, metric: str) -> Column:
    return Column(grid.metric(metric).short_title, lambda line: _cell(grid, metric, line.row, line.column))


def _chance(grid: ExperimentGrid, column: str, best_first: Sequence[str], baseline: str) -> Iterator[str]:
    """Yield which rows differ significantly from the best one, and from the baseline."""
    accuracies_by_row = {row: accuracies_of(runs) for row in best_first if (runs := grid.finished(column, row))}
    kinds = {row: accuracies for row, accuracies in accuracies_by_row.items() if accuracies}
    bases = dict.fromkeys([next(iter(kinds), ""), baseline])
    yield from (against(kinds, base, base == baseline) for base in bases if base in kinds and len(kinds) > 1)


def _difference(grid: ExperimentGrid, metric: str, row: str, baseline: str, column: str) -> Spread | None:
    """Return by how much a row is above the baseline, in points; each seed by itself, as both have the same data."""
    pairs = [[grid.value(metric, name, column, seed) for name in (row, baseline)] for seed in grid.seeds]
    differences = [value - other for value, other in pairs if value is not None and other is not None]
    return grid.metric(metric).spread(differences)


def _ranking_figure(
    grid: ExperimentGrid, ranking: Ranking, column: str, title: str, best_first: Sequence[str]
) -> Points | None:
    """Draw the first metric over another one. The legend has the table's order, which is also that of the points."""
    experiment = grid.experiment
    names = (ranking.over, experiment.metrics[0])
    cells = {row: [_cell(grid, name, row, column) for name in names] for row in best_first}
    series = {row: ([x.mean], [y.mean]) for row, (x, y) in cells.items() if isinstance(x, Spread)
              and isinstance(y, Spread)}  # fmt: skip
    if not series:
        return None
    x_label, _ = _heading(experiment, grid.metric(ranking.over))
    y_label = grid.metric(experiment.metrics[0]).short_title  # as above the table; the whole is longer than the axis
    return Points(title, x_label, y_label, series, log_x=all(xs[0] > 0 for xs, _ in series.values()))


def _remarks(grid: ExperimentGrid, ranking: Ranking, column: str, below: Sequence[str] | None) -> Iterator[str]:
    """Yield remarks on a column's ranking; ``below`` are the rows below the baseline, if it is there."""
    experiment, extent = grid.experiment, grid.extent
    if below:
        yield f"Below {ranking.baseline} on these data: {', '.join(below)}."
    elif below is not None:
        others = [row for row in extent.rows if row != ranking.baseline]
        if any(grid.values(experiment.metrics[0], row, column) for row in others):
            yield f"None of the others is below {ranking.baseline} on these data."
    yield from _candidates(grid, column)
    yield from _incomplete(grid, experiment.metrics[0], column)
    for metric in experiment.metrics:
        yield from _without_number(grid, metric, column)
    yield from grid.failed_clients(column)
    yield from grid.failures(column)


def _candidates(grid: ExperimentGrid, column: str) -> Iterator[str]:
    """Yield among which values those of a column's rows are chosen."""
    rows: dict[str, list[str]] = {}
    for (row, other), tried in grid.trials.items():
        if other == column:
            rows.setdefault("; ".join(in_words(choice) for choice, _ in tried), []).append(row)
    for values, chosen_rows in sorted(rows.items(), key=lambda item: len(item[1])):
        others = "each row" if len(rows) == 1 else "each other row"
        whose = others if len(chosen_rows) == max(map(len, rows.values())) else ", ".join(chosen_rows)
        yield f"Chosen for {whose} with seed {grid.seeds[0]} on the validation samples, among {values}."


def figures(grid: ExperimentGrid) -> list[Figure]:
    """Return a figure for each metric, where the experiment names an x axis: values over the numbers in its names.

    The rest of a cell's names is the name of the curve; the paper's values are other curves.
    """
    experiment, extent = grid.experiment, grid.extent
    out: list[Figure] = [ranking.figure for ranking in rankings(grid) if ranking.figure]
    place = re.compile(rf"(?:^|, ){re.escape(experiment.x)} ({_NUMBER})(?=,|$)")
    for metric in experiment.metrics if experiment.x else ():
        points: dict[str, list[tuple[float, Spread]]] = {}
        for row, column in product(extent.rows, extent.columns):
            name = f"{row}, {column}"
            where = place.search(name)
            if not where:
                continue
            curve = place.sub("", name, count=1).removeprefix(", ")
            cells = {curve: _cell(grid, metric, row, column)}
            if metric in experiment.paper_values:
                cells[f"{curve}, published"] = experiment.paper_value(metric, row, column)
            for name_of_curve, cell in cells.items():
                if value := _number(cell):
                    points.setdefault(name_of_curve, []).append((float(where.group(1)), value))
        series = {name: sorted(values, key=lambda point: point[0]) for name, values in points.items()}
        if series:
            lines = {
                name: ([x for x, _ in values], [value.mean for _, value in values]) for name, values in series.items()
            }
            bands = {name: [value.std or 0.0 for _, value in values] for name, values in series.items()
                     if any(value.std for _, value in values)}  # fmt: skip
            heading, _ = _heading(experiment, grid.metric(metric))
            out.append(Lines(f"{experiment.title}: {heading}", experiment.x, heading, lines, bands))
    return out


def _number(cell: TableCell) -> Spread | None:
    """Return a cell's number; the paper's are texts."""
    if isinstance(cell, Spread):
        return cell
    match = _PUBLISHED.match(cell.replace("−", "-")) if isinstance(cell, str) else None
    return Spread(float(match.group(1)), None, 1) if match else None


def _note(grid: ExperimentGrid, metric: str) -> str:
    experiment, extent = grid.experiment, grid.extent
    parts = [f"{experiment.paper}. Scale {grid.scale}: {extent.remarks}", experiment.remarks]
    parts += _repeated(grid)
    parts += _incomplete(grid, metric)
    parts += _put_together(grid)
    parts += _without_number(grid, metric)
    reasons: dict[str, list[str]] = {}
    for (row, column), reason in experiment.not_covered.items():
        if row in extent.rows and column in extent.columns:
            reasons.setdefault(reason, []).append(f"{row}, {column}")
    parts += [f"Not covered: {'; '.join(cells)}: {_sentence(reason)}" for reason, cells in reasons.items()]
    published = experiment.paper_values.get(metric)
    if published is None or any(None in cells for cells in published.values()):
        parts.append(f"Of the paper: {_sentence(experiment.published.missing)}")
    parts += grid.failed_clients()
    parts += grid.failures()
    return " ".join(part for part in parts if part)


def _repeated(grid: ExperimentGrid) -> Iterator[str]:
    """Yield which seeds there are, and which settings were given on the command line."""
    seeds = ", ".join(map(str, grid.seeds))
    yield f"Seed {seeds}." if len(grid.seeds) == 1 else f"Mean ± standard deviation over seeds {seeds}."
    if more := [f"{key} = {value!r}" for key, value in grid.more.items() if key not in tagged("idle")]:
        yield f"Set besides: {', '.join(more)}."


def _incomplete(grid: ExperimentGrid, metric: str, only: str | None = None) -> Iterator[str]:
    """Yield which cells, of all columns or of one, have numbers of some seeds alone."""
    thin: dict[int, list[str]] = {}
    for row, column in grid.cells:
        count = len(grid.values(metric, row, column))
        if only in (None, column) and 0 < count < len(grid.seeds):
            thin.setdefault(count, []).append(f"{row}, {column}" if only is None else row)
    between = "; " if only is None else ", "
    for count, cells in sorted(thin.items()):
        yield f"Only {count} {'seed' if count == 1 else 'seeds'}: {between.join(cells)}."


def _put_together(grid: ExperimentGrid) -> Iterator[str]:
    """Yield which columns put together fewer others than they name: the scale or a row lacks some."""
    rows = grid.extent.rows
    for column in grid.extent.columns:
        rows_of: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            rows_of.setdefault((*grid.pooled(row, column),), []).append(row)
        for others, thin in rows_of.items():
            if 0 < len(others) < len({*grid.experiment.pooled(column)}):
                whose = "" if len(thin) == len(rows) else f" for {', '.join(thin)}"
                yield f"{column} is of {', '.join(others)} alone{whose}."


def _without_number(grid: ExperimentGrid, metric: str, only: str | None = None) -> Iterator[str]:
    """Yield why cells, of all columns or of one, have no number."""
    number = grid.metric(metric)
    without: dict[str, list[str]] = {}
    for row, column in grid.cells:
        if only in (None, column) and _cell(grid, metric, row, column) is None:
            reason = grid.experiment.no_number.get((metric, row, column), "")
            without.setdefault(reason, []).append(f"{row}, {column}" if only is None else row)
    what = "such number" if only is None else f"“{number.short or number.heading}”"
    for reason, cells in without.items():
        yield _sentence(f"These runs have no {what}: {'; '.join(cells)}{': ' if reason else ''}{reason}")


def _sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."


def _curves(grid: ExperimentGrid, name: str) -> Table:
    """Lay out a curve by round, at no more than ``CURVE_ROUNDS`` of them; each cell is a column."""
    heading, number = run_numbers.find_curve(name)
    points_by_cell: dict[str, dict[int, list[float]]] = {}
    for (row, column, _), run in grid.runs.items():
        if grid.store.state(run) is not State.FINISHED:
            continue
        points = points_by_cell.setdefault(f"{row}, {column}", {})
        history = of_clients(grid.store.folder(run).history(), grid.cells[row, column].clients)
        for round_number, value in history.curve(number).items():
            points.setdefault(round_number, []).append(float(value))
    for points in points_by_cell.values():  # only the rounds that all seeds have: some may have ended early
        most = max(map(len, points.values()), default=0)
        for round_number in [round_number for round_number, values in points.items() if len(values) < most]:
            del points[round_number]
    rounds = sorted({round_number for points in points_by_cell.values() for round_number in points})
    step = -(-len(rounds) // CURVE_ROUNDS) or 1
    shown = [round_number for place, round_number in enumerate(rounds) if place % step == 0 or place == len(rounds) - 1]
    rows: list[list[TableCell]] = [
        [
            round_number,
            *(
                Spread.of(points[round_number]) if round_number in points else None
                for points in points_by_cell.values()
            ),
        ]
        for round_number in shown
    ]
    title = f"{grid.experiment.title}: {heading} by round"
    note = "Every round: metrics.jsonl in the folders of the runs." if len(shown) < len(rounds) else ""
    return Table(title, ["round", *points_by_cell], rows, 4, note=note)


def analysed(grid: ExperimentGrid) -> Result:
    """Return the results of the experiment's analyses of the runs that have finished."""
    out = Result()
    for name in grid.experiment.analyses:
        options = grid.options(name)
        columns = grid.extent.columns if options.pop("of") == BY_COLUMN else (None,)
        options = {key.replace("-", "_"): value for key, value in options.items()}
        for column in columns:
            runs = grid.finished(column)
            if not runs:
                continue
            where = f", {column}" if column else ""
            try:
                result = ANALYSES[name].make(runs, **options)
            except FedpflError as error:
                out.tables.append(Table(f"{name}{where}", ["analysis", "why it is not there"], [[name, str(error)]]))
                continue
            out.tables.extend(replace(table, title=table.title + where) for table in result.tables)
            out.figures.extend(replace(figure, title=figure.title + where) for figure in result.figures)
    return out
