"""Personal arrays of the run that a run continues: where they are, and what becomes of them where classes are new."""

from __future__ import annotations

import re
from typing import Any, Mapping, Sequence

import numpy as np

from ..core.errors import StateError

_PLACES = re.compile(r"\d{1,6}(,\d{1,6})*")


def personal_place(task: Mapping[str, Any], client: int, number: int) -> tuple[str, int, str]:
    """Return key and round of a client's personal arrays; below 0 they are of the run that this one continues.

    The third is for :func:`places_of` where that one had fewer classes, else empty.
    """
    if number >= 0:
        return task["state_key"], number, ""
    key, earlier, *places = task["continued"]["personal"][client]
    return key, earlier, "".join(places)


def places_of(text: str, of_earlier: str = "") -> list[int]:
    """Return which numbers the classes of a continued run have now, of a text like ``0,2``.

    ``of_earlier`` says the same of the run that this one has continued itself.
    """
    if not _PLACES.fullmatch(text):
        raise StateError("classes-before: must be whole numbers between commas")
    places = [int(number) for number in text.split(",")]
    return [places[at] for at in places_of(of_earlier)] if of_earlier else places


def widened(array: np.ndarray, fresh: np.ndarray, places: Sequence[int]) -> np.ndarray:
    """Return a fresh array with what another one has for each class in the place of that class.

    Arrays of one shape have nothing of classes: the other is returned as it is. ``StateError`` if they differ in more
    than the number of classes.
    """
    if array.shape == fresh.shape:
        return array
    axes = [at for at, (old, new) in enumerate(zip(array.shape, fresh.shape)) if old != new]
    fits = array.ndim == fresh.ndim and len(axes) == 1 and array.shape[axes[0]] == len(places)
    if not fits or not all(0 <= at < fresh.shape[axes[0]] for at in places):
        raise StateError(f"of shape {array.shape}, does not become {fresh.shape} by more classes alone")
    found = fresh.copy()
    found[(slice(None),) * axes[0] + (list(places),)] = array
    return found


def personal_widened(
    arrays: Mapping[str, np.ndarray], fresh: Mapping[str, np.ndarray], text: str
) -> dict[str, np.ndarray]:
    """Return the personal arrays of a client of the run before; what options have kept starts again."""
    places = places_of(text)
    return {name: widened(arrays[name], first, places) for name, first in fresh.items() if name in arrays}
