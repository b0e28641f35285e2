"""Global and personal accuracy in one number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from fedpfl.results.history import History
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Table
from fedpfl.study.analysis.figure import Lines
from fedpfl.study.analysis.registry import NoOptions, Result, analysis
from fedpfl.study.analysis.repetitions import grouped, require

GLOBAL, PERSONAL = "global.accuracy", "personalised.weighted"


def ratio(g: float, p: float) -> float:
    """Return log10(g/p)."""
    return math.log10(g / p)


def product(g: float, p: float) -> float:
    """Return log10(g·p)."""
    return math.log10(g * p)


@analysis("overall", "Overall metric log10(g/p) of global and personal accuracy (FedReG, figure 7)")
def overall(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Compute FedReG's overall metric, over the number of clients.

    g is the best global accuracy and p the best personal one (share of all clients' test samples), both from 0 to 1.

    The paper prints log10(g/p): how little the global model falls behind the personal ones; it is 0 for methods with
    one model. Its table 3 and its text on figure 7 (FedReG is ahead "apart from the traditional FL algorithm") fit
    that: with log10(g·p) it would be ahead of those as well. log10(g·p), which also counts how good both are, is in the
    table, too.
    """
    rows: list[list[Cell]] = []
    series: dict[str, list[tuple[float, float]]] = {}
    for group in grouped(runs, "clients"):
        g = group.percent(lambda history: history.best(GLOBAL))
        p = group.percent(lambda history: history.best(PERSONAL))
        metric, other = (group.spread(partial(_metric_of_best, metric=metric)) for metric in (ratio, product))
        if g is None or p is None or metric is None:
            continue
        rows.append([group.label, group.clients, g, p, metric, other])
        series.setdefault(group.label, []).append((float(group.clients), metric.mean))
    require(rows, "both a global and a personal accuracy above 0", "evaluate-global = true records the global one of "
            "methods without a global model")  # fmt: skip
    ordered = {
        label: ([x for x, _ in sorted(points)], [y for _, y in sorted(points)]) for label, points in series.items()
    }
    columns = ["run", "clients", "global g, %", "personal p, %", "log10(g/p)", "log10(g·p)"]
    table = Table("Overall metric", columns, rows, digits=3)
    return Result([table], [Lines("Overall metric", "clients", "log10(g/p)", ordered)])


def _metric_of_best(history: History, metric: Callable[[float, float], float]) -> float | None:
    g, p = history.best(GLOBAL), history.best(PERSONAL)
    return metric(g, p) if g and p else None
