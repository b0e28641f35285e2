"""Checks of the numbers in a client's reply: it comes from the network, and the server computes with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from ..core.errors import LayoutError
from ..core.metric_bounds import LARGEST, Bounds, bounds_of, problem, require_metrics
from ..core.metrics import COUNT, OWN, SUM, MetricKey, kind_of, part_of
from ..core.samples import MAX_CLASSES
from ..core.server_view import Client
from .transport import EVALUATE, TRAIN

# Numbers that a reply must have: what is computed with here.
REQUIRED = {
    TRAIN: ("train-samples",),
    EVALUATE: ("personalised-correct", "personalised-loss-sum", "personalised-samples"),
}
# Models that a reply may have the scores of: all three numbers, or none.
SCORES = {
    name: frozenset(f"{name}-{part}" for part in ("correct", "samples", "loss-sum"))
    for name in ("trained", "personalised", "global", "validation")
}
# Where tests do not count what is right: below 0 where the mean of the targets predicts better than the model. Losses
# of the user's own may be below 0, too.
EXPLAINED = Bounds(float, -LARGEST, LARGEST)


@dataclass(frozen=True)
class ExpectedReply:
    """What the replies of a run must be like.

    With ``counted`` tests count what is right (of ``several`` values of a sample, not of one class); otherwise they
    score it with any number of at most 1 for a value. ``asked`` are the metrics that the run asks for besides. With
    ``own_loss`` the training loss may be below 0.
    """

    counted: bool = True
    several: bool = False
    asked: tuple[str, ...] = ()
    own_loss: bool = False

    def examine(self, kind: str, client: Client, metrics: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        """Return why a reply to ``train`` or ``evaluate`` cannot count, if so, and which of its numbers are wrong."""
        required = REQUIRED[kind]
        try:
            wrong = problems(metrics, required, client, self.counted, self.several, self.asked, self.own_loss)
        except LayoutError as error:
            return str(error), {}
        if not wrong:
            return "", wrong
        # A client that trained has a training loss, and one that is no number tells that its training diverged.
        fatal = next((text for key, text in wrong.items() if key in (*required, "train-loss")), None)
        return ("" if fatal is None else f"its reply says {fatal}"), wrong


def problems(
    metrics: Mapping[str, Any], required: Iterable[str], client: Client, counted: bool = True, several: bool = False,
    asked: Collection[str] = (), own_loss: bool = False,
) -> dict[str, str]:  # fmt: skip
    """Return the faults of a reply's numbers by their names; ``LayoutError`` for too many, or for odd names."""
    form = _form(tuple(metrics), tuple(required), counted, own_loss)
    values = client.test_samples * (MAX_CLASSES if several else 1)
    # A metric may count a correct label twice: among the true ones and among the predicted ones.
    limits = {None: None, "train": client.train_samples, "test": values, "count": 2 * values}
    wrong = {
        key: text
        for key, bounds, limit in form.numbers
        if (text := problem(key, metrics.get(key), bounds, limits[limit]))
    }
    for name in form.scores:
        correct, samples = metrics[f"{name}-correct"], metrics.get(f"{name}-samples")
        if not SCORES[name] & wrong.keys() and correct > samples:
            wrong[f"{name}-correct"] = f"{name}-correct = {correct:g}: must be at most {name}-samples = {samples:g}"
    for key, part in form.parts:
        if part.metric not in asked:
            wrong[key] = f"{key}: is not a metric of this run"
        elif key.endswith(SUM) and not _pair(key) & wrong.keys() and (text := _out_of_bounds(key, metrics)):
            wrong[key] = text
    return wrong


def leave_out(metrics: dict[str, Any], bad: Iterable[str]) -> None:
    """Remove numbers from a reply, and with one of a model's score the rest of that."""
    for key in bad:
        for also in next((score for score in SCORES.values() if key in score), _pair(key) or {key}):
            metrics.pop(also, None)


class _NumberChecks(NamedTuple):
    """What is looked at in replies whose numbers have the same names."""

    numbers: list[tuple[str, Bounds, str | None]]  # with the number of the client's samples that limits it
    scores: list[str]  # models of which there is a number of correct predictions
    parts: list[tuple[str, MetricKey]]  # of metrics


@lru_cache(maxsize=64)
def _form(names: tuple[str, ...], required: tuple[str, ...], counted: bool, own_loss: bool) -> _NumberChecks:
    """Return the form of replies with some numbers; raise ``LayoutError`` if they are too many, or badly named."""
    require_metrics(names)
    needed = {*names, *required}
    for score in SCORES.values():
        needed |= score if score.intersection(names) else set()
    for key in names:
        needed |= _pair(key)
    bounds = {key: EXPLAINED if key.endswith("-correct") and not counted else bounds_of(key) for key in needed}
    if own_loss and "train-loss" in bounds:
        bounds["train-loss"] = EXPLAINED
    return _NumberChecks(
        [(key, bounds[key], _limit(key)) for key in sorted(needed)],
        [name for name in SCORES if f"{name}-correct" in names],
        [(key, part) for key in sorted(names) if (part := part_of(key))],
    )


def _limit(key: str) -> str | None:
    """Return which number of a client's samples limits a number of its reply."""
    if key == "train-samples":
        return "train"
    if key in ("trained-samples", "personalised-samples", "global-samples"):
        return "test"
    return "count" if key.endswith(COUNT) and not key.startswith("validation-") else None


def _out_of_bounds(key: str, metrics: Mapping[str, Any]) -> str:
    """Return the fault of the sum of a metric, given its count; an empty string if nothing is."""
    part = part_of(key)
    if part is None:
        return ""
    total, count, metric = metrics[key], metrics[f"{part.model}-{part.metric}{COUNT}"], kind_of(part.metric)
    if not metric.is_ratio and metric is not OWN and count not in (0, 1):
        return f"{part.model}-{part.metric}{COUNT} = {count:g}: must be 0 or 1, as this metric is a mean over clients"
    # A mean of ones may round to more than one.
    if metric.lowest * count <= total <= metric.highest * count * (1 + 1e-9):
        return ""
    return f"{key} = {total:g}: must be from {metric.lowest:g} to {metric.highest:g} times its count, {count:g}"


def _pair(key: str) -> set[str]:
    """Return the sum and the count of the metric that a number belongs to; nothing if it is none."""
    part = part_of(key)
    return set() if part is None else {f"{part.model}-{part.metric}{ending}" for ending in (SUM, COUNT)}
