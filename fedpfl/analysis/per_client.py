"""Whether anybody loses by taking part: each client against what it has alone, and against the common model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ..results import RunFolder
from ..tables import Cell, Table
from .figure import Bars, Points
from .registry import NoOptions, NotRecorded, Result, analysis
from .runs import Group, grouped, last_accuracies

BASELINES = ("local", "fedavg")


@analysis("per-client", "Each client's accuracy; who loses against local training or FedAvg (FedFac, figure 8)")
def per_client(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Compare each client's accuracy, a mean over the seeds that are there, with the same client's under a baseline.

    Clients are the same where data set, division, number of clients and seed are; a group is compared with a baseline
    over the seeds that both have.
    """
    tested = [group for group in grouped(runs) if any(last_accuracies(run) for run in group.runs)]
    if not tested:
        raise NotRecorded("none of the runs has a test of its clients: every run tests them after its last round")
    figures: list[Bars | Points] = []
    clients = sorted({client for group in tested for client in _mean(group)}, key=int)
    each = {group.label: [_mean(group).get(client) for client in clients] for group in tested}
    rows: list[list[Cell]] = [[int(client), *(_percent(each[g.label][i]) for g in tested)]
                              for i, client in enumerate(clients)]  # fmt: skip
    tables = [Table("Accuracy of each client in percent", ["client", *each], rows)]
    figures.append(Bars("Accuracy of each client", "percent", clients,
                        {label: [_percent(value) for value in values] for label, values in each.items()}))  # fmt: skip
    losers: list[list[Cell]] = []
    for baseline in (group for group in tested if group.method in BASELINES):
        scatter = {}
        for group in (group for group in tested if group is not baseline):
            pairs = _pairs(group, baseline)
            if not pairs:
                continue
            gains = [100 * (own - other) for own, other in pairs]
            lost = [gain for gain in gains if gain < 0]
            losers.append([group.label, baseline.label, len(gains), len(lost), min(gains), statistics.fmean(gains)])
            scatter[group.label] = [100 * other for _, other in pairs], [100 * own for own, _ in pairs]
        if scatter:
            title = f"Each client against {baseline.label}"
            figures.append(Points(title, f"{baseline.label}, %", "method, %", scatter))
    if losers:
        columns = ["run", "against", "clients", "of them lose", "smallest gain, points", "mean gain, points"]
        note = "A client counts once for each seed that both have; a smallest gain below 0 is a loss."
        tables.append(Table("Who loses by taking part", columns, losers, note=note))
    return Result(tables, list(figures))


def _mean(group: Group) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for run in group.runs:
        for client, accuracy in (last_accuracies(run) or {}).items():
            values.setdefault(client, []).append(accuracy)
    return {client: statistics.fmean(of) for client, of in values.items()}


DIVISION = ("dataset", "data", "partitioner", "dirichlet-alpha", "classes-per-client", "train-samples", "test-samples",
            "split", "test-fraction", "min-samples", "permute-labels", "seed")  # fmt: skip


def _pairs(group: Group, baseline: Group) -> list[tuple[float, float]]:
    """Return (own, baseline's) accuracy of every client that both have, seed by seed."""
    division = {_division(run, baseline.clients): last_accuracies(run) or {} for run in baseline.runs}
    pairs = []
    for run in group.runs:
        other = division.get(_division(run, group.clients), {})
        pairs += [(own, other[client]) for client, own in (last_accuracies(run) or {}).items() if client in other]
    return pairs


def _division(run: RunFolder, clients: int) -> tuple[object, ...]:
    config = run.config()
    return (clients, *(config.get(key) for key in DIVISION))


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
