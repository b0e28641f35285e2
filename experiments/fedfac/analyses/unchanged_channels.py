"""Whether FedFac's split comes to rest."""

from __future__ import annotations

from collections.abc import Sequence

from fedpfl.results.history import History
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Table
from fedpfl.study.analysis.figure import Lines
from fedpfl.study.analysis.registry import NoOptions, Result, analysis
from fedpfl.study.analysis.repetitions import grouped, require

AT_REST = 0.99
UNCHANGED = "details.unchanged-channels"


@analysis("unchanged-channels", "Share of channels on the same side as the round before (FedFac, figure 7)")
def unchanged_channels(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Show the share of Λ's channels that did not change side; it tends to 1 where the dynamic split comes to rest."""
    rows: list[list[Cell]] = []
    series = {}
    for group in grouped(runs):
        rounds, values, _ = group.curve(UNCHANGED)
        if not rounds:
            continue
        series[group.label] = rounds, values
        at_rest = group.spread(_unchanged)
        unchanged = group.spread(lambda history: history.last(UNCHANGED))
        shared = group.spread(lambda history: history.last("details.shared-channels"))
        rows.append([group.label, unchanged, shared, at_rest])
    require(rows, "a split that can change", 'fedfac-variant = "dynamic" records it')
    columns = [
        "run",
        "unchanged, last round",
        "shared, last round",
        f"first round from which at least {AT_REST:g} stay",
    ]
    return Result([Table("Unchanged channels", columns, rows, digits=3)],
                  [Lines("Unchanged channels", "round", "share of the channels", series)])  # fmt: skip


def _unchanged(history: History) -> float | None:
    """Return the first round from which on the share is at least ``AT_REST``; None if it is not at the end."""
    rest_since = None
    for number, value in history.curve(UNCHANGED).items():
        rest_since = None if value < AT_REST else rest_since or number
    return rest_since
