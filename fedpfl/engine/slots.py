"""Arrays between the simulation's processes: how they are described, and memory in which a worker leaves its replies.

A model of a megabyte that goes through a pipe is copied twice, into the system's memory and out of it, which takes as
long as several steps of a light client's training. Here it is written once and not copied again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

# Replies of a worker that wait for their turn, or that a rule keeps; those beyond go through the pipe.
MAX_SLOTS = 8
# Memory for all slots of a worker; replies of which it holds none go through the pipe, too.
MAX_BYTES = 64 * 2**20
# Arrays begin at multiples of a cache line.
LINE = 64


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
    """Return the text before a client's array names in a message; empty for a message of one client."""
    return f"{client} " if clients > 1 else ""


def arrays_of(client: int, arrays: Mapping[str, np.ndarray], clients: int) -> dict[str, np.ndarray]:
    """Return one client's arrays from a message of several clients, without the prefix."""
    first = prefix(client, clients)
    return {name[len(first) :]: array for name, array in arrays.items() if name.startswith(first)}


class Slot(NamedTuple):
    """A place for one reply: its first byte, and how many it has."""

    begin: int
    size: int


class Slots:
    """The slots of one worker, made before that is forked, so that both ends have the same file.

    Where the system has none, or the worker is not forked, there never is a slot to lend.
    """

    def __init__(self, usable: bool = True) -> None:
        self._file = os.memfd_create("fedpfl-replies") if usable and self.supported() else -1
        self._memory: mmap.mmap | None = None
        self._free: list[Slot] = []
        self._count = self._size = 0

    @staticmethod
    def supported() -> bool:
        """Return whether this system has memory without a name, which no crash can leave behind."""
        return sys.platform == "linux" and hasattr(os, "memfd_create")

    # -- the server's end --------------------------------------------------------------------------------------------

    def lend(self) -> Slot | None:
        """Return a slot that is free, if there is one."""
        return self._free.pop() if self._free else None

    def give_back(self, slot: Slot | None) -> None:
        """Take back a slot into which nothing was written."""
        if slot is not None:
            self._free.append(slot)

    def fit(self, listed: Sequence[ArrayHeader]) -> None:
        """Make slots that hold such arrays, if all that there are now are free and the system has the memory."""
        size = -(-_places(listed)[1] // mmap.PAGESIZE) * mmap.PAGESIZE
        count = min(MAX_SLOTS, MAX_BYTES // max(1, size))
        if self._file < 0 or size <= self._size or not count or len(self._free) < self._count:
            return
        try:
            os.ftruncate(self._file, count * size)
        except OSError:  # as below `ulimit -f`: replies go through the pipe
            return
        self._memory, self._count, self._size = mmap.mmap(self._file, count * size), count, size
        self._free = [Slot(number * size, size) for number in range(count)]

    def arrays(self, slot: Slot, listed: Sequence[ArrayHeader]) -> dict[str, np.ndarray]:
        """Return the arrays in a slot, by name; it is lent again when they, and all views of them, are gone."""
        assert self._memory is not None  # a slot was lent
        memory = (ctypes.c_char * slot.size).from_buffer(self._memory, slot.begin)
        weakref.finalize(memory, self._free.append, slot).atexit = False
        places, _ = _places(listed)
        return {
            item.name: np.ndarray(item.shape, np.dtype(item.dtype), memoryview(memory), place)
            for item, place in zip(listed, places, strict=True)
        }

    def close(self) -> None:
        """Close the file; arrays that are still in use keep their memory."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    # -- the worker's end --------------------------------------------------------------------------------------------

    def writer(self, slot: Slot | None) -> Writer:
        """Return the writer of an answer's arrays into a slot."""
        if slot is None:
            return Writer(None, Slot(0, 0))
        if self._memory is None or len(self._memory) < slot.begin + slot.size:
            self._memory = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return Writer(self._memory, slot)


class Writer:
    """Writes arrays into a slot, one behind the other."""

    def __init__(self, memory: mmap.mmap | None, slot: Slot) -> None:
        self._memory, self._slot, self._end = memory, slot, 0

    @property
    def holds_all(self) -> bool:
        """Whether the slot has all arrays, and there are some."""
        return 0 < self._end <= self._slot.size

    def put(self, array: np.ndarray, changes: bool = False) -> np.ndarray:
        """Return a copy of an array in the slot; without room the array itself, or a copy of one that still changes."""
        begin = self._end
        self._end += _space(array.nbytes)
        if self._end > self._slot.size:
            return array.copy() if changes else array
        copy = np.ndarray(array.shape, array.dtype, self._memory, begin + self._slot.begin)
        np.copyto(copy, array)
        return copy


def _places(listed: Sequence[ArrayHeader]) -> tuple[list[int], int]:
    """Return where each array begins in a slot, and the bytes that all need."""
    places, end = [], 0
    for item in listed:
        places.append(end)
        end += _space(int(np.prod(item.shape)) * np.dtype(item.dtype).itemsize)
    return places, end


def _space(size: int) -> int:
    """Return the bytes that an array of so many takes in a slot."""
    return -(-size // LINE) * LINE
