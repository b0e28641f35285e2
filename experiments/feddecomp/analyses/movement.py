"""How far arrays move: clients from each other within a round, shared and personal parts over the run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial

from fedpfl.results.history import History
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Table
from fedpfl.study.analysis.figure import Lines
from fedpfl.study.analysis.registry import NoOptions, Result, analysis
from fedpfl.study.analysis.repetitions import grouped, require

HOW = "diagnostics = true records it"
DRIFT, SHARED, PERSONAL = "details.drift", "details.shared-change", "details.personal-change"


@analysis("model-difference", "Mean distance of the clients' shared arrays from their mean (FedDecomp, figure 6)")
def model_difference(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Show (1/N)·Σ‖σ_i − σ̄‖₂ of each round; over several seeds its mean."""
    rows: list[list[Cell]] = []
    series = {}
    for group in grouped(runs):
        rounds, values, _ = group.curve(DRIFT)
        if not rounds:
            continue
        series[group.label] = rounds, values
        of_rounds = group.spread(_mean_drift)
        rows.append([group.label, values[0], values[-1], of_rounds])
    require(rows, "the distance of the clients' models", HOW)
    columns = ["run", "first round", "last round", "mean of all rounds"]
    table = Table("Model difference (1/N)·Σ‖σ_i − σ̄‖₂", columns, rows, digits=3)
    return Result([table], [Lines("Model difference", "round", "mean distance", series)])


@analysis("movement", "Δσ and Δτ: how far shared and personal parts move (FedDecomp, table 6)")
def movement(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Show Δσ = ‖σ̄ − σ̄¹‖₂ and Δτ = (1/N)·Σ‖τ_i − τ_i¹‖₂ at the end of each run, and their curves."""
    rows: list[list[Cell]] = []
    series = {}
    for group in grouped(runs):
        shared, personal = (group.spread(partial(History.last, number=number)) for number in (SHARED, PERSONAL))
        if shared is None and personal is None:
            continue
        ratio = personal.mean / shared.mean if personal and shared and shared.mean else None
        accuracy = group.percent(lambda history: history.best("personalised.accuracy"))
        rows.append([group.label, shared, personal, ratio, accuracy])
        for name, symbol in ((SHARED, "Δσ"), (PERSONAL, "Δτ")):
            rounds, values, _ = group.curve(name)
            if rounds:
                series[f"{group.label}, {symbol}"] = rounds, values
    require(rows, "the movement of its arrays", HOW)
    columns = ["run", "Δσ (shared)", "Δτ (personal)", "Δτ/Δσ", "best accuracy, %"]
    return Result([Table("Movement since the start", columns, rows)],
                  [Lines("Movement since the start", "round", "distance", series)])  # fmt: skip


def _mean_drift(history: History) -> float | None:
    values = history.curve(DRIFT).values()
    return statistics.fmean(values) if values else None
