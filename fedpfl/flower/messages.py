"""Between Flower's records and plain payloads: the only place that knows both.

Messages with named arrays are those that Flower's users know: ``arrays`` is an ArrayRecord with the shared arrays by
the names that they have in the user's own module, ``config`` a ConfigRecord, ``metrics`` a MetricRecord. What a method
sends besides is in a second ArrayRecord, ``extras``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from ..client import protocol
from ..core.errors import ConfigError, LayoutError
from ..core.layout import Layout
from ..core.payload import Payload
from ..core.settings import Value

# Flower moves each object of a message by a separate request, on each of four ways: a message of records has six or
# seven, a framed one three. But equal arrays of several clients are one object among records, and an object cannot be
# cut into chunks.
MAX_FRAMED_BYTES = 4_000_000
FRAME = "frame"
# The key of a message's config under which a strategy sends its settings.
SETTINGS = "fedpfl"
EXTRAS = "extras"
# The longest text of settings that is read.
MAX_SETTINGS_BYTES = 100_000

Names = Callable[[str], str]


def kind_of(message: Message) -> str:
    """Return what a message asks for; ``train.warm`` names a function of several that train."""
    return message.metadata.message_type.partition(".")[0]


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
    """Pack a payload as one object, a frame of :mod:`fedpfl.client.protocol`, if its arrays are not too large."""
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
    """Return a received array in this machine's byte order, or raise ``LayoutError`` if its bytes are none."""
    try:
        values = array.numpy()
    except Exception as error:  # bytes from the network; NumPy documents no list of what its reader raises
        # NumPy takes whatever it does not know for a pickle, and advises to load that.
        reason = "its bytes are no NumPy array" if "pickle" in str(error) else str(error)
        raise LayoutError(f"its array {name!r} cannot be read ({reason})") from error
    if not isinstance(values, np.ndarray):  # an archive
        raise LayoutError(f"its array {name!r} is not an array")
    if values.dtype.kind == "f" and values.dtype.itemsize > 8:  # neither torch nor a safetensors file has them
        raise LayoutError(f"its array {name!r} is {values.dtype}, and floats may have at most 64 bits")
    # Neither torch nor a safetensors file knows the other byte order.
    return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))


def initial_of(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Return a user's initial arrays; refuse those from which no client can begin, or they would all be blamed."""
    arrays = {name: numpy_of(name, array) for name, array in record.items()}
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ConfigError("initial_arrays", name, "holds values that are not finite")
        if values.dtype.kind == "f" and np.abs(values).max(initial=0) > np.finfo(np.float32).max:
            raise ConfigError("initial_arrays", name, "holds values beyond those of float32, the type of the messages")
        if name.endswith("running_var") and (values < 0).any():
            raise ConfigError("initial_arrays", name, "has negative variances")
    return arrays


# -- named arrays ------------------------------------------------------------------------------------------------------


def to_named(layout: Layout, packed: Mapping[str, np.ndarray], plain: Names) -> tuple[ArrayRecord, ArrayRecord]:
    """Return the shared arrays of a payload by name, and its other arrays as they are."""
    kind = packed["shared"].dtype
    shared = layout.unflatten(layout.unpack(packed))
    others = {name: Array(array) for name, array in packed.items() if name not in ("shared", "shared-kept")}
    named = {plain(name): Array(np.asarray(array, kind, order="C")) for name, array in shared.items()}
    return ArrayRecord(named), ArrayRecord(others)


def from_named(layout: Layout, record: ArrayRecord, plain: Names) -> np.ndarray:
    """Return the shared arrays of a message as a float32 vector; ``LayoutError`` for what is missing or misshapen."""
    arrays = {}
    for name, shape in layout.entries:
        if plain(name) not in record:
            raise LayoutError(f"array {plain(name)!r} is missing")
        array = numpy_of(plain(name), record[plain(name)])
        if array.shape != shape or array.dtype.kind != "f":
            arrived = f"{array.dtype} of shape {array.shape}"
            raise LayoutError(f"array {plain(name)!r} must be floats of shape {shape}; {arrived} arrived")
        arrays[name] = array
    return layout.flatten(arrays)


def others_of(record: ArrayRecord | None) -> dict[str, np.ndarray]:
    """Return the arrays that travel besides the shared ones."""
    return {} if record is None else {name: numpy_of(name, array) for name, array in record.items()}


def settings_text(values: Mapping[str, Value]) -> str:
    """Return a strategy's settings as the text that travels."""
    return json.dumps(dict(values), separators=(",", ":"), sort_keys=True)


def method_of(told: Mapping[str, Any]) -> str:
    """Return the name of the method of a strategy's message."""
    return str(read_settings(told.get(SETTINGS, "{}")).get("method", ""))


def read_settings(text: object) -> dict[str, Any]:
    """Return the settings that a strategy sent; ``LayoutError`` for a text that is none."""
    if not isinstance(text, str) or len(text) > MAX_SETTINGS_BYTES:
        raise LayoutError(f"{SETTINGS}: settings as a text of at most {MAX_SETTINGS_BYTES} characters are expected")
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{SETTINGS}: settings that are not JSON arrived: {error}") from error
    if not isinstance(settings, dict) or not all(type(value) in (bool, int, float, str) for value in settings.values()):
        raise LayoutError(f"{SETTINGS}: settings with values of other types arrived")
    return settings
