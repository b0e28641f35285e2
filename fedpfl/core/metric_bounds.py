"""Bounds of every number that a client reports: one table, which the server uses for every transport.

A message of the right form may still hold a false number. Each value is compared with its row here, and with what the
row names, before anything is built, allocated or added up from it. A value outside is that client's failure.
"""

from __future__ import annotations

import math
import re
import reprlib
from functools import lru_cache
from typing import Any, Collection, Mapping, NamedTuple

from .errors import LayoutError, printable
from .layout import MAX_LAYOUT_BYTES
from .name_lists import shape_of
from .samples import MAX_CLASSES, MAX_TOKENS

MAX_CLIENTS = 1_000_000
# Of a client's training.
MAX_THREADS = 1024
# Clients may have different classes, but one with over a thousand has at most this many times the median.
FEW_CLASSES, CLASSES_OVER_MEDIAN = 1_000, 100
# Enough for a thousand values of each of many parts, too few to fill a disk with the rounds' records.
MAX_METRICS = 256
# What counts by a node's own word counts for at most so many times the median.
WEIGHT_OVER_MEDIAN = 100
# Sums of as many values as there can be clients stay far below the largest float.
LARGEST = 1e30


class Bounds(NamedTuple):
    """Lowest and highest allowed value of one number that a client reports."""

    kind: type  # int, or float for either
    lowest: float  # allowed, as is the highest
    highest: float


# The answer to a query, which a node gives before round 1; beside a row, what else the value is compared with.
DESCRIPTION: Mapping[str, Bounds] = {
    "client": Bounds(int, 0, MAX_CLIENTS - 1),  # num-clients; a number belongs to one node
    "num-clients": Bounds(int, 1, MAX_CLIENTS),  # the server's num-clients, or else that of most nodes
    "num-classes": Bounds(int, 0, MAX_CLASSES),  # 100 times the median of all clients, where it is above 1,000
    "vocabulary": Bounds(int, 0, MAX_TOKENS),  # that of most clients
    "division": Bounds(int, 0, 2**32 - 1),  # that of most clients
    "threads": Bounds(int, 0, MAX_THREADS),
    "train-samples": Bounds(int, 0, 2**53),  # max-client-samples
    "test-samples": Bounds(int, 0, 2**53),  # max-client-samples
}
# The form of that answer's texts.
TEXTS: Mapping[str, str] = {
    "input-shape": r"\d{1,6}(x\d{1,6}){0,3}",  # that of most clients
    "layout": rf"(?s).{{1,{MAX_LAYOUT_BYTES}}}",  # the server's model
    "remarks": r"(?s).{0,2000}",  # printable
    "columns": r"([0-9a-f]{16}( .{1,2000})?)?",  # that of most clients
    "classes": r"([0-9a-f]{16})?",  # that of most clients, where the classifier is shared
    "data": r"([0-9a-f]{16})?",  # this client's earlier answers
    "model": r"[!-+\--~]{0,200}",  # this client's earlier answers
    "extras": r"[ -~]{0,2000}",  # the server's model, where the client names its own model
    "identity": r"[0-9a-f]{64}",  # this client's earlier answers
}
OPTIONAL = {
    "vocabulary": 0, "division": 0, "threads": 0, "remarks": "", "columns": "", "classes": "", "data": "",
    "model": "", "extras": "", "identity": "0" * 64,
}  # fmt: skip
# A model for larger inputs than this would not fit on a device.
MAX_INPUT_VALUES = 2**24

