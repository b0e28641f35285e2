"""Messages with named arrays, as Flower's users know them, and the flat vectors that rules and clients compute with.

``arrays`` is an ArrayRecord with the shared arrays by the names that they have in the user's own module, ``config`` a
ConfigRecord, and ``metrics`` a MetricRecord. What a method sends besides is in a second ArrayRecord, ``extras``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from ..core.errors import LayoutError
from ..core.layout import Layout
from ..core.settings import Value
from ..setup.all_settings import tagged
from .messages import SETTINGS, numpy_of

EXTRAS = "extras"
# Settings that each side has for itself: what its own code is, where its files are, and how the server runs.
NOT_SENT = tagged("place") | tagged("own")
# The longest text of settings that is read.
MAX_SETTINGS_BYTES = 100_000

Names = Callable[[str], str]


def to_named(layout: Layout, packed: Mapping[str, np.ndarray], plain: Names) -> tuple[ArrayRecord, ArrayRecord]:
    """Return the shared arrays of a payload by name, and its other arrays as they are."""
    kind = packed["shared"].dtype
    shared = layout.unflatten(layout.unpack(packed))
    others = {name: Array(array) for name, array in packed.items() if name not in ("shared", "shared-kept")}
    named = {plain(name): Array(np.asarray(array, kind, order="C")) for name, array in shared.items()}
    return ArrayRecord(named), ArrayRecord(others)


def from_named(layout: Layout, record: ArrayRecord, plain: Names) -> np.ndarray:
    """Return the shared arrays of a message as one vector, float32; others are left out.

    They come from the network: one that is missing, of another shape or no array of floats raises ``LayoutError``.
    """
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
