"""Arrays in pickles of other programs, read without running any of their code.

The opcodes of a pickle are run with stand-ins for what NumPy's arrays are made by; every other name is refused. A
stand-in only keeps what it is given, so that no size in the file is believed before the bytes of the array are there.
A pickle can mention one object many times: each mention counts, and all bytes together are bounded by the file's size.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ...core.errors import DataError, words_of

MAX_DEPTH = 8
# Types of numbers, in little or big endian, that arrays may have.
_TYPES = frozenset(("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"))
MAX_BYTES, MAX_VALUES = 2**31, 10_000_000
# What a small file's texts and arrays may come to, with each mention of one.
FEW_BYTES = 2**26


class _Allowance:
    """How many values and bytes may still be made of a file."""

    def __init__(self, size: int) -> None:
        self.values, self.bytes = MAX_VALUES, max(size, FEW_BYTES)

    def take(self, size: int) -> None:
        self.values -= 1
        self.bytes -= size
        if self.values < 0:
            raise ValueError("has too many values")
        if self.bytes < 0:
            raise ValueError("mentions texts or arrays again, which would be larger than the file")


class _Type:
    """Stands for ``numpy.dtype(text, …)``."""

    def __init__(self, text: Any = "", *_: Any) -> None:
        self.text, self.order = text, "<"

    def __setstate__(self, state: Any) -> None:
        self.order = state[1] if isinstance(state, tuple) and len(state) > 1 else ""


class _Array:
    """Stands for an array, which :meth:`made` makes of its state."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def made(self) -> np.ndarray:
        """Return the array; ``ValueError`` for one of other objects, or of more or fewer bytes than it says."""
        _, shape, kind, fortran, content = self.state
        if not isinstance(kind, _Type) or kind.text not in _TYPES or kind.order not in ("<", ">", "|", "="):
            raise ValueError("holds an array of something else than numbers")
        dtype = np.dtype(f"{'>' if kind.order == '>' else '<'}{kind.text}")
        if not isinstance(content, bytes) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("holds an array without its bytes")
        count = 1
        for n in shape:
            count *= n
        if count * dtype.itemsize != len(content):
            raise ValueError(f"holds an array of {len(content)} bytes that says it has {count} numbers")
        values = np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")
        return values.astype(dtype.newbyteorder("="))


def _from_buffer(content: Any, kind: Any, shape: Any, order: Any) -> _Array:
    """Stand for ``_frombuffer``, by which newer pickles make arrays."""
    array = _Array()
    array.state = 1, shape, kind, order == "F", content
    return array


_REFUSED = frozenset((
    pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.PERSID, pickle.BINPERSID, pickle.EXT1, pickle.EXT2,
    pickle.EXT4, pickle.NEXT_BUFFER,
))  # fmt: skip
_NAMES: dict[tuple[str, str], Any] = {
    **{(module, "_reconstruct"): _Array for module in ("numpy.core.multiarray", "numpy._core.multiarray")},
    **{(module, "_frombuffer"): _from_buffer for module in ("numpy.core.numeric", "numpy._core.numeric")},
    ("numpy", "ndarray"): None, ("numpy", "dtype"): _Type,
}  # fmt: skip


class _Reader(pickle._Unpickler):  # type: ignore[name-defined,misc]
    """Python's own reader, as the one in C believes numbers of places in its memory. No opcode makes other objects."""

    def __init__(self, content: bytes, left: _Allowance) -> None:
        super().__init__(io.BytesIO(content))
        self.left = left

    def _load_bytes(self: Any) -> None:
        size = int.from_bytes(self.read(8), "little")
        content = self.read(size)
        if len(content) != size:
            raise pickle.UnpicklingError("is truncated")
        self.append(content)

    dispatch: ClassVar[dict[int, Any]] = {
        **{code: load for code, load in pickle._Unpickler.dispatch.items() if bytes([code]) not in _REFUSED},  # type: ignore[attr-defined]
        pickle.BYTEARRAY8[0]: _load_bytes,
    }

    def _encoded(self, text: Any, encoding: Any = "") -> bytes:
        """Stand for ``_codecs.encode``, by which old pickles write bytes."""
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError("encodes something else than bytes")
        self.left.take(len(text))
        return text.encode("latin1")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self._encoded
        try:
            return _NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"names {module}.{name}"[:100]) from None


def read_restricted(content: bytes, path: Path) -> Any:
    """Return dicts, lists, numbers, texts and arrays of a pickle; ``DataError`` for one that has anything else."""
    if len(content) > MAX_BYTES:
        raise DataError(f"{path}: has more than {MAX_BYTES >> 30} GiB")
    try:
        return _plain(_Reader(content, _Allowance(len(content))).load(), 0, _Allowance(len(content)))
    except Exception as error:  # of any kind: what damaged opcodes do to stand-ins
        reason = words_of(error) or type(error).__name__
        raise DataError(f"{path}: is not read: {reason}; only arrays of numbers are, and no code is run") from error


def _plain(thing: Any, depth: int, left: _Allowance) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError("has too many values in one another")
    if isinstance(thing, _Array):
        _, shape, kind, _, content = thing.state
        if isinstance(kind, _Type) and kind.text == "O8" and shape == () and isinstance(content, list):
            (inner,) = content  # an array around one object
            return _plain(inner, depth + 1, left)
        left.take(len(content))
        return thing.made()
    left.take(len(thing) if isinstance(thing, (str, bytes)) else 0)
    if isinstance(thing, dict):
        return {key: _plain(value, depth + 1, left) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [_plain(value, depth + 1, left) for value in thing]
    if thing is None or isinstance(thing, (bool, int, float, str, bytes)):
        return thing
    raise ValueError(f"holds a {type(thing).__name__}")
