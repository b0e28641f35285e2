"""NumPy files of one array, read within bounds."""

from __future__ import annotations

import math
import os
import tokenize
from pathlib import Path
from typing import IO

import numpy as np

from .errors import DamagedFile, words_of
from .files import open_regular

# What NumPy raises for a file that is damaged.
NPY_ERRORS = (
    ValueError, EOFError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError, tokenize.TokenError
)  # fmt: skip


def read_npy(path: Path) -> np.ndarray:
    """Return the array of a NumPy file; ``DamagedFile`` unless it has the size that its header says, and no objects."""
    with open_regular(path) as file:
        try:
            shape, kind = npy_header(file)
            if kind.hasobject:
                raise DamagedFile(path, "it holds Python objects")
            if file.tell() + math.prod(shape) * kind.itemsize != os.fstat(file.fileno()).st_size:
                raise DamagedFile(path, "it has another size than its header says")
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
        except NPY_ERRORS as error:
            raise DamagedFile(path, words_of(error)) from error


def npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Read the header of a NumPy file: shape and type of its array; raises one of ``NPY_ERRORS``."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(file)
    return shape, kind
