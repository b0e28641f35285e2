"""Are the numbers in a client's reply such that they can be computed with? They come from the network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import MessageType

# Numbers that a reply must have: what is computed with here.
REQUIRED = {
    MessageType.TRAIN: ("train-samples", "train-loss"),
    MessageType.EVALUATE: ("personalised-correct", "personalised-loss-sum", "personalised-samples"),
}
# Models that a reply may have the scores of: all three numbers, or none.
TESTED = ("trained", "personalised", "global", "validation")


def improper(metrics: Mapping[str, Any], required: Sequence[str], counted: bool = True) -> list[str]:
    """Return the names of the numbers that a reply lacks, or that cannot be what they have to be.

    Parameters
    ----------
    metrics : mapping
        The reply's numbers.
    required : sequence of str
        Those that it must have.
    counted : bool
        Whether tests count what is right; otherwise they score it with any number of at most 1 for a value.
    """
    needed = set(required)
    for name in TESTED:
        needed |= _score(name) if _score(name) & metrics.keys() else set()
    bad = [
        key for key in sorted(needed | metrics.keys()) if not _is_proper(key, metrics.get(key), key in needed, counted)
    ]
    whole = [name for name in TESTED if name + "-correct" in metrics and not _score(name) & set(bad)]
    return bad + [f"{name}-correct" for name in whole if metrics[f"{name}-correct"] > metrics[f"{name}-samples"]]


def leave_out(metrics: dict[str, Any], bad: Iterable[str]) -> None:
    """Remove numbers from a reply, and with one of a model's score the rest of that."""
    for key in bad:
        for also in next((_score(name) for name in TESTED if key in _score(name)), {key}):
            metrics.pop(also, None)


def _is_proper(key: str, value: Any, counts: bool, counted: bool) -> bool:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    if key.endswith("-correct") and not counted:
        return True
    whole = isinstance(value, int) or not key.endswith(("-correct", "-samples"))
    return not counts or (value >= 0 and whole)


def _score(name: str) -> set[str]:
    return {f"{name}-{part}" for part in ("correct", "samples", "loss-sum")}
