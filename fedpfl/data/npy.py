"""Reads NumPy's files: a header is believed only where the file is as long as it says."""

from __future__ import annotations

import math
import os
import struct
import tokenize
import zipfile
import zlib
from lzma import LZMAError
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import DamagedFile, words_of
from ..core.files import open_regular

# What zipfile and NumPy raise for a file that is damaged, encrypted or compressed in a way that they do not know.
UNREADABLE = (
    ValueError, OSError, EOFError, KeyError, MemoryError, RuntimeError, SyntaxError, TypeError, OverflowError,
    struct.error, zlib.error, LZMAError, zipfile.BadZipFile, tokenize.TokenError,
)  # fmt: skip


def header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read an array's shape, order (whether Fortran's) and type; raise ``ValueError`` if there is no header."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(file)


def read_npy(path: Path) -> np.ndarray:
    """Return the array of a ``.npy`` file; ``DamagedFile`` if it is none, holds objects or has another length."""
    try:
        with open_regular(path) as file:
            shape, _, kind = header(file)
            expected = file.tell() + math.prod(shape) * kind.itemsize
            if kind.hasobject or expected != os.fstat(file.fileno()).st_size:
                raise ValueError("it holds Python objects" if kind.hasobject else "its header gives another size")
            file.seek(0)
            values: np.ndarray = np.load(file, allow_pickle=False)
            return values
    except OSError:
        raise
    except UNREADABLE as error:
        raise DamagedFile(path, words_of(error) or type(error).__name__) from error
