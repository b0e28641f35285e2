"""The state of files, which tells whether they have changed since they were read."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Iterable

from ..core.files import files_below, stamp_of


def state_of(places: Iterable[str]) -> int:
    """Return a number of the names, sizes and times of files and of all files in folders."""
    state = 0
    for place in places:
        root = Path(place).expanduser()
        for path in files_below(root) if root.is_dir() else [root]:
            try:
                stamp = stamp_of(path)
            except OSError:  # what reads it tells
                continue
            state = zlib.crc32(f"{path}/{stamp}".encode(errors="replace"), state)
    return state
