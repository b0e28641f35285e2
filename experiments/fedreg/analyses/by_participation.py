"""How accurate clients are by how often they have trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from fedpfl.results.history import History
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Spread, Table
from fedpfl.study.analysis.figure import Lines
from fedpfl.study.analysis.registry import NoOptions, Result, analysis
from fedpfl.study.analysis.repetitions import grouped, require, score_of


@analysis("participation", "Accuracy of clients that have trained in 0, 1, 2, 3 to 4, 5 to 8 … rounds so far")
def participation(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Show how often a client has to train until its model is good, where a round asks only some of them.

    Each test of each client counts, by the number of rounds in which the client had trained until then.
    """
    values_by_label, score = {}, score_of(runs)
    for group in grouped(runs):
        values: dict[int, list[float]] = {}
        for run in group.runs:
            for rounds, accuracy in by_rounds(run.history(), run.config().get("test-at") == "start").items():
                values.setdefault(rounds, []).append(score.factor * accuracy)
        if values:
            values_by_label[group.label] = values
    require(values_by_label, "a test of its clients", "every run tests all clients after its last round")
    starts = sorted({rounds for values in values_by_label.values() for rounds in values})
    rows: list[list[Cell]] = [
        [label, *(Spread.of(values[start]) if start in values else None for start in starts)]
        for label, values in values_by_label.items()
    ]
    title, note = f"{score.title} by how often a client has trained", "Columns: rounds in which the client has trained."
    table = Table(title, ["run", *map(named, starts)], rows, score.digits, note=note)
    series = {
        label: (sorted(values), [fmean(values[start]) for start in sorted(values)])
        for label, values in values_by_label.items()
    }
    return Result([table], [Lines(title, "rounds in which the client has trained", score.axis, series)])


def by_rounds(history: History, before_training: bool = False) -> Mapping[int, float]:
    """Return the mean accuracy, by the lowest number of trainings of those that count together.

    The tests of a round are after its training, or before it.
    """
    trained: Counter[str] = Counter()
    accuracies: dict[int, list[float]] = {}
    tests = history.tests()
    for line in history.lines:
        if not before_training:
            trained.update(map(str, line["clients"]))
        for client, accuracy in tests.get(line["round"], {}).items():
            accuracies.setdefault(lowest(trained[client]), []).append(accuracy)
        if before_training:
            trained.update(map(str, line["clients"]))
    return {start: fmean(accuracies[start]) for start in sorted(accuracies)}


def lowest(rounds: int) -> int:
    """Return the lowest of the numbers that count together with this one, one of 0, 1, 2, 3, 5, 9, 17 and so on."""
    return rounds if rounds < 2 else (1 << (rounds - 1).bit_length() - 1) + 1


def named(start: int) -> str:
    """Return the numbers that count together, as text."""
    return str(start) if start < 3 else f"{start} to {2 * (start - 1)}"
