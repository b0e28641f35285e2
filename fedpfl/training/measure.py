"""Computes the metrics of a test on the client: a sum and a count each (``core/metrics.py``)."""

from __future__ import annotations

import math
from logging import getLogger
from typing import Any, Callable, Mapping, NamedTuple, Tuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import metrics, references, user_code
from ..core.errors import ConfigError, FedpflError
from ..core.metric_bounds import LARGEST
from ..core.metrics import CLASSES, LABELS, MASKS, NEXT_TOKEN, TARGETS
from ..core.opened_files import noted
from ..core.samples import IGNORED
from .losses import KINDS
from .losses import tried as samples_to_try

SumAndCount = Tuple[float, float]
# (the model's numbers, labels or targets, the setting ``loss``) → sum and count.
Measure = Callable[[Tensor, Tensor, str], SumAndCount]
UNDEFINED: SumAndCount = (0.0, 0)
TOP, TOP_5 = 5, "top-5-accuracy"
AVERAGE_PRECISION = "average-precision"


class _Cases(NamedTuple):
    """One yes-or-no question for each class or label: scores, the truth and the model's answer, n × classes."""

    scores: Tensor
    truth: Tensor
    said: Tensor


logger = getLogger("fedpfl.client")


def find(text: str) -> dict[str, Measure]:
    """Return the measure of each metric of the setting ``metrics``, by its short name; raise :class:`ConfigError`."""
    return {references.short_name(word): _OURS.get(word) or _UsersMetric(word) for word in metrics.entries(text)}


def find_working(
    text: str, num_classes: int, loss: str, permuted: bool = False, choose_by: str = ""
) -> dict[str, Measure]:
    """Find the metrics and try each one; raise the errors of :func:`require_working`.

    If labels are ``permuted``, clients do not agree which of two classes is the second: both count. A function of the
    user's to ``choose_by`` must be larger for right answers than for wrong ones.
    """
    measures = find(text)
    if permuted and AVERAGE_PRECISION in measures:
        measures[AVERAGE_PRECISION] = _one_against_rest(_average_precision, both_of_two=True)
    require_working(measures, num_classes, loss)
    if isinstance(measure := measures.get(choose_by), _UsersMetric):
        _require_larger_is_better(choose_by, measure, num_classes, loss)
    return measures


def _require_larger_is_better(name: str, measure: Measure, num_classes: int, loss: str) -> None:
    """Raise :class:`ConfigError` for a metric that prefers wrong answers, as an error does."""
    outputs, y = samples_to_try(loss, num_classes)
    right, wrong = (outputs, -outputs) if loss in (CLASSES, LABELS) else (y, (y + 1) % max(2, num_classes))
    try:
        (best, of_best), (worst, of_worst) = (measure(said, y, loss) for said in (right, wrong))
    except FedpflError:  # where it is not defined it prefers nothing
        return
    if of_best and of_worst and best / of_best < worst / of_worst:
        allowed = "is smaller for right answers than for wrong ones, and the largest is best: return its negative"
        raise ConfigError("choose-by", name, allowed)


def require_working(measures: Mapping[str, Measure], num_classes: int, loss: str) -> None:
    """Try the metrics with a few samples, so that a mistake of the user's shows before round 1."""
    if TOP_5 in measures and num_classes <= TOP:
        allowed = f"is 1 whatever a model says: of {num_classes} classes all are among the {TOP} most likely ones"
        raise ConfigError("metrics", TOP_5, allowed)
    outputs, y = samples_to_try(loss, num_classes)
    outputs = y if loss in (MASKS, NEXT_TOKEN) else outputs  # the classes or tokens that it says
    for name, measure in measures.items():
        with noted(measure.word if isinstance(measure, _UsersMetric) else name):
            measured({name: measure}, outputs, y, loss, tried=True)


