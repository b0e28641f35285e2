"""The record of a run: the one place that reads the numbers in the lines of ``metrics.jsonl``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from ..core import metrics
from .round_line import metric_names

# Computed from the clients' accuracies, and not stored.
WORST_TENTH = "worst-tenth"


class History:
    """The recorded rounds of a run.

    A number is named by its place in a line: ``train_loss``, ``personalised.accuracy``, ``details.drift``. A part with
    the clients' accuracies also has ``worst-tenth``. Rounds without the number do not count. ``by`` is what chooses
    rounds, on the validation samples. A best round is one of those in which the fewest tests are missing, and in which
    the metric is defined for the most clients: without its worst client every round looks better.
    """

    def __init__(self, lines: Sequence[dict[str, Any]], by: str = metrics.ACCURACY) -> None:
        self.lines, self.by = lines, by

    @property
    def last_round(self) -> int:
        """The number of the last recorded round, 0 before the first."""
        return int(self.lines[-1]["round"]) if self.lines else 0

    def curve(self, number: str) -> dict[int, float]:
        """Return a number by round."""
        values = {line["round"]: _value(line, number) for line in self.lines}
        return {round_number: value for round_number, value in values.items() if value is not None}

    def last(self, number: str) -> float | None:
        """Return the last value of a number."""
        return next(reversed(self.curve(number).values()), None)

    def best(self, number: str) -> float | None:
        """Return the largest value of a number."""
        return max(History(self.most_tested(number)).curve(number).values(), default=None)

    def most_tested(self, number: str = "") -> list[dict[str, Any]]:
        """Return the lines of the rounds in which a number lacks the fewest clients of which a test was asked for."""
        missing = [(_missing(line, number), line) for line in self.lines if line.get("personalised")]
        least = min((count for count, _ in missing), default=0)
        return [line for count, line in missing if count == least]

    def chosen(self, number: str) -> float | None:
        """Return a number in the round that is best on the validation samples."""
        line = self.best_validated()
        return None if line is None else _value(line, number)

    def best_validated(self) -> dict[str, Any] | None:
        """Return the line of the tested round that is best on the validation samples, the first of several."""
        both = [line for line in self.lines if line.get("personalised") and _score(line, self.by) is not None]
        return max(both, key=self.rank, default=None)

    def rank(self, line: Mapping[str, Any]) -> tuple[int, float]:
        """Return a key that sorts rounds with a validation score: first by clients missing, then by the score."""
        score = _score(line, self.by)
        return -_missing(line, f"validation.{self.by}"), -math.inf if score is None else score

    def stalled(self, patience: int) -> bool:
        """Tell whether the number by which rounds are chosen has not risen for ``patience`` rounds (0: never)."""
        waiting = Patience(patience, self.by)
        for line in self.lines:
            waiting.add(line)
        return waiting.over

    def tests(self, by: str = metrics.ACCURACY) -> dict[int, dict[str, float]]:
        """Return each client's accuracy, or another metric where it is defined, by round and client."""
        key = metrics.each_of(by)
        return {line["round"]: line["personalised"].get(key, {}) for line in self.lines if line.get("personalised")}

    def last_test(self, by: str = metrics.ACCURACY) -> dict[str, float]:
        """Return each client's accuracy, or another metric, at the last test; empty before the first test."""
        return next(reversed(self.tests(by).values()), {})

    def chosen_test(self, by: str = metrics.ACCURACY) -> dict[str, float]:
        """Return each client's accuracy, or another metric, in the round that is best on the validation samples."""
        return self.tests(by).get((self.best_validated() or {}).get("round", 0), {})

    def untrained(self) -> list[int]:
        """Return the clients in the last test whose last training failed: their models are earlier ones."""
        failed: set[str] = set()
        tested: list[str] = []
        for line in self.lines:
            trained = set(map(str, line.get("clients", ())))
            failed = (failed | line.get("failed", {}).keys()) - trained
            if line.get("personalised"):
                tested = [client for client in line["personalised"]["each"] if client in failed]
        return sorted(map(int, tested))

    def clients(self) -> set[int]:
        """Return the clients that have trained or were tested."""
        tested = {int(client) for each in self.tests().values() for client in each}
        return tested.union(*(line["clients"] for line in self.lines))

    def total(self, number: str) -> float:
        """Return the sum of a number over all rounds."""
        return sum(self.curve(number).values())

    def failures(self) -> Iterator[tuple[int, int, str]]:
        """Yield (round, client, reason) of clients that failed."""
        for line in self.lines:
            for client, reason in line.get("failed", {}).items():
                yield line["round"], int(client), reason


class Patience:
    """Tells when what rounds are chosen by, ``by``, has not become better for so many rounds (0: never).

    A round that lacks more clients than another one does not count: clients that fail, or of which the metric is not
    defined, make no round better.
    """

    def __init__(self, rounds: int, by: str) -> None:
        self._rounds, self._by, self._best, self._since = rounds, by, -math.inf, 0
        self._missing = math.inf
        self.over = False

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a round's line."""
        score, missing = _score(line, self._by), _missing(line, f"validation.{self._by}")
        if score is None or not self._rounds or missing > self._missing:
            return
        if score > self._best or not self._since or missing < self._missing:
            self._best, self._since, self._missing = score, line["round"], missing
        self.over = line["round"] - self._since >= self._rounds


def traffic(history: History) -> dict[int, int]:
    """Return the bytes moved so far in both directions, by round."""
    sums = accumulate(line["bytes_up"] + line["bytes_down"] for line in history.lines)
    return {line["round"]: so_far for line, so_far in zip(history.lines, sums, strict=True)}


def of_clients(history: History, clients: Collection[int]) -> History:
    """Return the history with the scores of some clients alone; no clients given: all."""
    tests = ("personalised", "trained")
    lines = [
        line | {part: _of_some(line.get(part), clients) for part in tests}
        | {"untested": [client for client in line.get("untested", ()) if client in clients]}
        for line in history.lines
    ]  # fmt: skip
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


def worst_tenth(accuracies: Collection[float]) -> float:
    """Return the mean of the worst tenth of the clients, at least one."""
    return statistics.fmean(sorted(accuracies)[: max(1, len(accuracies) // 10)])


def _missing(line: Mapping[str, Any], number: str) -> int:
    """Return how many clients have no value of a test's number: they were not tested, or it is undefined for them."""
    part, _, name = number.partition(".")
    scores = line.get(part)
    each: Mapping[str, float] = scores.get("each", {}) if isinstance(scores, Mapping) else {}
    defined = scores.get(metrics.each_of(name), each) if each and scores else each
    return len(line.get("untested", ())) + len(each) - len(defined)


def _score(line: Mapping[str, Any], by: str) -> float | None:
    """Return the number by which rounds are chosen, the larger the better."""
    value = _value(line, f"validation.{by}")
    return -value if value is not None and metrics.lower_is_better(by) else value


def _value(line: Mapping[str, Any], number: str) -> float | None:
    part, _, name = number.partition(".")
    if not name:
        value: float | None = line.get(part)
        return value
    values = line.get(part) or {}
    if name == WORST_TENTH:
        return worst_tenth(values["each"].values()) if values.get("each") else None
    value = values.get(name)
    return value
