"""Accuracy along an axis: the number of clients, or how unlike they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from fedpfl.results.history import History
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Spread, Table
from fedpfl.study.analysis.figure import Lines
from fedpfl.study.analysis.registry import NoOptions, Result, analysis
from fedpfl.study.analysis.repetitions import RunGroup, grouped, require


@analysis("scalability", "Best global and client accuracy over the number of clients (FedReG, table 3)")
def scalability(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Tabulate runs that differ in their number of clients."""
    return _sweep(runs, "clients", "clients", lambda group: group.clients)


@analysis("robustness", "Best global and client accuracy over α, and what a smaller α costs (FedReG, table 4)")
def robustness(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Tabulate runs that differ in ``dirichlet-alpha``, and what is lost from the largest to the smallest."""
    return _sweep(runs, "dirichlet-alpha", "α", lambda group: float(group.setting("dirichlet-alpha")), loss=True)


MEASURES = {
    "global.accuracy": "global accuracy",
    "personalised.weighted": "client accuracy (all test samples alike)",
}


def _sweep(
    runs: Sequence[RunFolder], axis: str, name: str, place: Callable[[RunGroup], float], loss: bool = False
) -> Result:
    groups = grouped(runs, axis)
    places = sorted({place(group) for group in groups})
    result = Result()
    for number, what in MEASURES.items():
        cells: dict[tuple[str, float], Spread] = {}
        for group in groups:
            if spread := group.percent(partial(History.best, number=number)):
                cells[group.label, place(group)] = spread
        if not cells:
            continue
        columns, rows, series = ["run", *(f"{name} = {x:g}" for x in places)], [], {}
        for label in dict.fromkeys(label for label, _ in cells):
            known_places = [x for x in places if (label, x) in cells]
            means = [cells[label, x].mean for x in known_places]
            row: list[Cell] = [label, *(cells.get((label, x)) for x in places)]
            rows.append([*row, means[-1] - means[0] if len(known_places) > 1 else None] if loss else row)
            series[label] = known_places, means
        title = f"Best {what} in percent, by {name}"
        result.tables.append(Table(title, [*columns, "lost, points"] if loss else columns, rows))
        result.figures.append(Lines(title, name, "percent", series))
    require(result.tables, "a test of its clients", "every run tests all clients after its last round")
    return result
