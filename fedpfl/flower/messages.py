"""Between Flower's records and plain payloads: the only place that knows both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from ..client import protocol
from ..core.errors import LayoutError
from ..core.payload import Payload
from ..core.settings import Value

# Flower moves each object of a message by a separate request, on each of four ways: a message of records has six or
# seven, a framed one three. But equal arrays of several clients are one object among records, and an object cannot be
# cut into chunks.
MAX_FRAMED_BYTES = 4_000_000
FRAME = "frame"
# The key of a message's config under which a strategy sends its settings.
SETTINGS = "fedpfl"


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


def to_framed_content(payload: Payload) -> RecordDict:
    """Pack a payload into a message's content of as few objects as possible: one, if the arrays are not too large.

    The payload is then a frame of :mod:`fedpfl.client.protocol`, in a record of settings.
    """
    if not fits_frame(payload) or not (payload.arrays or (payload.config and payload.metrics)):
        return to_content(payload)
    return RecordDict({FRAME: ConfigRecord({FRAME: protocol.pack({}, payload)})})


def fits_frame(payload: Payload) -> bool:
    """Return whether a payload's arrays are small enough to travel as one object."""
    return sum(array.nbytes for array in payload.arrays.values()) <= MAX_FRAMED_BYTES


def from_content(content: RecordDict) -> Payload:
    """Unpack a message's content, framed or not; a record that is missing counts as empty."""
    if FRAME in content.config_records:
        return _unframed(content.config_records[FRAME].get(FRAME))
    arrays = content.array_records.get("arrays", ArrayRecord())
    return Payload(
        config=cast(dict[str, Value], dict(content.config_records.get("config", ConfigRecord()))),
        metrics=cast(dict[str, int | float], dict(content.metric_records.get("metrics", MetricRecord()))),
        arrays={name: numpy_of(name, array) for name, array in arrays.items()},
    )


def _unframed(frame: object) -> Payload:
    if not isinstance(frame, bytes):
        raise LayoutError("its message cannot be read (the frame is not bytes)")
    try:
        return protocol.unpack(frame)[1]
    except protocol.ProtocolError as error:
        raise LayoutError(f"its message cannot be read ({error})") from error


def numpy_of(name: str, array: Array) -> np.ndarray:
    """Return a received array, or raise ``LayoutError`` if its bytes are none."""
    try:
        values = array.numpy()
    except Exception as error:  # bytes from the network; NumPy documents no list of what its reader raises
        raise LayoutError(f"its array {name!r} cannot be read ({error})") from error
    if not isinstance(values, np.ndarray):  # an archive
        raise LayoutError(f"its array {name!r} is not an array")
    return values
