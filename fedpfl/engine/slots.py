"""Memory in which a worker of the simulation leaves its replies, and in which the server's process reads them.

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

from .headers import ArrayHeader

# Replies of a worker that wait for their turn, or that a rule keeps; those beyond go through the pipe.
MAX_SLOTS = 8
# Memory for all slots of a worker; replies of which it holds none go through the pipe, too.
MAX_BYTES = 64 * 2**20
# Arrays begin at multiples of a cache line.
LINE = 64


class Slot(NamedTuple):
    """A place for one reply: its first byte, and how many it has."""

    at: int
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
        """Make slots that hold such arrays, if all that there are now are free."""
        size = -(-_places(listed)[1] // mmap.PAGESIZE) * mmap.PAGESIZE
        count = min(MAX_SLOTS, MAX_BYTES // max(1, size))
        if self._file < 0 or size <= self._size or not count or len(self._free) < self._count:
            return
        os.ftruncate(self._file, count * size)
        self._memory, self._count, self._size = mmap.mmap(self._file, count * size), count, size
        self._free = [Slot(number * size, size) for number in range(count)]

    def arrays(self, slot: Slot, listed: Sequence[ArrayHeader]) -> dict[str, np.ndarray]:
        """Return the arrays in a slot, by name; it is lent again when they, and all views of them, are gone."""
        assert self._memory is not None  # a slot was lent
        memory = (ctypes.c_char * slot.size).from_buffer(self._memory, slot.at)
        weakref.finalize(memory, self._free.append, slot).atexit = False
        places, _ = _places(listed)
        return {
            item.name: np.ndarray(item.shape, np.dtype(item.dtype), memoryview(memory), at)
            for item, at in zip(listed, places, strict=True)
        }

    def close(self) -> None:
        """Close the file; arrays that are still in use keep their memory."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    # -- the worker's end --------------------------------------------------------------------------------------------

    def room(self, slot: Slot | None, count: int) -> np.ndarray | None:
        """Return the memory of a slot for the only array of an answer, float64; None if there is not enough."""
        return np.ndarray(count, np.float64, self._mapped(slot), slot.at) if slot and count * 8 <= slot.size else None

    def _mapped(self, slot: Slot) -> mmap.mmap:
        if self._memory is None or len(self._memory) < slot.at + slot.size:
            self._memory = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return self._memory

    def write(self, slot: Slot | None, arrays: Mapping[str, np.ndarray], listed: Sequence[ArrayHeader]) -> bool:
        """Write a reply's arrays into a slot; return whether it could take them."""
        places, size = _places(listed)
        if slot is None or not size or size > slot.size:
            return False
        for array, at in zip(arrays.values(), places, strict=True):
            target = np.ndarray(array.shape, array.dtype, self._mapped(slot), at + slot.at)
            if not np.may_share_memory(target, array):  # else it was made in `room`
                np.copyto(target, array)
        return True


def _places(listed: Sequence[ArrayHeader]) -> tuple[list[int], int]:
    """Return where each array begins in a slot, and the bytes that all need."""
    places, at = [], 0
    for item in listed:
        places.append(at)
        count = int(np.prod(item.shape)) * np.dtype(item.dtype).itemsize
        at += -(-count // LINE) * LINE
    return places, at
