"""What a method costs in time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ..results import RunFolder
from ..tables import Table
from .figure import Bars
from .registry import NoOptions, Result, analysis
from .runs import grouped, require

BASELINE = "fedavg"


@analysis("training-time", "Time of a round relative to FedAvg's on the same machine (FedFac, table 7)")
def training_time(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Divide the median seconds of a round's training by those of the first group of runs of FedAvg.

    The first round, in which processes start and data are loaded, does not count where there are others.
    """
    timed = [
        (g.label, g.method, spread) for g in grouped(runs) for spread in [g.spread(_seconds)] if spread is not None
    ]
    require(timed, "a finished round", "nothing was trained")
    base = next((spread.mean for _, name, spread in timed if name == BASELINE), None)
    relative = [None if base is None else spread.mean / base for _, _, spread in timed]
    note = "Seconds are what the machine took, whatever else it did: compare runs of one machine that ran alone."
    if base is None:
        note += " No run of fedavg was given, so there is nothing to relate them to."
    rows = [[label, seconds, ratio] for (label, _, seconds), ratio in zip(timed, relative, strict=True)]
    table = Table("Training time", ["run", "seconds a round", "relative to FedAvg"], rows, note=note)
    bars = Bars("Training time", "FedAvg = 1", [label for label, _, _ in timed], {"relative to FedAvg": relative})
    return Result([table], [] if base is None else [bars])


def _seconds(run: RunFolder) -> float | None:
    seconds = [line["seconds_train"] for line in run.metrics()]
    return statistics.median(seconds[1:] or seconds) if seconds else None
