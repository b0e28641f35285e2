"""The layout of arrays that travel: one flat vector, and the names of its arrays.

Flower pays per tensor (measured: 3 to 40 times more for 122 tensors than for one of the same size), so all shared
arrays of a model travel as a single 1-D array. The layout travels with it as text, so that a receiver with another
model or another version notices before it loads a number into the wrong place.

Of arrays that are sparse only the entries that are not 0 travel, in their places in the vector, and one bit for each
entry that marks whether it is there. A receiver knows the number of bits from its own layout, and so how much it will
allocate; and it costs at most 1/32 more than a dense vector, where an index for each entry would double it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Callable, Iterable, Mapping, Sequence, Tuple

import numpy as np

from .errors import LayoutError

DTYPES = ("float32", "float16")

# A layout is text from the network: enough for a thousand arrays, too small to hurt a Jetson Nano.
MAX_LAYOUT_BYTES = 1_000_000

# BatchNorm's buffers: averages over samples, which no gradient moves. Where only names are known, these are buffers.
RUNNING_STATISTICS = ("running_mean", "running_var")
# Behind the name of an array of which only the shared channels travel.
PART = "[shared]"

Shape = Tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the arrays in a flat vector, in their order.

    Examples
    --------
    Mark the values of a head in the shared vector, as a rule does with its ``self.layout``:

    >>> import fedpfl
    >>> from torch import nn
    >>> layout = fedpfl.Sharing(fedpfl.BaseHeadModel(nn.Linear(2, 2, bias=False), nn.Linear(2, 1)), bool).layout
    >>> layout.names, layout.size
    (['base.weight', 'head.weight', 'head.bias'], 7)
    >>> layout.mask(lambda name: name.startswith("head."))
    array([False, False, False, False,  True,  True,  True])
    """

    entries: tuple[tuple[str, Shape], ...]  # one (name, shape) an array; names are unique
    # By name: the magnitude from which entries of a sparse array travel; smaller ones arrive as 0. It is not sent.
    sparse: Mapping[str, float] = field(default_factory=dict, compare=False)
    frozen: str = ""  # hash of the model's frozen arrays, which do not travel; empty if it has none
    # Names of the arrays that are buffers, not parameters; None where only names are known. They are not sent.
    buffers: frozenset[str] | None = field(default=None, compare=False)

    @property
    def names(self) -> list[str]:
        """Names of the arrays, in order."""
        return [name for name, _ in self.entries]

    @cached_property
    def size(self) -> int:
        """Number of values in the flat vector."""
        return sum(_count(shape) for _, shape in self.entries)

    def slices(self) -> Mapping[str, slice]:
        """Return the place of each array in the flat vector."""
        return self._slices

    def mask(self, selected: Callable[[str], bool]) -> np.ndarray:
        """Mark the values of the arrays that ``selected`` takes by their names: bool, shape (size,)."""
        mask = np.zeros(self.size, bool)
        for name, place in self.slices().items():
            mask[place] = selected(name)
        return mask

    def is_parameter(self, name: str) -> bool:
        """Tell whether an array is a trained parameter: a buffer (a running variance, say) takes no server's step."""
        whole = name.split(PART)[0]
        return whole not in self.buffers if self.buffers is not None else not whole.endswith(RUNNING_STATISTICS)

    @cached_property
    def _slices(self) -> dict[str, slice]:
        out, start = {}, 0
        for name, shape in self.entries:
            out[name] = slice(start, start + _count(shape))
            start += _count(shape)
        return out

    def flatten(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Lay float arrays end to end: float32, shape (size,). A missing or misshapen one raises ``LayoutError``."""
        flat = np.empty(self.size, np.float32)
        for (name, shape), place in zip(self.entries, self.slices().values()):
            if name not in arrays:
                raise LayoutError(f"array {name!r} is missing")
            if arrays[name].shape != shape:
                raise LayoutError(f"array {name!r} has shape {arrays[name].shape}, expected {shape}")
            flat[place] = arrays[name].reshape(-1)
        return flat

    def unflatten(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Cut a flat vector into its arrays (views of it); another length raises ``LayoutError``."""
        self._require_size(flat)
        return {name: flat[place].reshape(shape) for (name, shape), place in zip(self.entries, self.slices().values())}

    def _require_size(self, flat: np.ndarray) -> None:
        if flat.shape != (self.size,):
            raise LayoutError(f"a vector of shape {flat.shape} arrived, expected ({self.size},)")

    def pack(self, flat: np.ndarray, dtype: str) -> dict[str, np.ndarray]:
        """Return a flat vector as the arrays in which it travels.

        ``shared`` has the entries that travel; if arrays are sparse, ``shared-kept`` has the packed bits. A value too
        large for ``dtype`` raises ``LayoutError``.
        """
        if not self.sparse:
            return {"shared": encode(flat, dtype)}
        travels = np.ones(self.size, bool)
        places = self.slices()
        for name, least in self.sparse.items():
            entries = flat[places[name]]
            travels[places[name]] = (entries != 0) & (np.abs(entries) >= least)
        return {
            "shared": encode(flat[travels], dtype),
            "shared-kept": np.packbits(travels[self.mask(self.sparse.__contains__)]),
        }

    def unpack(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the flat vector that :meth:`pack` made into ``arrays``.

        They come from the network: one that is missing, or not of the kind or size that it must be, raises
        ``LayoutError``.
        """
        names = ("shared", "shared-kept") if self.sparse else ("shared",)
        missing = [name for name in names if name not in arrays]
        if missing:
            raise LayoutError(f"a message without the array {missing[0]!r} arrived")
        values = decode(arrays["shared"])
        if not self.sparse:
            self._require_size(values)
            return values
        travels, sparse = np.ones(self.size, bool), self.mask(self.sparse.__contains__)
        count, bits = int(sparse.sum()), arrays["shared-kept"]
        if bits.dtype != np.uint8 or bits.shape != ((count + 7) // 8,):
            raise LayoutError(f"{bits.dtype} {bits.shape} arrived, expected one bit for each of {count} sparse entries")
        travels[sparse] = np.unpackbits(bits, count=count)
        if values.shape != (travels.sum(),):
            raise LayoutError(f"a vector of shape {values.shape} arrived, but its bits mark {travels.sum()} entries")
        flat = np.zeros(self.size, np.float32)
        flat[travels] = values
        return flat

    def require(self, other: Layout) -> None:
        """Raise :class:`LayoutError` naming the first array in which ``other``, a received layout, differs."""
        for mine, theirs in zip(self.entries, other.entries):
            if mine != theirs:
                raise LayoutError(
                    f"array {theirs[0]!r} of shape {theirs[1]} arrived, expected {mine[0]!r} of shape {mine[1]}"
                )
        if len(self.entries) != len(other.entries):
            longer, word = (other, "unexpected") if len(other.entries) > len(self.entries) else (self, "missing")
            name, shape = longer.entries[min(len(self.entries), len(other.entries))]
            raise LayoutError(f"array {name!r} of shape {shape} is {word}")
        if self.frozen != other.frozen:
            expected, arrived = (f"the hash {digest}" if digest else "none" for digest in (self.frozen, other.frozen))
            raise LayoutError(
                f"the frozen arrays differ: {arrived} arrived, expected {expected}; are initial-weights (or the "
                "model's folder) and the versions of the model's packages the same everywhere?"
            )

    def to_text(self) -> str:
        """Write the layout as compact JSON."""
        return self._text

    @cached_property
    def _text(self) -> str:
        rows = [[name, *shape] for name, shape in self.entries]
        content = {"frozen": self.frozen, "arrays": rows} if self.frozen else rows
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Layout:
        """Read a layout that came from the network; a text that is too long or is no layout raises ``LayoutError``."""
        if len(text) > MAX_LAYOUT_BYTES:
            raise LayoutError(f"a layout of {len(text)} characters arrived, at most {MAX_LAYOUT_BYTES} are allowed")
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LayoutError(f"a layout that is not JSON arrived: {error}") from error
        frozen: object = ""
        if isinstance(rows, dict):
            frozen, rows = rows.get("frozen"), rows.get("arrays")
        if not isinstance(frozen, str) or not isinstance(rows, list) or not all(_is_row(row) for row in rows):
            raise LayoutError("a layout that is not a list of [name, sizes…] arrived")
        return cls(tuple((row[0], tuple(row[1:])) for row in rows), frozen=frozen)

    @classmethod
    def of(
        cls, shapes: Sequence[tuple[str, Sequence[int]]], sparse: Mapping[str, float] | None = None, frozen: str = "",
        buffers: Iterable[str] | None = None,
    ) -> Layout:  # fmt: skip
        """Build a layout from (name, shape) pairs."""
        entries = tuple((name, tuple(int(n) for n in shape)) for name, shape in shapes)
        return cls(entries, sparse or {}, frozen, None if buffers is None else frozenset(buffers))


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or not row or not isinstance(row[0], str):
        return False
    return all(type(n) is int and 0 <= n < 2**40 for n in row[1:])


def _count(shape: Shape) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def encode(flat: np.ndarray, dtype: str) -> np.ndarray:
    """Return the vector in the type in which it travels; a value that float16 cannot hold raises ``LayoutError``."""
    if flat.dtype == np.dtype(dtype):
        return flat
    with np.errstate(over="ignore"):
        sent = np.asarray(flat, dtype=np.dtype(dtype))
    if dtype != "float32" and not np.isfinite(sent).all() and np.isfinite(flat).all():
        raise LayoutError(f"wire-dtype = {dtype!r}: a value of {np.abs(flat).max():g} does not fit")
    return sent


def rounded(flat: np.ndarray, dtype: str) -> np.ndarray:
    """Return the vector as its receiver reads it, float32: ``dtype`` may have rounded it on the way."""
    return decode(encode(flat, dtype))


@lru_cache(maxsize=64)
def _name(dtype: Any) -> str:
    """Return a number type's name, which NumPy takes longer to make than a small vector to read."""
    return str(dtype.name)


def decode(received: np.ndarray) -> np.ndarray:
    """Return a received vector as float32; one that is not of floats raises ``LayoutError``."""
    if received.ndim != 1 or _name(received.dtype) not in DTYPES:
        raise LayoutError(f"a {received.ndim}-dimensional {received.dtype} array arrived, expected a float vector")
    return np.ascontiguousarray(received, dtype=np.float32)
