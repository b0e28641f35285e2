"""Between Flower's records and plain payloads: the only place that knows both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from .core.errors import LayoutError
from .core.payload import Payload
from .core.settings import Value


def pack_arrays(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Pack vectors into a record; one record can go into many messages."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def to_content(payload: Payload, arrays: ArrayRecord | None = None) -> RecordDict:
    """Pack a payload into a message's content: a record of arrays (or the one given), one of settings, one of numbers.

    Empty records stay out: each costs a request on each of a message's four ways between server and ClientApp.
    """
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {
        "arrays": pack_arrays(payload.arrays) if arrays is None else arrays,
        "config": ConfigRecord(dict(payload.config)),
        "metrics": MetricRecord(dict(payload.metrics)),
    }
    return RecordDict({name: record for name, record in records.items() if record})


def from_content(content: RecordDict) -> Payload:
    """Unpack a message's content; a record that is missing counts as empty.

    Raises
    ------
    LayoutError
        An array cannot be read.
    """
    arrays = content.array_records.get("arrays", ArrayRecord())
    return Payload(
        config=cast(dict[str, Value], dict(content.config_records.get("config", ConfigRecord()))),
        metrics=cast(dict[str, int | float], dict(content.metric_records.get("metrics", MetricRecord()))),
        arrays={name: _numpy(name, array) for name, array in arrays.items()},
    )


def _numpy(name: str, array: Array) -> np.ndarray:
    try:
        found = array.numpy()
    except Exception as error:  # bytes from the network, and NumPy says nowhere what its reader may raise
        raise LayoutError(f"its array {name!r} cannot be read ({error})") from error
    if not isinstance(found, np.ndarray):  # an archive
        raise LayoutError(f"its array {name!r} is none")
    return found
