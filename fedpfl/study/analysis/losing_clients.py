"""Whether a client loses by taking part: each client against local training, and against the common model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ...core.settings import keys, parse
from ...data.settings import DataSettings
from ...results.run_folder import RunFolder
from ...results.tables import Cell, Spread, Table
from .figure import Distributions, Points
from .registry import NoOptions, Result, analysis
from .repetitions import RunGroup, grouped, require

BASELINES = ("local", "fedavg")
# Where the data lie, and what is known as the number of clients however it was given.
ELSEWHERE = ("data-dir", "num-clients")


@analysis("per-client", "Each client's accuracy; who loses against local training or FedAvg (FedFac, figure 8)")
def per_client(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Show every client's accuracy at the last test, and compare it with the same client's under a baseline.

    Clients are the same where data, division, number of clients and seed are. A group is compared with a baseline over
    the seeds that both have.
    """
    groups = grouped(runs)
    columns = {name: each for group in groups for name, each in _columns(group).items()}
    require(columns, "a test of its clients", "every run tests all clients after its last round")
    clients = sorted({client for each in columns.values() for client in each}, key=int)
    names = runs[0].task().get("client_names")
    rows: list[list[Cell]] = [
        [int(client), *([names[int(client)]] if names else []), *(each.get(client) for each in columns.values())]
        for client in clients
    ]
    heads = ["client", *["name"] * bool(names), *columns]
    result = Result([Table("Accuracy of each client in percent", heads, rows)])
    of_groups = {group.label: [a for run in group.runs for a in _percent(run).values()] for group in groups}
    some = {label: values for label, values in of_groups.items() if values}
    shown = dict(sorted(some.items(), key=lambda item: statistics.median(item[1])))  # as in the paper's figure
    result.figures.append(Distributions("Accuracy of the clients", "accuracy in percent", shown))
    gains: list[list[Cell]] = []
    for baseline in (group for group in groups if group.method in BASELINES):
        compared = {g.label: pairs for g in groups if g is not baseline for pairs in [_pairs(g, baseline)] if pairs}
        for label, pairs in compared.items():
            differences = [own - other for own, other in pairs]
            gain, lose = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
            counts = [len(pairs), gain, len(pairs) - gain - lose, lose]
            gains.append([label, baseline.label, *counts, min(differences), statistics.fmean(differences)])
        if compared:
            points = {
                label: ([other for _, other in pairs], [own for own, _ in pairs]) for label, pairs in compared.items()
            }
            title = f"Each client against {baseline.label}"
            result.figures.append(Points(title, f"{baseline.label}, %", "method, %", points, diagonal=True))
    if gains:
        heads = ["run", "against", "clients", "gain", "tie", "lose", "smallest gain, points", "mean gain, points"]
        note = "A client counts once for each seed that both have; a smallest gain below 0 is a loss."
        result.tables.append(Table("Who loses by taking part", heads, gains, note=note))
    return result


def _columns(group: RunGroup) -> dict[str, dict[str, Cell]]:
    """Return the clients' accuracies in percent over seeds that have the same clients, or else of each seed."""
    tested = {run: each for run in group.runs if (each := _percent(run))}
    if len(tested) > 1 and all(map(has_same_clients, tested)):
        clients = {client for each in tested.values() for client in each}
        of = {client: [each[client] for each in tested.values() if client in each] for client in clients}
        return {group.label: {client: Spread.of(values) for client, values in of.items()}}
    several = len(group.runs) > 1
    return {
        f"{group.label}, seed {run.config()['seed']}" if several else group.label: {**each}
        for run, each in tested.items()
    }


def _pairs(group: RunGroup, baseline: RunGroup) -> list[tuple[float, float]]:
    """Return (own, baseline's) accuracy in percent of every client that both have, seed by seed."""
    known = {division(run, baseline.clients): _percent(run) for run in baseline.runs}
    pairs = []
    for run in group.runs:
        other = known.get(division(run, group.clients), {})
        pairs += [(own, other[client]) for client, own in _percent(run).items() if client in other]
    return pairs


def division(run: RunFolder, clients: int) -> tuple[object, ...]:
    """Return all that the division of the data follows from: clients, seed, settings."""
    config = run.config()
    return (clients, config["seed"], *(config.get(key) for key in keys(DataSettings) if key not in ELSEWHERE))


def has_same_clients(run: RunFolder) -> bool:
    """Return whether runs with other seeds have the same clients."""
    data = parse(DataSettings, run.config())
    return bool(data.partition_seed or data.division_file or data.partitioner == "natural")


def _percent(run: RunFolder) -> dict[str, float]:
    return {client: 100 * accuracy for client, accuracy in run.history().last_test().items()}
