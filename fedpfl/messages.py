"""Between Flower's records and plain payloads: the only place that knows both."""

from __future__ import annotations

from typing import cast

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from .client import Payload
from .settings import Value


def to_content(payload: Payload) -> RecordDict:
    """Pack a payload into a message's content: one record of arrays, one of settings, one of numbers."""
    return RecordDict(
        {
            "arrays": ArrayRecord({name: Array(array) for name, array in payload.arrays.items()}),
            "config": ConfigRecord(dict(payload.config)),
            "metrics": MetricRecord(dict(payload.metrics)),
        }
    )


def from_content(content: RecordDict) -> Payload:
    """Unpack a message's content; a record that is missing counts as empty."""
    arrays = content.array_records.get("arrays", ArrayRecord())
    return Payload(
        config=cast(dict[str, Value], dict(content.config_records.get("config", ConfigRecord()))),
        metrics=cast(dict[str, int | float], dict(content.metric_records.get("metrics", MetricRecord()))),
        arrays={name: array.numpy() for name, array in arrays.items()},
    )


def count_bytes(content: RecordDict) -> int:
    """Return the bytes of all records of a message: arrays with their headers, settings, numbers and keys."""
    return sum(record.count_bytes() for record in content.values())
