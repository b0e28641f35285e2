"""Checks of the numbers in a client's reply: it comes from the network, and the server computes with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..core.claims import LARGEST, MAX_CLASSES, Bounds, bounds_of, problem
from ..core.federation import Client
from .transport import EVALUATE, TRAIN

# Numbers that a reply must have: what is computed with here.
REQUIRED = {
    TRAIN: ("train-samples", "train-loss"),
    EVALUATE: ("personalised-correct", "personalised-loss-sum", "personalised-samples"),
}
# Models that a reply may have the scores of: all three numbers, or none.
SCORES = {
    name: frozenset(f"{name}-{part}" for part in ("correct", "samples", "loss-sum"))
    for name in ("trained", "personalised", "global", "validation")
}
# Where tests do not count what is right: below 0 where the mean of the targets predicts better than the model.
EXPLAINED = Bounds(float, -LARGEST, LARGEST, "the samples of the same test")


def problems(
    metrics: Mapping[str, Any], required: Iterable[str], client: Client, counted: bool = True, several: bool = False
) -> dict[str, str]:
    """Return what is wrong with the numbers of a reply: one line each, by their names.

    With ``counted`` tests count what is right (of ``several`` values of a sample, not of one class); otherwise they
    score it with any number of at most 1 for a value.
    """
    needed = set(required)
    for score in SCORES.values():
        needed |= score if score & metrics.keys() else set()
    found = {key: _problem(key, metrics.get(key), client, counted, several) for key in sorted(needed | metrics.keys())}
    wrong = {key: text for key, text in found.items() if text}
    for name, score in SCORES.items():
        correct, samples = metrics.get(f"{name}-correct"), metrics.get(f"{name}-samples")
        if correct is not None and not score & wrong.keys() and correct > samples:
            wrong[f"{name}-correct"] = f"{name}-correct = {correct:g}: must be at most {name}-samples = {samples:g}"
    return wrong


def leave_out(metrics: dict[str, Any], bad: Iterable[str]) -> None:
    """Remove numbers from a reply, and with one of a model's score the rest of that."""
    for key in bad:
        for also in next((score for score in SCORES.values() if key in score), {key}):
            metrics.pop(also, None)


def _problem(key: str, value: object, client: Client, counted: bool, several: bool) -> str:
    bounds = EXPLAINED if key.endswith("-correct") and not counted else bounds_of(key)
    highest = None
    if key == "train-samples":
        highest = client.train_samples
    elif key in ("trained-samples", "personalised-samples", "global-samples"):
        highest = client.test_samples * (MAX_CLASSES if several else 1)
    return problem(key, value, bounds, highest)
