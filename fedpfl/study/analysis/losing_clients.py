"""Whether a client loses by taking part: each client against local training, and against the common model."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...results.run_folder import RunFolder
from ...results.same_clients import OTHER_CLIENTS, clients_key
from ...results.tables import Cell, Spread, Table
from .figure import Distributions, Points
from .registry import NoOptions, Result, analysis
from .repetitions import RunGroup, counted, grouped, require

# The clients' accuracies in percent of a run, in the round that counts.
Percent = Callable[[RunFolder], dict[str, float]]
BASELINES = ("local", "fedavg")


@analysis("per-client", "Each client's accuracy; who loses against local training or FedAvg (FedFac, figure 8)")
def per_client(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Show every client's accuracy, and compare it with the same client's under a baseline.

    The accuracies are of the round that counts in a comparison. Runs whose clients are not the same have tables of
    their own. A group is compared with a baseline over the seeds
    that both have.
    """
    groups, (each_of, when) = grouped(runs), counted(runs)

    def percent(run: RunFolder) -> dict[str, float]:
        return {client: 100 * accuracy for client, accuracy in each_of(run).items()}

    known: dict[str, dict[str, dict[str, Cell]]] = {}
    names: dict[str, Sequence[str]] = {}
    for group in groups:
        for label, run, each in _columns(group, percent):
            key = clients_key(run.task(), run.config())
            known.setdefault(key, {})[label] = each
            names.setdefault(key, run.task().get("client_names", ()))
    require(known, "a test of its clients", "every run tests all clients after its last round")
    result = Result([_table(columns, names[key], len(known) > 1, when) for key, columns in known.items()])
    of_groups = {group.label: [a for run in group.runs for a in percent(run).values()] for group in groups}
    some = {label: values for label, values in of_groups.items() if values}
    shown = dict(sorted(some.items(), key=lambda item: statistics.median(item[1])))  # as in the paper's figure
    result.figures.append(Distributions("Accuracy of the clients", "accuracy in percent", shown))
    gains: list[list[Cell]] = []
    for baseline in (group for group in groups if group.method in BASELINES):
        others = [group for group in groups if group is not baseline]
        compared = {group.label: pairs for group in others if (pairs := _pairs(group, baseline, percent))}
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


def _table(columns: Mapping[str, Mapping[str, Cell]], names: Sequence[str], others: bool, when: str) -> Table:
    """Return the accuracies of the runs that have the same clients; ``others``: there are runs with other ones."""
    clients = sorted({client for each in columns.values() for client in each}, key=int)
    rows: list[list[Cell]] = [
        [int(client), *([names[int(client)]] if names else []), *(each.get(client) for each in columns.values())]
        for client in clients
    ]
    title = "Accuracy of each client in percent" + (f": {', '.join(columns)}" if others else "")
    note = f"On test samples, {when}."
    note += f" A client of another table is somebody else: {OTHER_CLIENTS}." if others else ""
    return Table(title, ["client", *["name"] * bool(names), *columns], rows, note=note)


def _columns(group: RunGroup, percent: Percent) -> Iterator[tuple[str, RunFolder, dict[str, Cell]]]:
    """Yield label, a run and the clients' accuracies in percent, over seeds that have the same clients, or of each."""
    tested = {run: each for run in group.runs if (each := percent(run))}
    if len({clients_key(run.task(), run.config()) for run in tested}) == 1 < len(tested):
        clients = {client for each in tested.values() for client in each}
        of = {client: [each[client] for each in tested.values() if client in each] for client in clients}
        yield group.label, next(iter(tested)), {client: Spread.of(values) for client, values in of.items()}
        return
    for run, each in tested.items():
        label = f"{group.label}, seed {run.config()['seed']}" if len(group.runs) > 1 else group.label
        yield label, run, {**each}


def _pairs(group: RunGroup, baseline: RunGroup, percent: Percent) -> list[tuple[float, float]]:
    """Return (own, baseline's) accuracy in percent of every client that both have, seed by seed."""
    known = {_place(run): percent(run) for run in baseline.runs}
    pairs = []
    for run in group.runs:
        other = known.get(_place(run), {})
        pairs += [(own, other[client]) for client, own in percent(run).items() if client in other]
    return pairs


def _place(run: RunFolder) -> tuple[object, str]:
    return run.config()["seed"], clients_key(run.task(), run.config())
