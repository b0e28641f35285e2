"""How evenly a method serves its clients."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from ...results.history import worst_tenth
from ...results.run_folder import RunFolder
from ...results.tables import Cell, Spread, Table
from .registry import NoOptions, Result, analysis
from .repetitions import bars, counted, grouped, require, score_of


def best_tenth(accuracies: Sequence[float]) -> float:
    """Return the mean of the best tenth of the clients, at least one."""
    return statistics.fmean(sorted(accuracies)[-max(1, len(accuracies) // 10) :])


COLUMNS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean, "std over clients": statistics.pstdev, "worst 10 %": worst_tenth,
    "best 10 %": best_tenth, "worst client": min, "median client": statistics.median,
}  # fmt: skip


@analysis("fairness", "Spread of the clients' accuracies and the worst 10 % (Li et al., Ditto, ICML 2021, section 4)")
def fairness(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Summarise the clients' accuracies in each run: of the round that counts in a comparison."""
    each, when = counted(runs)
    score = score_of(runs)
    rows: list[list[Cell]] = []
    for group in grouped(runs):
        accuracies = [list(scores.values()) for run in group.runs if (scores := each(run))]
        numbers = [[score.factor * number(clients) for clients in accuracies] for number in COLUMNS.values()]
        rows.append([group.label, *(Spread.of(values) if values else None for values in numbers)])
    rows = [row for row in rows if row[1] is not None]
    require(rows, "a test of its clients", "every run tests all clients after its last round; wait for its end")
    note = f"On test samples, {when}."
    unit = "accuracies in percent" if score.factor == 100 else score.name
    heads = ["run", score.head("mean"), *[*COLUMNS][1:]]
    table = Table(f"Fairness: the clients' {unit}", heads, rows, score.digits, note=note)
    # A deviation has no place on the axis of the others.
    drawn = [[row[0], row[1], *row[3:5]] for row in rows]
    return Result([table], [bars("Fairness", score.axis, ["mean", "worst 10 %", "best 10 %"], drawn)])