# Numbers of a reply: the first row whose name ends the metric's applies. The last one is for a method's own metrics.
REPLY: Mapping[str, Bounds] = {
    "-samples": Bounds(int, 0, 2**53),  # the client's samples of that kind
    "-correct": Bounds(int, 0, 2**53),  # the samples of the same test
    "-metric-sum": Bounds(float, -LARGEST, LARGEST),  # the bounds of the metric, times its count
    "-metric-count": Bounds(float, 0, 2**53),  # the test samples, times the values of a sample
    "-loss-sum": Bounds(float, 0, LARGEST),
    "-loss": Bounds(float, 0, LARGEST),
    "-seconds": Bounds(float, 0, 10**9),
    "": Bounds(float, -LARGEST, LARGEST),
}
# What every reply to train may have of itself, so that no method's number has such a name; the last one is Flower's.
EVERY_REPLY = frozenset({
    "train-samples", "train-loss", "train-seconds", "trained-correct", "trained-samples", "trained-loss-sum",
    "num-examples",
})  # fmt: skip
# What is too large or not finite where training diverges.
LOSSES = ("-loss", "-loss-sum")
_METRIC = re.compile(r"[A-Za-z0-9][\w./@%-]{0,63}", re.ASCII)


def problem(name: str, value: object, bounds: Bounds, highest: float | None = None) -> str:
    """Describe a number's fault in one line, or return an empty text; ``highest`` is tighter than the table."""
    most = bounds.highest if highest is None else min(highest, bounds.highest)
    kinds = (int,) if bounds.kind is int else (int, float)
    # A bool is an int to Python.
    if type(value) in kinds and bounds.lowest <= value <= most:  # type: ignore[operator]
        return ""
    what = "a whole number" if bounds.kind is int else "a number"
    diverged = name.endswith(LOSSES) and isinstance(value, float) and not value < 0
    # A client looks at its weights before it sends: these are finite.
    cause = "the loss itself is no number" if value != value else "a smaller learning-rate may help"
    likely = f"; {cause}" if diverged else ""
    return f"{name} = {shown(value)}: must be {what} from {bounds.lowest:g} to {most:g}{likely}"


def require_description(config: Mapping[str, Any], metrics: Mapping[str, Any], max_samples: int) -> None:
    """Raise ``LayoutError`` for the first value of a client's answer to the query that is out of its bounds."""
    for name, bounds in DESCRIPTION.items():
        said = metrics if name.endswith("-samples") else config
        highest = max_samples if name.endswith("-samples") else None
        if wrong := problem(name, said.get(name, OPTIONAL.get(name)), bounds, highest):
            raise LayoutError(wrong)
    for name, form in TEXTS.items():
        text = config.get(name, OPTIONAL.get(name))
        if not isinstance(text, str) or not re.fullmatch(form, text):
            raise LayoutError(f"{name} = {shown(text)}: is not of the form that this version uses")
    for name in ("remarks", "columns"):
        if not config.get(name, "").replace("\n", "").isprintable():
            raise LayoutError(f"{name}: must be printable")
    if math.prod(shape_of(config["input-shape"])) > MAX_INPUT_VALUES:
        shape = printable(config["input-shape"], 80)
        raise LayoutError(f"input-shape = {shape}: has more than {MAX_INPUT_VALUES} values")


def require_metrics(metrics: Collection[str]) -> None:
    """Raise ``LayoutError`` if a reply has too many metrics, or one whose name would not fit into a record."""
    if len(metrics) > MAX_METRICS:
        raise LayoutError(f"its reply has {len(metrics)} metrics; at most {MAX_METRICS} are allowed")
    for name in metrics:
        if not _METRIC.fullmatch(name):
            raise LayoutError(f"its reply has a metric called {shown(name)}: must be letters, digits and ./@%_-")


@lru_cache(maxsize=4 * MAX_METRICS)
def bounds_of(metric: str) -> Bounds:
    """Return the row of the table for a metric of a reply."""
    return next(bounds for name, bounds in REPLY.items() if metric.endswith(name))


def shown(value: object) -> str:
    """Return a value as text for an error, printable and short."""
    # Formatting a number with a million digits would take minutes.
    if isinstance(value, int) and abs(value) > 2**64:
        return "more than 64 bits"
    return printable(reprlib.repr(value), 80)
