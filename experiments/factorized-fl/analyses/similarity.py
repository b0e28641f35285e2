"""Which clients are alike, and which ones are matched."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpfl.methods.factorized_fl.similarity import cosines
from fedpfl.results.run_folder import RunFolder
from fedpfl.results.tables import Cell, Table
from fedpfl.study.analysis.figure import Heatmap
from fedpfl.study.analysis.registry import NoOptions, Result, analysis
from fedpfl.study.analysis.repetitions import array, grouped, require

MAX_ROUNDS = 5


@analysis("similarity", "Heat maps of the clients' similarity in v and in u, match counts (Factorized-FL, figure 8)")
def similarity(runs: Sequence[RunFolder], options: NoOptions) -> Result:
    """Show by what the server compared clients, in five rounds spread evenly, and how often each was matched.

    Of the shared vectors (u of all layers) a run stores only the last ones, in its checkpoint; without them that heat
    map is left out. The first run of each group is shown.
    """
    rows: list[list[Cell]] = []
    figures = []
    for group in grouped(runs):
        run = group.runs[0]
        maps = array(run, "similarity")
        if not maps:
            continue
        first, last = min(maps), max(maps)
        recorded = sorted(maps)
        shown = {recorded[round(i * (len(recorded) - 1) / (MAX_ROUNDS - 1))] for i in range(MAX_ROUNDS)}
        for number in sorted(shown):
            figures.append(_square(f"{group.label}: similarity, round {number}", maps[number]))
        shared = _of_shared(run, last, group.clients)
        if shared is not None:
            figures.append(_square(f"{group.label}: similarity of what is shared, round {last}", shared))
        matches = array(run, "matches")
        if matches:
            figures.append(
                _square(f"{group.label}: matches in {max(matches)} rounds", matches[max(matches)].astype(float))
            )
        rows.append([group.label, mean_of_others(maps[first]), mean_of_others(maps[last]),
                     None if shared is None else mean_of_others(shared)])  # fmt: skip
    require(rows, "similarities of clients", "methods whose server compares clients record them, such as factorized-fl")
    columns = ["run", "first round", "last round", "of what is shared, last round"]
    return Result([Table("Mean similarity of two clients", columns, rows, digits=3)], list(figures))


def mean_of_others(values: np.ndarray) -> float | None:
    """Return the mean of a square matrix without its diagonal and without NaN; None if nothing is left."""
    others = values[~np.eye(len(values), dtype=bool)]
    numbers = others[~np.isnan(others)]
    return float(numbers.mean()) if numbers.size else None


def _of_shared(run: RunFolder, last: int, clients: int) -> np.ndarray | None:
    number, stored = run.checkpoint()
    if number != last or "latest" not in stored or "known" not in stored:
        return None
    every = np.full((clients, clients), np.nan)
    every[np.ix_(stored["known"], stored["known"])] = cosines(stored["latest"])
    return every


def _square(title: str, values: np.ndarray) -> Heatmap:
    names = [str(i) for i in range(len(values))]
    return Heatmap(title, "client", "client", values, names, names)
