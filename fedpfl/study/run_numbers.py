"""The numbers that the tables of experiments and sweeps show of a run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.checksummed_files import read_json
from ..core.errors import ConfigError
from ..core.metrics import ACCURACY, CLASSES, is_share, lower_is_better, require_reachable, score_name
from ..results.history import History, of_clients, traffic
from ..results.run_folder import RunFolder
from ..results.tables import Spread

WINDOW = 10
# Kinds of metrics whose names have an argument, after a colon.
NEW_CLIENTS, DETAIL, ATTACK, LAST, CHOSEN, VALIDATED = (
    "new-clients", "detail", "attack", "last", "chosen", "validation"
)  # fmt: skip
# The columns of the analysis `attack`.
ATTACKED = {"average": "PSNR, dB", "maximum": "maximum, dB"}
POOLS: dict[str, Callable[[Sequence[float]], float]] = {"average": statistics.fmean, "maximum": max}


@dataclass(frozen=True)
class Metric:
    """A number of a run that tables show."""

    heading: str  # what it is, with its unit
    value: Callable[[History], float | None]  # None where the run has none
    share: bool = False  # an accuracy between 0 and 1, written as a percentage or a fraction
    digits: int = 2  # decimal places of a number that is no share
    pool: Callable[[Sequence[float]], float] = statistics.fmean  # makes one number of those of several columns
    short: str = ""  # a shorter heading for rankings
    lowest_is_best: bool = False

    @property
    def title(self) -> str:
        """The heading, with the unit of a share."""
        return f"{self.heading}{', %' * self.share}"

    @property
    def short_title(self) -> str:
        """The short heading, with the unit of a share."""
        return f"{self.short or self.heading}{', %' * self.share}"

    def spread(self, values: Sequence[float]) -> Spread | None:
        """Summarise values, shares in percent; None if there are none."""
        return Spread.of([100 * value if self.share else value for value in values]) if values else None


def find(name: str, loss: str = CLASSES) -> Metric:
    """Return a metric by name, of runs with this loss; a :class:`ConfigError` lists the names if there is none."""
    metric = _find(name)
    if not metric.share or is_share(ACCURACY, loss):
        return metric
    name = score_name(loss)
    short = f"{name}, {metric.short}" if metric.short else ""
    heading = metric.heading.replace(ACCURACY, name).replace(_OF_ALL, ", mean over clients weighted by test samples")
    return replace(metric, heading=heading, short=short, share=False, digits=4)


def _find(name: str) -> Metric:
    kind, _, argument = name.partition(":")
    if kind == DETAIL and argument:
        return Metric(f"{argument}, last round", lambda history: history.last(f"details.{argument}"))
    if kind == NEW_CLIENTS and argument:
        # Measured by a command after the run.
        heading = "accuracy of new clients, of all their test samples"
        return Metric(heading, lambda history: None, share=True, short="new clients")
    if kind == ATTACK and argument in POOLS:
        # From the analysis `attack` with the options that the experiment gives it.
        return Metric(f"PSNR of recovered images, {argument}, dB", lambda history: None, pool=POOLS[argument])
    if kind in (LAST, CHOSEN) and argument:
        take = History.last if kind == LAST else History.chosen
        number = f"personalised.{argument}"
        return Metric(
            argument, lambda history: take(history, number), digits=4, lowest_is_best=lower_is_better(argument)
        )
    if kind == VALIDATED and argument:
        heading = f"{argument} on validation samples, best round"
        return Metric(
            heading, lambda history: history.chosen(f"{VALIDATED}.{argument}"), digits=4,
            lowest_is_best=lower_is_better(argument),
        )  # fmt: skip
    if kind in COSTS and (metric := _cost(kind, argument)):
        return metric
    if name not in METRICS:
        forms = (DETAIL, LAST, CHOSEN, VALIDATED)
        names = ", ".join([*METRICS, *(f"{form}:NAME" for form in forms), f"{NEW_CLIENTS}:MODE",
                           *(f"{cost}:METRIC=VALUE" for cost in COSTS),
                           *(f"{ATTACK}:{pool}" for pool in POOLS)])  # fmt: skip
        raise ConfigError("metrics", name, f"must be one of {names}")
    return METRICS[name]


def _cost(kind: str, argument: str) -> Metric | None:
    """Return the cost until a metric is as good as ``accuracy=0.9``, as a metric; None for another argument."""
    name, _, text = argument.partition("=")
    try:
        target = float(text)
    except ValueError:
        return None
    if not name or not math.isfinite(target):
        return None
    require_reachable("metrics", f"{kind}:{argument}", name, target)
    heading, cost = COSTS[kind]

    def value(history: History) -> float | None:
        number = f"personalised.{name}"
        curve = History(history.most_tested(number)).curve(number)
        met = (
            round_number
            for round_number, score in curve.items()
            if (score <= target if lower_is_better(name) else score >= target)
        )
        first = next(met, None)
        return None if first is None else cost(history, first)

    return Metric(heading, value, lowest_is_best=True)


# What it has cost up to a round, its own tests included.
COSTS: dict[str, tuple[str, Callable[[History, int], float]]] = {
    "rounds-to": ("rounds", lambda history, number: number),
    "megabytes-to": ("MB", lambda history, number: traffic(history)[number] / 1e6),
    "seconds-to": ("s", lambda history, number: sum(
        seconds for round_number, seconds in history.curve("seconds_train").items() if round_number <= number
    )),
}  # fmt: skip


def find_curve(name: str) -> tuple[str, str]:
    """Return (heading, number of :class:`History`) of a curve by name."""
    kind, _, argument = name.partition(":")
    if kind == DETAIL and argument:
        return argument, f"details.{argument}"
    if name not in CURVES:
        raise ConfigError("curves", name, f"must be one of {', '.join([*CURVES, f'{DETAIL}:NAME'])}")
    return CURVES[name]


def mode_of(name: str) -> str | None:
    """Return the mode of ``fedpfl personalise`` that a metric needs, if it needs one."""
    kind, _, argument = name.partition(":")
    return argument if kind == NEW_CLIENTS else None


def measure(name: str, folder: RunFolder, notes: Path, clients: Collection[int] = ()) -> float | None:
    """Return a metric of a finished run; None where the run has no such number.

    ``notes`` is the folder with what was measured after the run. If clients are given, only their accuracies count.
    """
    if mode := mode_of(name):
        place = notes / f"{NEW_CLIENTS}-{mode}.json"
        return float(read_json(place)["weighted"]) if place.is_file() else None
    value = find(name).value(of_clients(folder.history(), clients))
    return None if value is None else float(value)


def _best_window(history: History, number: str) -> float | None:
    """Return the best mean of consecutive tests, none of which lacks more clients than the most complete one."""
    asked = [line for line in history.lines if line.get("personalised") or line.get("untested")]
    complete = {line["round"] for line in history.most_tested()}
    curve = {name: value for name, value in history.curve(number).items() if name in complete}
    values = [curve.get(line["round"]) for line in asked]
    width = min(WINDOW, len(values))
    windows = [values[start : start + width] for start in range(len(values) - width + 1)] if width else []
    whole = ([value for value in window if value is not None] for window in windows if None not in window)
    return max(map(statistics.fmean, whole), default=None)


def _best_trained(history: History) -> float | None:
    """Return the best round's share of correct test samples, each client with the model that it trained last.

    The first rounds, after which some clients have not trained yet, do not count.
    """
    # Runs that are older than this number have no sizes.
    tested = [test for line in history.lines if (test := line.get("trained")) and "samples" in test]
    everyone = {client for test in tested for client in test["each"]}
    correct: dict[str, float] = {}
    samples: dict[str, int] = {}
    shares = []
    for test in tested:
        samples.update(test["samples"])
        correct.update({client: accuracy * samples[client] for client, accuracy in test["each"].items()})
        if correct.keys() == everyone:
            shares.append(sum(correct.values()) / sum(samples.values()))
    return max(shares, default=None)


def _accuracy(heading: str, take: Callable[[History, str], float | None], number: str, short: str = "") -> Metric:
    return Metric(heading, lambda history: take(history, number), share=True, short=short)


def _bytes(history: History) -> float:
    return history.total("bytes_up") + history.total("bytes_down")


PERSONALISED, WORST, WEIGHTED = "personalised.accuracy", "personalised.worst-tenth", "personalised.weighted"
GLOBAL, VALIDATION = "global.accuracy", "validation.accuracy"

_MEAN = "personalised accuracy, mean over clients"
_TENTH = "personalised accuracy of the worst tenth of the clients"
_OF_ALL = ", of all test samples"  # which R² of clients' samples is no mean of
_SAMPLES = f"personalised accuracy{_OF_ALL}"
_CHOSEN = "in the round with the best validation score"

METRICS: dict[str, Metric] = {
    "personalised-best": _accuracy(f"{_MEAN}, best round", History.best, PERSONALISED),
    "personalised-last": _accuracy(f"{_MEAN}, last round", History.last, PERSONALISED, "mean over clients"),
    "validation-best": _accuracy("accuracy on validation samples, best round", History.best, VALIDATION),
    "personalised-chosen": _accuracy(f"{_MEAN}, {_CHOSEN}", History.chosen, PERSONALISED, "mean over clients"),
    "worst-tenth-chosen": _accuracy(f"{_TENTH}, {_CHOSEN}", History.chosen, WORST, "worst tenth"),
    "worst-tenth-last": _accuracy(f"{_TENTH}, last round", History.last, WORST, "worst tenth"),
    "weighted-best": _accuracy(f"{_SAMPLES}, best round", History.best, WEIGHTED),
    "weighted-last": _accuracy(f"{_SAMPLES}, last round", History.last, WEIGHTED),
    "weighted-best-10": _accuracy(
        f"{_SAMPLES}, best mean of {WINDOW} consecutive evaluated rounds (of all where there are fewer)",
        _best_window, WEIGHTED,
    ),
    "trained-best": Metric(
        f"accuracy of the models that the clients trained last{_OF_ALL}, best round", _best_trained, share=True,
    ),
    "trained-last": _accuracy(f"{_MEAN}, as they were trained, last round", History.last, "trained.accuracy"),
    "global-best": _accuracy("global accuracy, best round", History.best, GLOBAL),
    "global-last": _accuracy("global accuracy, last round", History.last, GLOBAL),
    "global-chosen": _accuracy(f"global accuracy, {_CHOSEN}", History.chosen, GLOBAL, "global model"),
    "gigabytes": Metric("traffic both ways, evaluations included, GB", lambda history: _bytes(history) / 1e9, digits=3,
                        lowest_is_best=True),
    "megabytes": Metric(
        "traffic both ways, evaluations included, MB", lambda history: _bytes(history) / 1e6, short="MB",
        lowest_is_best=True,
    ),
    "seconds": Metric("time of the training rounds, s", lambda history: history.total("seconds_train"), short="s",
                      lowest_is_best=True),
    "epsilon": Metric(
        "ε of a client's updates (differential privacy, dp-delta)", lambda history: history.last("privacy.epsilon"),
        short="ε", lowest_is_best=True,
    ),
    "train-loss-last": Metric("training loss, last round", lambda history: history.last("train_loss"), digits=4,
                              lowest_is_best=True),
}  # fmt: skip

CURVES = {
    "personalised": ("personalised accuracy", PERSONALISED),
    "global": ("global accuracy", GLOBAL),
    "validation": ("accuracy on validation samples", VALIDATION),
    "train-loss": ("training loss", "train_loss"),
}