def measured(
    measures: Mapping[str, Measure], outputs: Tensor, y: Tensor, loss: str, tried: bool = False
) -> dict[str, SumAndCount]:
    """Return sum and count of each metric for the numbers that a model made of all test samples.

    A function of the user's that fails is not defined for this test, which is said once; if it is ``tried``, that is an
    error.
    """
    if not (measures and len(y)):
        return dict.fromkeys(measures, UNDEFINED)
    outputs, y = outputs.detach().cpu(), y.detach().cpu()
    pairs = {}
    for name, measure in measures.items():
        try:
            pairs[name] = measure(outputs, y, loss)
        except FedpflError as error:  # the other numbers of the test count
            if tried or not isinstance(measure, _UsersMetric):
                raise
            if not measure.failed:
                logger.warning("%s; it is left out of the tests in which it fails", error)
            measure.failed = True
            pairs[name] = UNDEFINED
    return pairs


class _UsersMetric:
    """A function of the user's, and whether it has failed in a test."""

    def __init__(self, word: str) -> None:
        self.word, self.failed = word, False
        function = user_code.find("metrics", word)
        self._function = user_code.guarded("metrics", word, function, no_class=True)
        self._truth_first = user_code.takes_truth_first(function)

    def __call__(self, outputs: Tensor, y: Tensor, loss: str) -> SumAndCount:
        # What it changes in place is its own: tests go on with the labels, and with the numbers for other metrics.
        outputs, y = (values.long() if loss in (MASKS, NEXT_TOKEN) else values for values in (outputs, y))
        outputs, y = outputs.clone(), y.clone()
        return _pair(self.word, self._function(y, outputs) if self._truth_first else self._function(outputs, y))


def _pair(word: str, result: Any) -> SumAndCount:
    """Return the result of a function of the user's as a sum and a count; not a number means that it is not defined."""
    # A named tuple, such as SciPy's of a correlation and its p, has other numbers than a sum and a count.
    pair = tuple(result) if type(result) in (tuple, list) else (result, 1)
    try:
        total, count = (float(number) for number in pair)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        allowed = f"returns {references.article(result)}; it must return a number, or a sum and a count"
        raise ConfigError("metrics", word, allowed) from None
    if math.isnan(total) or count == 0:
        return UNDEFINED
    if not (abs(total) <= LARGEST and 0 < count <= LARGEST and count % 1 == 0):  # (precision, recall) are no such pair
        raise ConfigError("metrics", word, f"makes {total:g} and {count:g}: must be finite, the count a whole number")
    return total, count


def _cases(outputs: Tensor, y: Tensor, loss: str) -> _Cases:
    scores = outputs.double()
    if loss == CLASSES:
        classes = outputs.shape[1]
        said = F.one_hot(outputs.argmax(1), classes).bool()
        return _Cases(scores.softmax(1), F.one_hot(y, classes).bool(), said)
    return _Cases(scores, y > 0.5, outputs > 0)


