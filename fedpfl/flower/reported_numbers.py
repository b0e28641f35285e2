"""Means of the numbers that nodes report in Flower's loop, and how much a node counts by its own word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING, getLogger
from statistics import median_low
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from flwr.app import MetricRecord, RecordDict

from ..core.errors import printable
from ..core.metric_bounds import LARGEST, WEIGHT_OVER_MEDIAN, Bounds, problem
from ..core.metrics import is_share_of_app, unlikely
from ..core.server_view import Client
from ..engine.reply_numbers import ExpectedReply
from ..engine.transport import TRAIN
from ..setup.robust_rule import largest_weight

logger = getLogger("flwr")

# What a reply says of its samples, unless ``weighted_by_key`` is another metric.
SAMPLES = "num-examples"
# Characters of the name of a metric that an app reports.
MAX_NAME = 200
# A warning names a reply that has a larger share of a mean, if its weight is also so many times the median weight.
MOST_OF_A_MEAN, OVER_MEDIAN = 0.5, 10
# A share above 1 that is so many times the median of all is in percent where the others are not.
PERCENT_OVER_MEDIAN = 30
# The metric of a round that tells the ε spent so far, which no node does.
EPSILON = "privacy-epsilon"


@dataclass(frozen=True)
class Weighted(ExpectedReply):
    """Expects one number, the weight of a reply; all others may be anything.

    It is at most ``most``. If ``is_asked``, clients have said before round 1 how many samples they have, and it is at
    most that; in a test ``values`` of each sample count.
    """

    key: str = SAMPLES
    most: float = LARGEST
    is_asked: bool = False
    values: int = 1

    def examine(self, kind: str, client: Client, metrics: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
        """Return why a reply cannot count, or an empty text."""
        weight, said = metrics.get(self.key), 0
        if self.is_asked:  # functions that train alone have told of no test samples
            said = client.train_samples if kind == TRAIN else client.test_samples
        most = (said or self.most) * (self.values if kind != TRAIN else 1)
        wrong = problem(self.key, weight, Bounds(float, 0, most))
        if weight is None:
            return f"its reply has no number {self.key} (weighted_by_key), by which it would count", {}
        if wrong and most < LARGEST:
            wrong += " (what it said before round 1)" if said else " (max_client_samples)"
        if not wrong and kind == TRAIN and not weight:
            wrong = f"{self.key} = 0: it has trained on nothing"
        return (f"its reply says {wrong}" if wrong else ""), {}


def mean_of_metrics(
    contents: Sequence[RecordDict], key: str, most_share: float = 1.0, nodes: Sequence[str] = ()
) -> MetricRecord:
    """Return the mean of each metric over the replies that have it, weighted by the metric ``key``.

    A metric PART-NAME is weighted by PART-``key`` in a reply that has it. A weight is a node's own word: none counts
    for more than ``WEIGHT_OVER_MEDIAN`` times the median, nor for more than ``most_share`` of all. Values of another
    form or unit than most are left out; a warning names their ``nodes``.
    """
    by_name: dict[str, list[_Value]] = {}
    odd: dict[str, list[str]] = {}
    for node, content in zip(nodes or ["one node"] * len(contents), contents, strict=True):
        metrics = dict(next(iter(content.metric_records.values())))
        weights = {name: value for name, value in metrics.items() if _is_weight(name, key) and _counts(value)}
        for name in metrics.keys() - weights.keys():
            if len(name) > MAX_NAME or not name.isprintable() or name == EPSILON:
                odd.setdefault(node, []).append(f"a metric is called {printable(name, 40)}")
                continue
            weight = weights.get(f"{name.partition('-')[0]}-{key}", weights.get(key, 0.0))
            value = np.asarray(metrics[name], np.float64)
            if wrong := unlikely(name, value.reshape(-1).tolist()):
                odd.setdefault(node, []).append(wrong)
            else:
                by_name.setdefault(name, []).append(_Value(node, value, weight))
    means = {}
    for name, of_replies in sorted(by_name.items()):
        fitting, others = _alike(name, of_replies)
        for node, wrong in others.items():
            odd.setdefault(node, []).append(wrong)
        shares = bounded([one.weight for one in fitting], most_share)
        if not fitting:
            logger.log(WARNING, "fedpfl: %s has no mean: nodes sent lists of several lengths", name)
        elif sum(shares):
            means[name] = np.average(np.stack([one.value for one in fitting]), axis=0, weights=shares).tolist()
        else:
            logger.log(WARNING, "fedpfl: %s has no mean: all replies that have it count 0", name)
    for node, faults in odd.items():
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        logger.log(WARNING, "fedpfl: %s: %s; left out%s", node, faults[0], more)
    return MetricRecord(means)


class _Value(NamedTuple):
    """A metric of one reply."""

    node: str
    value: np.ndarray
    weight: float


def _alike(name: str, of_replies: Sequence[_Value]) -> tuple[list[_Value], dict[str, str]]:
    """Return the values that have the form and unit of most nodes, and what is wrong with the others, by node."""
    (form, count), *rest = Counter(one.value.shape for one in of_replies).most_common(2)
    if rest and rest[0][1] == count:
        return [], {}
    fitting, others = [], {}
    # Beside shares of 1 a share in percent, or a false one, would be most of the mean.
    middle = median_low([float(one.value.max(initial=0.0)) for one in of_replies if one.value.shape == form])
    most = max(1.0, PERCENT_OVER_MEDIAN * middle) if is_share_of_app(name) and middle <= 1 else np.inf
    for one in of_replies:
        if one.value.shape != form:
            others[one.node] = f"{printable(name, 80)} has another length than that of most nodes"
        elif one.value.max(initial=0.0) > most:
            others[one.node] = f"{printable(name, 80)} = {one.value.max():g}: most nodes send at most 1, not percent"
        else:
            fitting.append(one)
    return fitting, others


def bounded(weights: Sequence[float], most_share: float = 1.0) -> list[float]:
    """Return the weights of replies, from nodes' own words: see :func:`mean_of_metrics`."""
    most = min(most_by_median(weights), largest_weight(weights, most_share))
    return [min(weight, most) for weight in weights]


def most_by_median(weights: Iterable[float]) -> float:
    """Return the most that a reply counts by a node's own word, given the words of all."""
    counting = [weight for weight in weights if weight]
    return WEIGHT_OVER_MEDIAN * median_low(counting) if counting else 0.0


def heaviest_of(weights: Mapping[int, float]) -> tuple[int, float] | None:
    """Return the client that outweighs all others by its own word, and its share of the mean; None if there is none."""
    if len(weights) < 3 or not sum(weights.values()):
        return None
    heaviest = max(weights, key=lambda client: weights[client])
    share = weights[heaviest] / sum(weights.values())
    is_usual = weights[heaviest] < OVER_MEDIAN * median_low(weights.values())
    return None if is_usual or share <= MOST_OF_A_MEAN else (heaviest, share)


def _is_weight(name: str, key: str) -> bool:
    return name == key or name.endswith(f"-{key}")


def _counts(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and 0 <= value <= LARGEST
