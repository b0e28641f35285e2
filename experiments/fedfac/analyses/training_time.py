"""What a method costs in time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fedpfl.results.history import History
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Table
from fedpfl.study.analysis.figure import Bars
from fedpfl.study.analysis.registry import NoOptions, Result, analysis
from fedpfl.study.analysis.repetitions import RunGroup, grouped, require

BASELINE = "fedavg"


@analysis("training-time", "Time of a round relative to FedAvg's on the same machine (FedFac, table 7)")
def training_time(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Divide the median seconds of a round's training by FedAvg's.

    FedAvg's are those of the first group of its runs in the same column of an experiment, with the same data set, model
    and number of clients. The first round, in which processes start and data are loaded, does not count if there are
    others.
    """
    timed = [(group, spread) for group in grouped(runs) for spread in [group.spread(_seconds)] if spread is not None]
    require(timed, "a finished round", "nothing was trained")
    # The first of several groups of a method counts; in the reversed order it comes last.
    means = {(group.method, _kind(group)): spread.mean for group, spread in reversed(timed)}
    bases = [means.get((BASELINE, _kind(group))) for group, _ in timed]
    relative = [base and spread.mean / base for base, (_, spread) in zip(bases, timed, strict=True)]
    note = (
        "Seconds are wall-clock time, whatever else the machine did: compare only runs that ran alone on one machine."
    )
    if len({_kind(group) for group, _ in timed}) > 1:
        note += " Each run is compared with fedavg on the same data set, model and number of clients."
    if None in relative:
        note += " Runs without a ratio have no matching run of fedavg to compare with."
    rows = [[group.label, seconds, ratio] for (group, seconds), ratio in zip(timed, relative, strict=True)]
    table = Table("Training time", ["run", "seconds a round", "relative to FedAvg"], rows, note=note)
    bars = Bars("Training time", "FedAvg = 1", [group.label for group, _ in timed], {"relative to FedAvg": relative})
    return Result([table], [bars] if any(bases) else [])


def _kind(group: RunGroup) -> tuple[object, ...]:
    return group.runs[0].column, group.setting("dataset"), group.setting("model"), group.clients


def _seconds(history: History) -> float | None:
    seconds = list(history.curve("seconds_train").values())
    return statistics.median(seconds[1:] or seconds) if seconds else None