def _counts(cases: _Cases) -> tuple[Tensor, Tensor, Tensor]:
    """Return true positives, false positives and false negatives of each class."""
    pairs = ((cases.truth, cases.said), (~cases.truth, cases.said), (cases.truth, ~cases.said))
    right, wrong, missed = ((a & b).sum(0).double() for a, b in pairs)
    return right, wrong, missed


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return ratios, 0 where there is nothing to divide by."""
    return torch.where(whole > 0, part / whole.clamp(min=1), torch.zeros_like(part))


def _f1(right: Tensor, wrong: Tensor, missed: Tensor) -> Tensor:
    return _ratio(2 * right, 2 * right + wrong + missed)


def _macro(of_counts: Callable[[Tensor, Tensor, Tensor], Tensor], only_true: bool = False) -> Measure:
    """Return the mean of a number of each class, over the classes that occur in the labels or among the answers."""

    def measure(outputs: Tensor, y: Tensor, loss: str) -> SumAndCount:
        cases = _cases(outputs, y, loss)
        each = of_counts(*_counts(cases))
        if loss == CLASSES:
            each = each[(cases.truth if only_true else cases.truth | cases.said).any(0)]
        return float(each.mean()), 1

    return measure


def _f1_weighted(outputs: Tensor, y: Tensor, loss: str) -> SumAndCount:
    cases = _cases(outputs, y, loss)
    weights = cases.truth.sum(0).double()
    total = float(weights.sum())
    return (float((_f1(*_counts(cases)) * weights).sum()) / total, 1) if total else UNDEFINED


def _f1_micro(outputs: Tensor, y: Tensor, loss: str) -> SumAndCount:
    right, wrong, missed = (float(count.sum()) for count in _counts(_cases(outputs, y, loss)))
    return 2 * right, 2 * right + wrong + missed


def _one_against_rest(of_class: Callable[[Tensor, Tensor], float], both_of_two: bool = False) -> Measure:
    """Return the mean over the classes of which there are samples and samples of others.

    Of two classes it is the number of the second, or with ``both_of_two`` the mean of both.
    """

    def measure(outputs: Tensor, y: Tensor, loss: str) -> SumAndCount:
        cases = _cases(outputs, y, loss)
        both = cases.truth.any(0) & ~cases.truth.all(0)
        places = both.nonzero().flatten().tolist()
        if loss == CLASSES and cases.truth.shape[1] == 2 and not both_of_two:
            places = places[1:]
        if not places:
            return UNDEFINED
        return math.fsum(of_class(cases.scores[:, place], cases.truth[:, place]) for place in places) / len(places), 1

    return measure


def _auroc(scores: Tensor, truth: Tensor) -> float:
    """Return the share of pairs of a positive and a negative sample in the right order; equal scores count half."""
    _, places, sizes = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = (sizes.cumsum(0).double() - (sizes - 1).double() / 2)[places]
    positive, negative = int(truth.sum()), int((~truth).sum())
    return (float(ranks[truth].sum()) - positive * (positive + 1) / 2) / (positive * negative)


def _average_precision(scores: Tensor, truth: Tensor) -> float:
    """Return the sum of precisions at each distinct score, weighted by how much the recall grows there."""
    values, places = torch.unique(-scores, return_inverse=True)
    positives = torch.zeros(len(values), dtype=torch.float64).index_add_(0, places, truth.double())
    everything = torch.zeros(len(values), dtype=torch.float64).index_add_(0, places, torch.ones_like(scores))
    precision = positives.cumsum(0) / everything.cumsum(0)
    return float((precision * positives).sum() / positives.sum())


def _top(outputs: Tensor, y: Tensor, loss: str) -> SumAndCount:
    best = outputs.topk(min(TOP, outputs.shape[1]), 1).indices
    return int((best == y[:, None]).sum()), len(y)


def _errors(of_errors: Callable[[Tensor], Tensor]) -> Measure:
    return lambda outputs, y, loss: (float(of_errors(outputs.double() - y.double()).sum()), y.numel())


def _of_pixels(outputs: Tensor, y: Tensor, twice: int) -> SumAndCount:
    """Return the mean overlap of found and true pixels of a class, over the classes that have any."""
    there = y != IGNORED
    said, truth = outputs[there].long(), y[there].long()
    if not len(truth):
        return UNDEFINED
    right = torch.bincount(truth[said == truth], minlength=IGNORED)
    both = torch.bincount(said, minlength=IGNORED) + torch.bincount(truth, minlength=IGNORED)
    each = (twice * right).double() / (both - (2 - twice) * right)
    return float(each[both > 0].mean()), 1


_OURS: Mapping[str, Measure] = {
    "balanced-accuracy": _macro(lambda right, wrong, missed: _ratio(right, right + missed), only_true=True),
    TOP_5: _top,
    "precision-macro": _macro(lambda right, wrong, missed: _ratio(right, right + wrong)),
    "recall-macro": _macro(lambda right, wrong, missed: _ratio(right, right + missed)),
    "f1-macro": _macro(_f1),
    "f1-weighted": _f1_weighted,
    "f1-micro": _f1_micro,
    "auroc": _one_against_rest(_auroc),
    AVERAGE_PRECISION: _one_against_rest(_average_precision),
    "mae": _errors(torch.abs),
    "rmse": _errors(torch.square),
    "iou": lambda outputs, y, loss: _of_pixels(outputs, y, 1),
    "dice": lambda outputs, y, loss: _of_pixels(outputs, y, 2),
    metrics.PERPLEXITY: lambda outputs, y, loss: UNDEFINED,  # of the loss, which the test itself has
    # Of one sample there is no variance to explain.
    "r2": lambda outputs, y, loss: (KINDS[TARGETS].score(outputs, y) / y.numel(), 1) if len(y) > 1 else UNDEFINED,
}
