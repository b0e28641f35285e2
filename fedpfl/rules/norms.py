"""Euclidean norms of vectors, and what is usual of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..core.errors import LayoutError, TooLong
from ..core.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor

# The square of a longer vector is too large for float32: nothing can be computed with it.
LARGEST = 2.0**63
PARAMETERS, STATISTICS = "shared", "running statistics"  # names that no extra has

# Values whose squares are added up at a time, so that BLAS uses one thread; and blocks whose differences are made at a
# time, which stay in a core's cache.
BLOCK, BLOCKS = 1 << 13, 8
# Bytes of vectors, as float64, that are computed with at a time where a batch of clients has computed them.
ROOM = 64 * 2**20


def distance(vector: np.ndarray, start: np.ndarray | None = None) -> float:
    """Return ‖vector − start‖ (‖vector‖ without a start) of flat vectors, without a copy of the whole."""
    total = _squares(vector, start, np.float32) if vector.dtype == np.float32 else math.inf
    # What is too large for float32 is rare, and never usual.
    return math.sqrt(total if math.isfinite(total) else _squares(vector, start, np.float64))


def _squares(vector: np.ndarray, start: np.ndarray | None, dtype: type[np.floating[Any]]) -> float:
    size = BLOCKS * BLOCK
    room, total = np.empty(min(vector.size, size), dtype), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for begin in range(0, vector.size, size):
            values = vector[begin : begin + size]
            difference = room[: len(values)]
            if start is None:
                difference[...] = values
            else:
                np.subtract(values, start[begin : begin + size], out=difference, dtype=dtype, casting="unsafe")
            whole = len(values) - len(values) % BLOCK
            blocks, rest = difference[:whole].reshape(-1, BLOCK), difference[whole:]
            for square in np.matmul(blocks[:, None, :], blocks[:, :, None]).ravel().tolist():
                total += square
            total += float(np.dot(rest, rest))
    return total


def fresh_norm(layout: Layout, selected: Callable[[str], bool]) -> float:
    """Return the norm of the selected arrays if their values had a standard deviation of ½ / √fan-in."""
    shapes = [shape for name, shape in layout.entries if selected(name)]
    return math.sqrt(sum(shape[0] if len(shape) > 1 else math.prod(shape) for shape in shapes)) / 2


def length(vector: np.ndarray, places: Sequence[slice], start: np.ndarray | None = None) -> float:
    """Return the norm of some parts of a vector together, or of their difference from those of another."""
    squares = [distance(vector[place], None if start is None else start[place]) ** 2 for place in places]
    return float(sum(squares) ** 0.5)


@dataclass(frozen=True)
class NormCheck:
    """A limit of the norms of a client's update of the shared vector.

    ``places`` are where parameters and running statistics lie, ``variances`` those that may not be negative.
    ``factor`` is ``update-norm-limit``, which errors name.
    """

    factor: float
    places: Mapping[str, Sequence[slice]]
    variances: Mapping[str, slice]
    limits: Mapping[str, float]

    def __call__(self, vector: np.ndarray, start: np.ndarray) -> dict[str, float]:
        """Return the norms of an update by name; raise ``LayoutError`` if one is too long, or a variance negative."""
        negative = [name for name, place in self.variances.items() if (vector[place] < 0).any()]
        return self._accepted(negative, {name: length(vector, places, start) for name, places in self.places.items()})

    def of_rows(self, rows: Sequence[Tensor], start: np.ndarray) -> list[dict[str, float] | LayoutError]:
        """Return the result of a call, or its error, for each vector, on their device; last digits may differ."""
        import torch

        there = torch.tensor(start, device=rows[0].device)
        several = max(1, ROOM // max(1, start.size * 8))
        results: list[dict[str, float] | LayoutError] = []
        for first in range(0, len(rows), several):
            vectors = torch.stack(list(rows[first : first + several]))
            negative = {name: (vectors[:, place] < 0).any(1).tolist() for name, place in self.variances.items()}
            norms = {}
            for name, places in self.places.items():
                squares = sum((vectors[:, part] - there[part]).double().square_().sum(1) for part in places)
                norms[name] = cast("Tensor", squares).sqrt().tolist()
            for row in range(len(vectors)):
                try:
                    of_row = {name: norm[row] for name, norm in norms.items()}
                    results.append(self._accepted([name for name, is_so in negative.items() if is_so[row]], of_row))
                except LayoutError as error:
                    results.append(error)
        return results

    def _accepted(self, negative: Sequence[str], norms: dict[str, float]) -> dict[str, float]:
        if negative:
            raise LayoutError(f"its array {negative[0]!r} has negative variances")
        for name, norm in norms.items():
            require_norm(name, norm, self.limits[name], self.factor)
        return norms


def require_norm(name: str, norm: float, limit: float, factor: float) -> None:
    """Raise ``LayoutError`` if an array that a client sent is longer than ``limit``, or not finite."""
    if not norm <= limit:
        what = "its update of the shared arrays has" if name == PARAMETERS else f"its array {name!r} has"
        why = f"update-norm-limit = {factor:g}" if limit < LARGEST else "whatever update-norm-limit is"
        kind = TooLong if name == PARAMETERS else LayoutError
        raise kind(f"{what} the norm {norm:.4g}, at most {limit:.4g} is accepted ({why})")
