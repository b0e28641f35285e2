"""A round as one line of ``metrics.jsonl``."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ..core import metrics
from ..core.metric_bounds import EVERY_REPLY
from .round_record import Round

# A client's mean loss counts as at most so many times the median of the clients' (at least 1).
LOSSES_OVER_MEDIAN = 1000
# What every test measures.
ALWAYS = frozenset({"accuracy", "std", "weighted", "loss"})


def summarise(done: Round) -> dict[str, Any]:
    """Turn a round into its line of ``metrics.jsonl``, whose numbers docs/how-to/python.md explains.

    ``each`` and ``each-NAME`` are each client's numbers; ``details`` is what method and rule measured themselves.
    """
    losses = [m["train-loss"] for m in done.trained.values() if "train-loss" in m]
    line: dict[str, Any] = {
        "round": done.number,
        "seconds": round(done.seconds_train + done.seconds_evaluate, 4),
        "seconds_train": round(done.seconds_train, 4),
        "seconds_evaluate": round(done.seconds_evaluate, 4),
        "bytes_up": done.bytes_up,
        "bytes_down": done.bytes_down,
        "clients": sorted(done.trained),
        "train_loss": statistics.fmean(losses) if losses else None,
    }
    parts = (("trained", done.trained), ("personalised", done.evaluated), ("validation", done.evaluated))
    for name, replies in parts:
        if scores := scores_of(name, replies):
            line[name] = scores
    tested = {client for client, metrics in done.evaluated.items() if metrics.get("personalised-samples")}
    if untested := sorted(set(done.asked_to_test) - tested):
        line["untested"] = untested
    if "personalised" in line:
        shared = [m for _, m in sorted(done.evaluated.items()) if m.get("global-samples")]
        if shared:
            samples = sum(m["global-samples"] for m in shared)
            line["global"] = {
                "accuracy": sum(m["global-correct"] for m in shared) / samples,
                "loss": _loss("global", shared) / samples,
                **{name: value for name, pairs in _pairs("global", done.evaluated).items()
                   if (value := metrics.combined(name, pairs.values())) is not None},
            }  # fmt: skip
    if done.at_server:
        line["global"] = done.at_server
    if done.bytes_evaluation_only:
        line["bytes_evaluation_only"] = done.bytes_evaluation_only
    details = {**_means(done.trained.values()), **done.details}
    if details:
        line["details"] = details
    if done.privacy:
        line["privacy"] = done.privacy
    if done.joined:
        line["joined"] = done.joined
    for name, reasons in (("failed", done.failed), ("unwritten", done.unwritten)):
        if reasons:
            line[name] = {str(i): reason for i, reason in sorted(reasons.items())}
    return line


def in_words(line: Mapping[str, Any], loss: str = metrics.CLASSES) -> str:
    """Describe a round of a run with this loss in a few words: accuracies, megabytes and how many clients failed."""
    parts = []
    for name in ("personalised", "global"):
        if line.get(name):
            called = "" if metrics.is_share(metrics.ACCURACY, loss) else f" {metrics.score_name(loss)}"
            parts.append(f"{name}{called} {metrics.score_in_words(line[name]['accuracy'], loss, 1)}")
    if tested_on := over_whom(line):
        parts.append(tested_on)
    parts.append(f"{(line['bytes_up'] + line['bytes_down']) / 1e6:.1f} MB")
    if line.get("failed"):
        failed = len(line["failed"])
        parts.append(f"{failed} client{'s' * (failed > 1)} failed")
    return ", ".join(parts)


def over_whom(line: Mapping[str, Any]) -> str:
    """Return over how many clients the means of a test are, ``3 of 4 clients``; empty if no test is missing."""
    if not line.get("untested"):
        return ""
    tested = len((line.get("personalised") or {}).get("each", {}))
    return f"{tested} of {tested + len(line['untested'])} clients"


def scores_of(name: str, replies: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Return the scores of the models that replies call ``name``, in client order; nothing where there are none."""
    tested = {i: m for i, m in sorted(replies.items()) if m.get(f"{name}-samples")}
    if not tested:
        return {}
    each = {i: m[f"{name}-correct"] / m[f"{name}-samples"] for i, m in tested.items()}
    each_samples = {i: int(m[f"{name}-samples"]) for i, m in tested.items()}
    samples = sum(each_samples.values())
    return {
        "accuracy": statistics.fmean(each.values()),
        "std": statistics.pstdev(each.values()),
        "weighted": sum(m[f"{name}-correct"] for m in tested.values()) / samples,
        "loss": _loss(name, tested.values()) / samples,
        "each": {str(i): accuracy for i, accuracy in each.items()},
        "samples": {str(i): number for i, number in each_samples.items()},
        **_measured(name, replies),
    }


def _loss(name: str, replies: Iterable[Mapping[str, float]]) -> float:
    """Return the sum of the clients' losses; each one's mean counts as at most so many times that of the usual client.

    One client whose model has diverged, or that says so, would otherwise be all that there is to see of the others.
    """
    rows = [(m[f"{name}-loss-sum"], m[f"{name}-samples"]) for m in replies]
    most = LOSSES_OVER_MEDIAN * max(1.0, statistics.median_low(total / samples for total, samples in rows))
    return sum(min(total, most * samples) for total, samples in rows)


def _pairs(model: str, replies: Mapping[int, Mapping[str, float]]) -> dict[str, dict[int, tuple[float, float]]]:
    """Return sum and count of each metric of a tested model, by client, for the clients for which it is defined."""
    pairs: dict[str, dict[int, tuple[float, float]]] = {}
    parts = [(key, metrics.part_of(key)) for key in sorted(set().union(*replies.values()))]
    sums = [(key, part.metric) for key, part in parts if part is not None and part.model == model and part.is_sum]
    for client, reply in sorted(replies.items()) if sums else ():
        for key, metric in sums:
            if key in reply and (count := reply[f"{model}-{metric}{metrics.COUNT}"]):
                pairs.setdefault(metric, {})[client] = reply[key], count
    return pairs


def _measured(model: str, replies: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Return the numbers that a round records of the metrics of a tested model."""
    line: dict[str, Any] = {}
    for name, pairs in _pairs(model, replies).items():
        each = {str(client): metrics.value(name, *pair) for client, pair in pairs.items()}
        line[name], line[f"each-{name}"] = statistics.fmean(each.values()), each
        # Of a user's own function only the counts tell that it makes sums.
        if metrics.kind_of(name).is_ratio or any(count != 1 for _, count in pairs.values()):
            line[name + metrics.POOLED] = metrics.combined(name, pairs.values())
    return line


def _means(replies: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the means, over the clients that sent them, of the numbers that only this method reports."""
    values: dict[str, list[float]] = {}
    for reply in replies:
        for name, value in reply.items():
            if name not in EVERY_REPLY and metrics.part_of(name) is None:
                values.setdefault(name, []).append(value)
    return {name: statistics.fmean(values[name]) for name in sorted(values)}


def metric_names(scores: Mapping[str, Any]) -> list[str]:
    """Return the names of the numbers of a tested model in a line of ``metrics.jsonl`` that ``metrics`` asked for."""
    return [name for name, value in scores.items() if not isinstance(value, dict) and name not in ALWAYS]
