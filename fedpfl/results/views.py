"""Further views of a run's rounds: sums so far, and the scores of some clients alone."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import Any

from .history import History
from .round_line import metric_names


def traffic(history: History) -> dict[int, int]:
    """Return the bytes moved so far in both directions, by round."""
    sums = accumulate(line["bytes_up"] + line["bytes_down"] for line in history.lines)
    return {line["round"]: so_far for line, so_far in zip(history.lines, sums, strict=True)}


def elapsed(history: History) -> dict[int, float]:
    """Return the virtual seconds so far, by round; nothing where no clock ran."""
    curve = history.curve("seconds_virtual")
    return dict(zip(curve, accumulate(curve.values()), strict=True))


def of_clients(history: History, clients: Collection[int]) -> History:
    """Return the history with the scores of some clients alone; no clients given: all."""
    tests = ("personalised", "trained")
    lines = [line | {part: _of_some(line.get(part), clients) for part in tests} for line in history.lines]
    return History(lines, history.by) if clients else history


def _of_some(scores: Mapping[str, Any] | None, clients: Collection[int]) -> dict[str, Any] | None:
    """Return a test's scores of some clients, recorded by client; None where none of them was tested."""
    each = {client: value for client, value in scores["each"].items() if int(client) in clients} if scores else {}
    if not scores or not each:
        return None
    selected: dict[str, Any] = {"accuracy": statistics.fmean(each.values()), "each": each}
    if sizes := scores.get("samples"):
        selected["samples"] = {client: sizes[client] for client in each}
        correct = sum(accuracy * sizes[client] for client, accuracy in each.items())
        selected["weighted"] = correct / sum(selected["samples"].values())
    for name in metric_names(scores):
        theirs = {client: value for client, value in scores.get(f"each-{name}", {}).items() if int(client) in clients}
        selected.update({name: statistics.fmean(theirs.values()), f"each-{name}": theirs} if theirs else {})
    return selected
