"""Metrics of a test besides accuracy and loss, by name, and the way in which the values of clients are combined.

A client sends a sum and a count for each metric; its value is their ratio. If the metric is a ratio of sums, such as
the mean absolute error, those of clients can be added: their ratio is that of all test samples. Otherwise the client
sends its value and a count of 1, so that the ratio of all is the mean over the clients. A count of 0 means that the
metric is not defined for this client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log, sqrt
from typing import Iterable, Mapping, NamedTuple, Sequence

from . import references
from .errors import ConfigError, did_you_mean, printable
from .metric_bounds import LARGEST, shown

# The settings `loss` by what the targets are.
CLASSES, TARGETS, LABELS, MASKS = "cross-entropy", "mse", "multi-label", "segmentation"
NEXT_TOKEN = "next-token"
# The same in words. Data sets store multi-label data as numbers, like targets.
IN_WORDS = {CLASSES: "classes", TARGETS: "numbers as targets", MASKS: "masks", NEXT_TOKEN: "tokens to predict"}
ACCURACY, LOSS, PERPLEXITY = "accuracy", "loss", "perplexity"
SUM, COUNT = "-metric-sum", "-metric-count"
POOLED = "-pooled"
MAX_NAME = 32


@dataclass(frozen=True)
class MetricKind:
    """Facts of a metric: the settings ``loss`` that it fits, and the bounds of sum ÷ count.

    ``is_ratio``: it is a ratio of sums, which those of clients add up to. Its value is the ratio, with ``has_root`` the
    square root of it, with ``is_exponential`` e to the power of it.
    """

    losses: tuple[str, ...]
    lowest: float = 0.0
    highest: float = 1.0
    is_ratio: bool = False
    lower_is_better: bool = False
    has_root: bool = False
    is_exponential: bool = False


_ANY_CLASS = (CLASSES, LABELS)
METRICS: Mapping[str, MetricKind] = {
    "balanced-accuracy": MetricKind((CLASSES,)),
    "top-5-accuracy": MetricKind((CLASSES,), is_ratio=True),
    "precision-macro": MetricKind(_ANY_CLASS),
    "recall-macro": MetricKind(_ANY_CLASS),
    "f1-macro": MetricKind(_ANY_CLASS),
    "f1-weighted": MetricKind(_ANY_CLASS),
    "f1-micro": MetricKind((LABELS,), is_ratio=True),
    "auroc": MetricKind(_ANY_CLASS),
    "average-precision": MetricKind(_ANY_CLASS),
    "mae": MetricKind((TARGETS,), 0, LARGEST, is_ratio=True, lower_is_better=True),
    "rmse": MetricKind((TARGETS,), 0, LARGEST, is_ratio=True, lower_is_better=True, has_root=True),
    "r2": MetricKind((TARGETS,), -LARGEST, 1),
    "iou": MetricKind((MASKS,)),
    "dice": MetricKind((MASKS,)),
    PERPLEXITY: MetricKind((NEXT_TOKEN,), 0, LARGEST, is_ratio=True, lower_is_better=True, is_exponential=True),
}
# Of a function of the user's: any number, the larger the better.
OWN = MetricKind((CLASSES, TARGETS, LABELS, MASKS, NEXT_TOKEN), -LARGEST, LARGEST)
# Names of other numbers of a test.
_TAKEN = (ACCURACY, LOSS, "std", "weighted", "each", "samples", "correct")


class MetricKey(NamedTuple):
    """The metric and the tested model to which a number of a reply belongs."""

    model: str
    metric: str
    is_sum: bool


def labels_of(loss: str) -> str:
    """Return the kind of labels, ``CLASSES`` or ``TARGETS`` and so on, of a loss; its own functions name it."""
    if references.is_own(loss):
        return next((kind for kind in (TARGETS, LABELS, MASKS) if loss.startswith(f"{kind}:")), CLASSES)
    return loss


def score_name(loss: str) -> str:
    """Return the name of the number that every test measures, by the setting ``loss``: of targets it is R²."""
    return "R²" if labels_of(loss) == TARGETS else ACCURACY


def entries(text: str) -> list[str]:
    """Return the metrics that the setting ``metrics`` names, as they are written, without accuracy: it always is."""
    return [word for part in text.split(",") if (word := part.strip()) and word != ACCURACY]


def names(text: str) -> list[str]:
    """Return the metrics that the setting ``metrics`` names, as they are recorded."""
    return [references.short_name(word) for word in entries(text)]


def require(text: str, choose_by: str, loss: str) -> None:
    """Raise :class:`ConfigError` for a metric that there is not, or that does not fit the loss."""
    listed, loss = entries(text), labels_of(loss)
    for word in listed:
        if references.is_reference(word):
            name = references.short_name(word)
            if name in METRICS or name in _TAKEN or len(name) > MAX_NAME:
                raise ConfigError("metrics", word, f"needs another name, of at most {MAX_NAME} characters")
            continue
        fitting = [name for name, metric in METRICS.items() if loss in metric.losses]
        if word not in fitting:
            fitting = [ACCURACY, *fitting]
            message = f"must be one of {', '.join(fitting)}, or {references.FORM}"
            raise ConfigError("metrics", word, message + did_you_mean(word, fitting))
    recorded = names(text)
    if len(set(recorded)) < len(recorded):
        raise ConfigError("metrics", text, "names a metric twice")
    if choose_by not in (ACCURACY, LOSS, *recorded):
        raise ConfigError("choose-by", choose_by, f"must be one of {', '.join((ACCURACY, LOSS, *recorded))}")


def kind_of(name: str) -> MetricKind:
    """Return the kind of a metric, also by the name of its pooled value; one of the user's own is any number."""
    return METRICS.get(name[: -len(POOLED)] if name.endswith(POOLED) else name, OWN)


