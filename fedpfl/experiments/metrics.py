"""What a table of an experiment measures of a run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis.fairness import worst_tenth
from ..core.errors import ConfigError
from ..core.stored import read_json
from ..results.run import RunFolder

WINDOW = 10
NEW_CLIENTS = "new-clients"
DETAIL = "detail"
ATTACK = "attack"
POOLS: dict[str, Callable[[Sequence[float]], float]] = {"average": statistics.fmean, "maximum": max}

Lines = Sequence[Mapping[str, Any]]
Curve = Callable[[Mapping[str, Any], Collection[int]], "float | None"]


@dataclass(frozen=True)
class Metric:
    """A number that a run leaves.

    Attributes
    ----------
    heading : str
        What it is, with its unit.
    value : callable
        Returns the number, given the rounds' lines of ``metrics.jsonl`` and the clients that count (empty: all); None
        where the run has none.
    share : bool
        Whether it is an accuracy between 0 and 1, which is written as a percentage or a fraction.
    digits : int
        Decimal places, where it is no share.
    pool : callable
        Makes one number of those of several columns.
    short : str
        The heading in a ranking, where the words above the table say the rest; empty: the whole heading.
    """

    heading: str
    value: Callable[[Lines, Collection[int]], float | None]
    share: bool = False
    digits: int = 2
    pool: Callable[[Sequence[float]], float] = statistics.fmean
    short: str = ""


def find(name: str) -> Metric:
    """Return a metric by name.

    Raises
    ------
    ConfigError
        There is none of that name.
    """
    kind, _, argument = name.partition(":")
    if kind == DETAIL and argument:
        return Metric(
            f"{argument}, last round", lambda lines, clients: _last(lines, clients, _detail(argument)), digits=2
        )
    if kind == NEW_CLIENTS and argument:
        # Measured by a command of its own, after the run.
        return Metric("accuracy of new clients, of all their test samples", lambda lines, clients: None, share=True)
    if kind == ATTACK and argument in POOLS:
        # Of the analysis `attack` with the options that the experiment gives it.
        return Metric(f"PSNR of recovered images, {argument}, dB", lambda lines, clients: None, pool=POOLS[argument])
    if name not in METRICS:
        known = ", ".join([*METRICS, f"{DETAIL}:NAME", f"{NEW_CLIENTS}:MODE", *(f"{ATTACK}:{pool}" for pool in POOLS)])
        raise ConfigError("metrics", name, f"must be one of {known}")
    return METRICS[name]


def find_curve(name: str) -> tuple[str, Curve]:
    """Return (heading, function of a line of ``metrics.jsonl`` and the clients that count) by name.

    Raises
    ------
    ConfigError
        There is none of that name.
    """
    kind, _, argument = name.partition(":")
    if kind == DETAIL and argument:
        return argument, _detail(argument)
    if name not in CURVES:
        raise ConfigError("curves", name, f"must be one of {', '.join([*CURVES, f'{DETAIL}:NAME'])}")
    return CURVES[name]


def mode_of(name: str) -> str | None:
    """Return the mode of ``fedpfl new-clients`` that a metric needs, if it needs one."""
    kind, _, argument = name.partition(":")
    return argument if kind == NEW_CLIENTS else None


def measure(name: str, folder: RunFolder, beside: Path, clients: Collection[int] = ()) -> float | None:
    """Measure a finished run.

    Parameters
    ----------
    name : str
        The metric.
    folder : RunFolder
        The run.
    beside : Path
        Folder of what was measured after the run.
    clients : collection of int
        The clients that count in a mean over clients; empty: all.

    Returns
    -------
    float or None
        None where the run has no such number.
    """
    mode = mode_of(name)
    if mode is not None:
        return float(read_json(beside / f"{NEW_CLIENTS}-{mode}.json")["weighted"])
    return find(name).value(folder.metrics(), clients)


def _personalised(line: Mapping[str, Any], clients: Collection[int]) -> float | None:
    found = line.get("personalised")
    if not found:
        return None
    each = [accuracy for i, accuracy in found["each"].items() if int(i) in clients]
    return statistics.fmean(each) if each else float(found["accuracy"])


def _worst_tenth(line: Mapping[str, Any], clients: Collection[int]) -> float | None:
    found = line.get("personalised")
    each = [accuracy for i, accuracy in found["each"].items() if not clients or int(i) in clients] if found else []
    return worst_tenth(each) if each else None


def _weighted(line: Mapping[str, Any], clients: Collection[int]) -> float | None:
    found = line.get("personalised")
    return float(found["weighted"]) if found else None


def _global(line: Mapping[str, Any], clients: Collection[int]) -> float | None:
    found = line.get("global")
    return float(found["accuracy"]) if found else None


def _loss(line: Mapping[str, Any], clients: Collection[int]) -> float | None:
    loss = line.get("train_loss")
    return None if loss is None else float(loss)


def _detail(name: str) -> Curve:
    def of(line: Mapping[str, Any], clients: Collection[int]) -> float | None:
        value = (line.get("details") or {}).get(name)
        return None if value is None else float(value)

    return of


def _values(lines: Lines, clients: Collection[int], curve: Curve) -> list[float]:
    return [value for line in lines if (value := curve(line, clients)) is not None]


def _last(lines: Lines, clients: Collection[int], curve: Curve) -> float | None:
    values = _values(lines, clients, curve)
    return values[-1] if values else None


def _best(lines: Lines, clients: Collection[int], curve: Curve) -> float | None:
    return max(_values(lines, clients, curve), default=None)


def _best_window(lines: Lines, clients: Collection[int], curve: Curve) -> float | None:
    values = _values(lines, clients, curve)
    width = min(WINDOW, len(values))
    means = [statistics.fmean(values[i : i + width]) for i in range(len(values) - width + 1)] if width else []
    return max(means, default=None)


def _accuracy(
    heading: str, take: Callable[[Lines, Collection[int], Curve], float | None], curve: Curve, short: str = ""
) -> Metric:
    return Metric(heading, lambda lines, clients: take(lines, clients, curve), share=True, short=short)


def _best_trained(lines: Lines, clients: Collection[int]) -> float | None:
    """Return the best round's share of correct test samples, each client with the model that it trained last.

    The first rounds, after which some clients have not trained yet, do not count.
    """
    # Runs that are older than this number have no sizes.
    tested = [found for line in lines if (found := line.get("trained")) and "samples" in found]
    everyone = {client for found in tested for client in found["each"]}
    correct: dict[str, float] = {}
    samples: dict[str, int] = {}
    shares = []
    for found in tested:
        samples.update(found["samples"])
        correct.update({client: accuracy * samples[client] for client, accuracy in found["each"].items()})
        if correct.keys() == everyone:
            shares.append(sum(correct.values()) / sum(samples.values()))
    return max(shares, default=None)


def _validation(line: Mapping[str, Any], clients: Collection[int]) -> float | None:
    found = line.get("validation")
    return float(found["accuracy"]) if found else None


def _chosen(lines: Lines, clients: Collection[int], curve: Curve) -> float | None:
    """Return a number in the round that is best on the samples for validation."""
    both = [line for line in lines if line.get("validation") and line.get("personalised")]
    best = max(both, key=lambda line: float(line["validation"]["accuracy"]), default=None)
    return None if best is None else curve(best, clients)


def _bytes(lines: Lines) -> int:
    return sum(line["bytes_up"] + line["bytes_down"] for line in lines)


CHOSEN = "in the round that is best on samples for validation"

METRICS: dict[str, Metric] = {
    "personalised-best": _accuracy("personalised accuracy, mean over clients, best round", _best, _personalised),
    "personalised-last": _accuracy("personalised accuracy, mean over clients, last round", _last, _personalised),
    "validation-best": _accuracy("accuracy on samples for validation, best round", _best, _validation),
    "personalised-chosen": _accuracy(
        f"personalised accuracy, mean over clients, {CHOSEN}", _chosen, _personalised, "mean over clients",
    ),
    "worst-tenth-chosen": _accuracy(
        f"personalised accuracy of the worst tenth of the clients, {CHOSEN}", _chosen, _worst_tenth, "worst tenth",
    ),
    "worst-tenth-last": _accuracy(
        "personalised accuracy of the worst tenth of the clients, last round", _last, _worst_tenth,
    ),
    "weighted-best": _accuracy("personalised accuracy, of all test samples, best round", _best, _weighted),
    "weighted-last": _accuracy("personalised accuracy, of all test samples, last round", _last, _weighted),
    "weighted-best-10": _accuracy(
        f"personalised accuracy, of all test samples, best mean of {WINDOW} consecutive evaluated rounds (of all where "
        "there are fewer)", _best_window, _weighted,
    ),
    "trained-best": Metric(
        "accuracy of the models that the clients trained last, of all test samples, best round", _best_trained,
        share=True,
    ),
    "global-best": _accuracy("global accuracy, best round", _best, _global),
    "global-last": _accuracy("global accuracy, last round", _last, _global),
    "global-chosen": _accuracy(f"global accuracy, {CHOSEN}", _chosen, _global, "global model"),
    "gigabytes": Metric(
        "traffic both ways, evaluations included, GB",
        lambda lines, clients: _bytes(lines) / 1e9,
        digits=3,
    ),
    "megabytes": Metric(
        "traffic both ways, evaluations included, MB", lambda lines, clients: _bytes(lines) / 1e6, short="MB"
    ),
    "seconds": Metric(
        "time of the training rounds, s", lambda lines, clients: float(sum(line["seconds_train"] for line in lines)),
        short="s",
    ),
    "train-loss-last": Metric(
        "training loss, last round", lambda lines, clients: _last(lines, clients, _loss), digits=4
    ),
}  # fmt: skip

CURVES: dict[str, tuple[str, Curve]] = {
    "personalised": ("personalised accuracy", _personalised),
    "global": ("global accuracy", _global),
    "validation": ("accuracy on samples for validation", _validation),
    "train-loss": ("training loss", _loss),
}
