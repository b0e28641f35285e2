"""Whether FedFac's split comes to rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..results.run import RunFolder
from ..results.tables import Cell, Table
from .figure import Lines
from .registry import NoOptions, Result, analysis
from .runs import curve, grouped, last, mean_curve, require

AT_REST = 0.99


@analysis("unchanged-channels", "Share of channels on the same side as the round before (FedFac, figure 7)")
def unchanged_channels(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Show the share of Λ's channels that did not change side; it tends to 1 where the dynamic split comes to rest."""
    rows: list[list[Cell]] = []
    series = {}
    for group in grouped(runs):
        rounds, values = mean_curve(group.runs, "unchanged-channels")
        if not rounds:
            continue
        series[group.label] = rounds, values
        at_rest = group.spread(_at_rest)
        unchanged = group.spread(partial(last, name="unchanged-channels"))
        shared = group.spread(partial(last, name="shared-channels"))
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


def _at_rest(run: RunFolder) -> float | None:
    """Return the first round from which on the share is at least ``AT_REST``; None if it is not at the end."""
    found = None
    for number, value in zip(*curve(run, "unchanged-channels"), strict=True):
        found = None if value < AT_REST else found or number
    return found
