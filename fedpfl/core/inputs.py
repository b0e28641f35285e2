"""Samples of several inputs, each of which lies in one row of float32: what is where in it.

All that carries, divides, batches and caches samples sees rows of numbers. They are packed where data are read, and
unpacked where a model of the user's is called.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence, Tuple

import numpy as np

from .errors import LayoutError, printable

if TYPE_CHECKING:
    import torch

MAX_INPUTS, MAX_DIMENSIONS = 32, 6
# Types in which inputs are packed: floats as the first, whole numbers as the smallest that holds all of their type.
FLOAT, SMALL, WHOLE, TRUTH = "float32", "int16", "int64", "bool"
# A float32 is exact for whole numbers of 24 bits, so that three hold 64 bits.
BITS, PIECES = 22, 3
NAME = r"[A-Za-z_][A-Za-z0-9_]{0,39}"
_SIZES = rf"[1-9][0-9]{{0,7}}(?:x[1-9][0-9]{{0,7}}){{0,{MAX_DIMENSIONS - 1}}}"
_PART = re.compile(rf"(?:({NAME}): )?({FLOAT}|{SMALL}|{WHOLE}|{TRUTH})(?: ({_SIZES}))?")
MAX_TEXT = 3000


class Input(NamedTuple):
    """One input: its name (its place, if inputs have no names), its type, and its shape in one sample."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """The count of its numbers in a row."""
        return prod(self.shape) * (PIECES if self.kind == WHOLE else 1)


class Inputs(Tuple[int, ...]):
    """The shape of a row, (numbers,), that knows the inputs which are packed in it.

    ``named``: they are arguments by name, in the order of their names; otherwise by place. As text it is
    ``{image: float32 3x32x32, meta: int64 8}``, or ``(float32 3x32x32, int64 8)``.
    """

    parts: tuple[Input, ...]
    named: bool

    def __new__(cls, parts: Sequence[Input], named: bool) -> Inputs:
        """Lay inputs behind each other."""
        made = super().__new__(cls, (sum(part.width for part in parts),))
        made.parts, made.named = tuple(parts), named
        return made

    def __getnewargs__(self) -> Any:
        return self.parts, self.named

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Inputs) and (self.parts, self.named) == (other.parts, other.named)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((self.parts, self.named))

    def __repr__(self) -> str:
        each = []
        for part in self.parts:
            sizes = f" {'x'.join(map(str, part.shape))}" if part.shape else ""
            each.append(f"{part.name}: {part.kind}{sizes}" if self.named else f"{part.kind}{sizes}")
        text = ", ".join(each)
        return f"{{{text}}}" if self.named else f"({text})"

    __str__ = __repr__

    def together(self, values: Sequence[Any]) -> Any:
        """Return a value of each input as users have inputs: a dict by name, or a tuple."""
        return dict(zip([part.name for part in self.parts], values)) if self.named else tuple(values)

    @property
    def shapes(self) -> Any:
        """The shape of each input."""
        return self.together([part.shape for part in self.parts])

    def packed(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """Return rows of samples, of an array n × … for each input, of its type."""
        rows = []
        for part, column in zip(self.parts, columns):
            flat = column.reshape(len(column), prod(part.shape))
            if part.kind == WHOLE:
                low = (1 << BITS) - 1
                rows += [flat >> 2 * BITS, flat >> BITS & low, flat & low]
            else:
                rows.append(flat)
        return np.concatenate([piece.astype(np.float32) for piece in rows], axis=1)

    def floats(self, rows: Any) -> list[tuple[Input, Any]]:
        """Return the inputs of floats and, for each, its part of the rows, n × features × …, which changes them."""
        pairs, column = [], 0
        for part in self.parts:
            if part.kind == FLOAT:
                pairs.append((part, rows[:, column : column + part.width].reshape(len(rows), *(part.shape or (1,)))))
            column += part.width
        return pairs

    def unpacked(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Return the inputs of rows n × numbers: float32, bool, and int64 of whole numbers of any size."""
        import torch

        tensors, column = [], 0
        for part in self.parts:
            values = rows[:, column : column + part.width]
            column += part.width
            if part.kind == WHOLE:
                high, middle, low = values.to(torch.int64).chunk(PIECES, 1)
                values = (high * 2**BITS + middle) * 2**BITS + low
            elif part.kind != FLOAT:
                values = values.to(torch.bool if part.kind == TRUTH else torch.int64)
            tensors.append(values.reshape(-1, *part.shape))
        return tensors

    def arrays(self, rows: np.ndarray, prefix: str = "") -> dict[str, np.ndarray]:
        """Return the inputs of rows by name or place, behind a prefix, in the types that they were packed in."""
        import torch

        each = zip(self.parts, self.unpacked(torch.from_numpy(rows)))
        return {prefix + part.name: values.numpy().astype(part.kind) for part, values in each}

    def example(self, count: int) -> torch.Tensor:
        """Return made-up samples: floats that differ, ones (tokens, masks) and true."""
        floats = prod((count, self[0]))
        columns = []
        for part in self.parts:
            size = count, *part.shape
            ramp = np.arange(prod(size), dtype=np.float32).reshape(size) / max(1, floats - 1) * 2 - 1
            columns.append(ramp if part.kind == FLOAT else np.ones(size, part.kind))
        import torch

        return torch.from_numpy(self.packed(columns))


def inputs_of(text: str) -> Inputs:
    """Return the inputs that a text describes, or raise ``LayoutError``."""
    body, named = text[1:-1], text[:1] == "{"
    parts: list[Input] = []
    if len(text) <= MAX_TEXT and text[:1] + text[-1:] in ("{}", "()"):
        for place, each in enumerate(body.split(", ")):
            match = _PART.fullmatch(each)
            if match is None or (match[1] is not None) != named:
                parts = []
                break
            sizes = () if match[3] is None else tuple(map(int, match[3].split("x")))
            parts.append(Input(match[1] or str(place), match[2], sizes))
    names = [part.name for part in parts]
    if not 1 <= len(parts) <= MAX_INPUTS or (named and names != sorted(set(names))):
        raise LayoutError(f"input-shape = {printable(text, 80)}: is not of the form that this version uses")
    return Inputs(parts, named)
