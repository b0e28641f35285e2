"""The clients' accuracies: how evenly a method serves them, and who loses against local training or FedAvg."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

from ...results.history import worst_tenth
from ...results.identity import OTHER_CLIENTS, clients_key
from ...results.run_folder import RunFolder
from ...results.tables import Cell, Spread, Table
from .figure import Distributions, Points
from .registry import NoOptions, Result, analysis
from .repetitions import RunGroup, ScoreFormat, bars, counted, grouped, require, score_of, untested

# The clients' scores of a run, in the round that counts.
Scores = Callable[[RunFolder], dict[str, float]]
BASELINES = ("local", "fedavg")


@analysis("per-client", "Each client's accuracy; who loses against local training or FedAvg (FedFac, figure 8)")
def per_client(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Show every client's accuracy, and compare it with the same client's under a baseline.

    The accuracies are of the round that counts in a comparison. Runs whose clients are not the same have tables of
    their own. A group is compared with a baseline over the seeds
    that both have.
    """
    groups, (each_of, when), score = grouped(runs), counted(runs), score_of(runs)

    def scores(run: RunFolder) -> dict[str, float]:
        return {client: score.factor * accuracy for client, accuracy in each_of(run).items()}

    columns_by_clients: dict[str, dict[str, dict[str, Cell]]] = {}
    names: dict[str, Sequence[str]] = {}
    for group in groups:
        for label, run, each in _columns(group, scores):
            key = clients_key(run.task(), run.config())
            columns_by_clients.setdefault(key, {})[label] = each
            names.setdefault(key, run.task().get("client_names", ()))
    require(columns_by_clients, "a test of its clients", "every run tests all clients after its last round")
    of_tests = " ".join([f"On test samples, {when}.", *untested(runs)])
    result = Result(
        [
            _table(columns, names[key], len(columns_by_clients) > 1, of_tests, score)
            for key, columns in columns_by_clients.items()
        ]
    )
    of_groups = {group.label: [a for run in group.runs for a in scores(run).values()] for group in groups}
    some = {label: values for label, values in of_groups.items() if values}
    shown = dict(sorted(some.items(), key=lambda item: statistics.median(item[1])))  # as in the paper's figure
    result.figures.append(Distributions(f"{score.title} of the clients", score.axis, shown))
    gains: list[list[Cell]] = []
    for baseline in (group for group in groups if group.method in BASELINES):
        others = [group for group in groups if group is not baseline]
        compared = {group.label: pairs for group in others if (pairs := _pairs(group, baseline, scores))}
        for label, pairs in compared.items():
            differences = [score - other for score, other in pairs]
            gain, lose = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
            counts = [len(pairs), gain, len(pairs) - gain - lose, lose]
            gains.append([label, baseline.label, *counts, min(differences), statistics.fmean(differences)])
        if compared:
            points = {
                label: ([other for _, other in pairs], [score for score, _ in pairs])
                for label, pairs in compared.items()
            }
            title = f"Each client against {baseline.label}"
            result.figures.append(
                Points(title, score.head(baseline.label), score.head("method"), points, diagonal=True)
            )
    if gains:
        unit = ", points" if score.factor == 100 else ""
        heads = ["run", "against", "clients", "gain", "tie", "lose", f"smallest gain{unit}", f"mean gain{unit}"]
        note = "A client counts once for each seed that both have; a smallest gain below 0 is a loss."
        result.tables.append(Table("Who loses by taking part", heads, gains, score.digits, note=note))
    return result


def _table(
    columns: Mapping[str, Mapping[str, Cell]], names: Sequence[str], others: bool, note: str, score: ScoreFormat
) -> Table:
    """Return the accuracies of the runs that have the same clients; ``others``: there are runs with other ones."""
    clients = sorted({client for each in columns.values() for client in each}, key=int)
    rows: list[list[Cell]] = [
        [int(client), *([names[int(client)]] if names else []), *(each.get(client) for each in columns.values())]
        for client in clients
    ]
    title = f"{score.title} of each client{' in percent' if score.factor == 100 else ''}" + (
        f": {', '.join(columns)}" if others else ""
    )
    note += f" A client of another table is somebody else: {OTHER_CLIENTS}." if others else ""
    return Table(title, ["client", *["name"] * bool(names), *columns], rows, score.digits, note=note)


def _columns(group: RunGroup, scores: Scores) -> Iterator[tuple[str, RunFolder, dict[str, Cell]]]:
    """Yield label, a run and the clients' scores, over seeds that have the same clients, or of each."""
    tested = {run: each for run in group.runs if (each := scores(run))}
    if len({clients_key(run.task(), run.config()) for run in tested}) == 1 < len(tested):
        clients = {client for each in tested.values() for client in each}
        spreads = {client: [each[client] for each in tested.values() if client in each] for client in clients}
        yield group.label, next(iter(tested)), {client: Spread.of(values) for client, values in spreads.items()}
        return
    for run, each in tested.items():
        label = f"{group.label}, seed {run.config()['seed']}" if len(group.runs) > 1 else group.label
        yield label, run, {**each}


def _pairs(group: RunGroup, baseline: RunGroup, scores: Scores) -> list[tuple[float, float]]:
    """Return (own, baseline's) score of every client that both have, seed by seed."""
    scores_of_baseline = {_place(run): scores(run) for run in baseline.runs}
    pairs = []
    for run in group.runs:
        other = scores_of_baseline.get(_place(run), {})
        pairs += [(score, other[client]) for client, score in scores(run).items() if client in other]
    return pairs


def _place(run: RunFolder) -> tuple[object, str]:
    return run.config()["seed"], clients_key(run.task(), run.config())


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
    note = " ".join([f"On test samples, {when}.", *untested(runs)])
    unit = "accuracies in percent" if score.factor == 100 else score.name
    heads = ["run", score.head("mean"), *[*COLUMNS][1:]]
    table = Table(f"Fairness: the clients' {unit}", heads, rows, score.digits, note=note)
    # A deviation has no place on the axis of the others.
    drawn = [[row[0], row[1], *row[3:5]] for row in rows]
    return Result([table], [bars("Fairness", score.axis, ["mean", "worst 10 %", "best 10 %"], drawn)])
