"""How the simulation's processes describe arrays to each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class ArrayHeader(NamedTuple):
    """What a header says of an array."""

    name: str  # in the payload
    number: int  # the same number is the same array; of a reply 0
    dtype: str
    shape: tuple[int, ...]
    follows: bool  # whether its bytes come behind the header; else the receiver has it


def headers(arrays: Mapping[str, np.ndarray]) -> list[ArrayHeader]:
    """Describe the arrays of a reply."""
    return [ArrayHeader(name, 0, array.dtype.str, array.shape, True) for name, array in arrays.items()]


def prefix(client: int, clients: int) -> str:
    """Return the prefix of the names of a client's arrays where those of several travel together."""
    return f"{client} " if clients > 1 else ""


def arrays_of(client: int, arrays: Mapping[str, np.ndarray], clients: int) -> dict[str, np.ndarray]:
    """Return a client's arrays out of those of several."""
    first = prefix(client, clients)
    return {name[len(first) :]: array for name, array in arrays.items() if name.startswith(first)}