def bounds(name: str) -> tuple[float, float]:
    """Return the least and the largest value of a number of a test; accuracy may be R², of which there is no least."""
    kind = replace(OWN, highest=1.0) if name in (ACCURACY, "weighted", "worst-tenth") else kind_of(name)
    return kind.lowest, kind.highest


def require_reachable(key: str, text: object, name: str, target: float) -> None:
    """Raise :class:`ConfigError` for a target that a number of a test never has, such as 90 for 90 percent."""
    least, most = bounds(name)
    if not least <= target <= most:
        allowed = f"at most {most:g}, as a share is" if target > most else f"at least {least:g}"
        raise ConfigError(key, text, f"must be {allowed}: {name} never is {target:g}")


def lower_is_better(name: str) -> bool:
    """Tell whether the smallest value of a number of a test is the best."""
    return name == LOSS or kind_of(name).lower_is_better


def is_share(name: str, loss: str = CLASSES) -> bool:
    """Tell whether a number of a test lies between 0 and 1, so that people read it in percent; R² does not."""
    if name == ACCURACY:
        return score_name(loss) == ACCURACY
    return (kind_of(name).lowest, kind_of(name).highest) == (0, 1)


def score_in_words(value: float | None, loss: str = CLASSES, digits: int = 2) -> str:
    """Return the number that a test always measures as people read it, by the setting ``loss``; a dash for none."""
    if value is None:
        return "–"
    return f"{100 * value:.{digits}f} %" if is_share(ACCURACY, loss) else f"{value:.{digits + 2}f}"


def is_share_of_app(name: str) -> bool:
    """Tell whether a number of a test that an app reports under this name lies between 0 and 1, or 0 and 100 percent.

    Examples
    --------
    >>> [is_share_of_app(name) for name in ("accuracy", "eval_acc", "val-f1-macro", "eval_loss", "acc_steps")]
    [True, True, True, False, False]
    """
    parts = name.lower().replace("_", "-").split("-")
    return parts[-1] == "acc" or any(is_share("-".join(parts[place:])) for place in range(len(parts)))


def unlikely(metric: str, values: Sequence[float]) -> str:
    """Describe the fault of a test's number that an app reports, or return an empty text; shares may be in percent."""
    low, high = (0.0, 100.0) if is_share_of_app(metric) else (-LARGEST, LARGEST)
    wrong = [value for value in values if not low <= value <= high]
    return f"{printable(metric, 80)} = {shown(wrong[0])}: must be from {low:g} to {high:g}" if wrong else ""


def each_of(name: str) -> str:
    """Return the key under which a round has a number of a test for each client."""
    return "each" if name == ACCURACY else f"each-{name}"


@lru_cache(maxsize=1024)
def part_of(key: str) -> MetricKey | None:
    """Return the part of a metric that a number of a reply is; None if it is none."""
    for ending in (SUM, COUNT):
        if key.endswith(ending):
            model, dash, metric = key[: -len(ending)].partition("-")
            return MetricKey(model, metric, ending == SUM) if dash and metric else None
    return None


def value(name: str, total: float, count: float) -> float:
    """Return a metric's value from its sum and its count, which is above 0."""
    ratio, kind = total / count, kind_of(name)
    if kind.is_exponential:
        return exp(min(ratio, log(LARGEST)))
    return sqrt(ratio) if kind.has_root else ratio


def combined(name: str, pairs: Iterable[Sequence[float]]) -> float | None:
    """Return the value of several clients' sums and counts; None where the metric is defined for none."""
    defined = [pair for pair in pairs if pair[1]]
    return value(name, sum(pair[0] for pair in defined), sum(pair[1] for pair in defined)) if defined else None
