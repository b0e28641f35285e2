"""Refusals of what only fedpfl's own loop can do, and Flower's loop over a strategy's hooks cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import WARNING, getLogger
from statistics import median_low
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from flwr.app import MetricRecord, RecordDict

from ..core import settings as s
from ..core.errors import ConfigError, printable
from ..core.metric_bounds import LARGEST, WEIGHT_OVER_MEDIAN
from ..core.metrics import is_share_of_app, unlikely
from ..core.references import FORM
from ..data.settings import DataSettings
from ..engine.listener import Listener
from ..methods import Method
from ..methods.base import adapts_itself
from ..setup.all_settings import code_in, tagged
from ..setup.config import Config
from ..setup.options.privacy import PrivacySettings
from ..setup.robust_rule import largest_weight
from ..training.settings import TrainingSettings
from .keep import INITIAL, MARK
from .messages import EXTRAS
from .sent_settings import NOT_SENT, OF_NODES

logger = getLogger("flwr")

# Characters of the name of a metric that an app reports.
MAX_NAME = 200
# A reply whose share of a mean is larger is told, if it also says so many times the median of all.
MOST_OF_A_MEAN, OVER_MEDIAN = 0.5, 10
# A share above 1 that is so many times the median of all is in percent where the others are not.
PERCENT_OVER_MEDIAN = 30
# The metric of a round that tells the ε spent so far, which no node does.
EPSILON = "privacy-epsilon"


def require_arguments(values: Mapping[str, Any]) -> None:
    """Refuse arguments of Flower's strategies that cannot be right, by their names."""
    for name, value in values.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name.startswith("fraction") and not (is_number and 0 <= value <= 1):
            raise ConfigError(name, value, "must be at least 0 and at most 1")
        if name.startswith("min") and not (type(value) is int and value >= 0):
            raise ConfigError(name, value, "must be a whole number of at least 0")
        if name.endswith("_fn") and not (value is None or callable(value)):
            raise ConfigError(name, value, "must be a function of the replies' contents and weighted_by_key")
        if name.endswith("_key") and not (isinstance(value, str) and value):
            raise ConfigError(name, value, "must be a name")
        if name.endswith("record_key") and value in (EXTRAS, INITIAL, MARK):
            raise ConfigError(name, value, "is a record of fedpfl's own")
    if values["configrecord_key"] == values["arrayrecord_key"]:
        raise ConfigError("configrecord_key", values["configrecord_key"], "must not be arrayrecord_key as well")


def require_settings(config: Config, has_model: bool, named: Collection[str]) -> None:
    """Refuse settings that would change nothing in Flower's loop; ``named`` are those that somebody has given."""
    values, usual = config.flat(), Config.parse({"method": config.run.method}).flat()
    of_options = [
        key
        for option in config.options
        if option.at_server and option.wanted(config)
        for key, _ in s.items(option.settings)
    ]
    for key in (*sorted(tagged("loop")), *of_options):
        if values[key] != usual[key]:
            message = "has no effect in Flower's loop: use run_federation"
            if key in OF_NODES:
                message = f"{message}, or hand samples over on the nodes: data= of fit or client_app"
            raise ConfigError(key, values[key], message)
    of_nodes = {*s.keys(TrainingSettings), *s.keys(DataSettings), *tagged("built")}
    for key in (key for key in named if key in of_nodes and not has_model):
        message = "needs model=, and fit or client_app on the nodes: without it they train in their own loops"
        raise ConfigError(key, values[key], message)
    # The server itself keeps there what privacy was spent.
    places = {
        **dict.fromkeys(("client-models", "tokenizer"), "fit or client_app"),
        **({} if config.of(PrivacySettings).on else {"state-dir": "keep, fit or client_app"}),
    }
    for key, parts in places.items():
        if key in named:
            raise ConfigError(key, values[key], f"is each node's own: give it to {parts} there")
    # Nodes have data of their own, which a function hands over.
    for reason, keys in config.idle(dataset=FORM, partitioner="natural"):
        raise ConfigError(keys[0], values[keys[0]], f"has no effect in Flower's loop with {reason}")


def require_in_half(config: Config, usual: Config, named: Collection[str], trains: bool) -> None:
    """Refuse settings of a round's messages that would change nothing in its training, or in its tests.

    ``usual`` has the settings of the strategy, by which its rule was made.
    """
    method, values = type(config.method), config.flat()
    adapts = config.training.tune_epochs or adapts_itself(method) or method.prepare is not Method.prepare
    of_training = {*s.keys(TrainingSettings), *tagged("training")} - {*tagged("both"), *tagged("tests")}
    half, other = ("training", "evaluate_config") if trains else ("tests", "train_config")
    without_effect = tagged("tests") if trains else set() if adapts else of_training
    for key in (key for key in named if key in without_effect):
        message = f"has no effect in the {half} of a round: give it in {other}, or to the strategy"
        raise ConfigError(key, values[key], message)
    if config.method.aggregation != usual.method.aggregation:
        key = next(key for key in named if values[key] != usual.flat()[key])
        raise ConfigError(key, values[key], "changes how the server combines replies: give it to the strategy")


def require_private(config: Config, whole_numbers: Collection[str]) -> None:
    """Refuse noise that nodes would have to add in loops of their own, and arrays that can have none."""
    privacy = config.of(PrivacySettings)
    if not privacy.on:
        return
    if privacy.dp_where == "client":
        message = (
            "needs model=, and fit or client_app on the nodes, which add the noise: without it give dp_where='server'"
        )
        raise ConfigError("dp-where", "client", message)
    if whole_numbers:
        message = (
            f"must be 0 where {next(iter(whole_numbers))}, an array of whole numbers, is shared: it can have no noise"
        )
        raise ConfigError("dp-noise-multiplier", privacy.dp_noise_multiplier, f"{message}; keep= lets it stay")


def require_rounds(config: Config, untold: str) -> None:
    """Refuse settings that depend on the number of rounds, where it is not known."""
    values, usual = config.flat(), Config.parse({"method": config.run.method}).flat()
    for key in sorted(tagged("rounds")):
        if values[key] != usual[key]:
            message = f"needs the number of rounds, which {untold}: give num_server_rounds= as well"
            raise ConfigError(key, values[key], message)


def require_called(listeners: Iterable[Listener]) -> None:
    """Refuse listeners that wait for a run's folder or its end."""
    for listener in listeners:
        for hook in ("run_started", "run_ended"):
            if getattr(type(listener), hook) is not getattr(Listener, hook):
                message = f"has {hook}, which Flower's loop never calls: use run_federation"
                raise ConfigError("listeners", type(listener).__name__, message)


def tell_unsent(values: Mapping[str, s.Value]) -> None:
    """Warn of functions that a strategy names and does not send, since no server may run code on a client."""
    for key, reference in code_in(values):
        if key not in NOT_SENT:
            warning = "fedpfl: %s = %r is code, and is not sent: give it to fit or client_app on the clients"
            logger.log(WARNING, warning, key, reference)


def mean_of_metrics(
    contents: Sequence[RecordDict], key: str, most_share: float = 1.0, nodes: Sequence[str] = ()
) -> MetricRecord:
    """Return the mean of each metric over the replies that have it, weighted by the metric ``key``.

    A metric PART-NAME is weighted by PART-``key`` in a reply that has it. A weight is a node's own word: none counts
    for more than ``WEIGHT_OVER_MEDIAN`` times the median, nor for more than ``most_share`` of all. Values that cannot
    stand beside those of the others are left out; a warning names their ``nodes``.
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
    """Return values of the form and the unit that most nodes send, and what is wrong with those of others."""
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
