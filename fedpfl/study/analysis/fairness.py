"""How evenly a method serves its clients."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from ...results.history import worst_tenth
from ...results.run_folder import RunFolder
from ...results.tables import Cell, Spread, Table
from .registry import NoOptions, Result, analysis
from .repetitions import bars, counted, grouped, require


def best_tenth(accuracies: Sequence[float]) -> float:
    """Return the mean of the best tenth of the clients, at least one."""
    return statistics.fmean(sorted(accuracies)[-max(1, len(accuracies) // 10) :])


COLUMNS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean, %": statistics.fmean, "std over clients": statistics.pstdev, "worst 10 %": worst_tenth,
    "best 10 %": best_tenth, "worst client": min, "median client": statistics.median,
}  # fmt: skip


@analysis("fairness", "Spread of the clients' accuracies and the worst 10 % (Li et al., Ditto, ICML 2021, section 4)")
def fairness(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Summarise the clients' accuracies in each run, in percent: of the round that counts in a comparison."""
    each, when = counted(runs)
    rows: list[list[Cell]] = []
    for group in grouped(runs):
        accuracies = [list(found.values()) for run in group.runs if (found := each(run))]
        percent = [[100 * number(of) for of in accuracies] for number in COLUMNS.values()]
        rows.append([group.label, *(Spread.of(values) if values else None for values in percent)])
    rows = [row for row in rows if row[1] is not None]
    require(rows, "a test of its clients", "every run tests all clients after its last round; wait for its end")
    note = f"On test samples, {when}."
    table = Table("Fairness: the clients' accuracies in percent", ["run", *COLUMNS], rows, note=note)
    return Result([table], [bars("Fairness", "percent", list(COLUMNS)[:4], rows)])
