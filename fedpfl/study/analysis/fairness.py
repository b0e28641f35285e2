"""How evenly a method serves its clients."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from ...results.history import History, worst_tenth
from ...results.run_folder import RunFolder
from ...results.tables import Cell, Table
from .registry import NoOptions, Result, analysis
from .repetitions import bars, grouped, require


def best_tenth(accuracies: Sequence[float]) -> float:
    """Return the mean of the best tenth of the clients, at least one."""
    return statistics.fmean(sorted(accuracies)[-max(1, len(accuracies) // 10) :])


COLUMNS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean, %": statistics.fmean, "std over clients": statistics.pstdev, "worst 10 %": worst_tenth,
    "best 10 %": best_tenth, "worst client": min, "median client": statistics.median,
}  # fmt: skip


@analysis("fairness", "Spread of the clients' accuracies and the worst 10 % (Li et al., Ditto, ICML 2021, section 4)")
def fairness(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Summarise the clients' accuracies at the last test of each run, in percent."""
    rows: list[list[Cell]] = [
        [group.label, *(group.percent(_of_clients(number)) for number in COLUMNS.values())] for group in grouped(runs)
    ]
    rows = [row for row in rows if row[1] is not None]
    require(rows, "a test of its clients", "every run tests all clients after its last round; wait for its end")
    table = Table("Fairness: the clients' accuracies in percent", ["run", *COLUMNS], rows)
    return Result([table], [bars("Fairness", "percent", list(COLUMNS)[:4], rows)])


def _of_clients(number: Callable[[Sequence[float]], float]) -> Callable[[History], float | None]:
    def of_run(history: History) -> float | None:
        accuracies = list(history.last_test().values())
        return number(accuracies) if accuracies else None

    return of_run
