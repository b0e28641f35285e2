"""A run's files, read as seldom as can be: the end of its metrics from the end, and what is read whole is kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from ..core.checksummed_files import from_json_line
from ..core.errors import DamagedFile
from ..core.files import open_regular
from .history import History

# So many bytes are read first, and twice as many where a line is longer than what was read, up to MAX_LINE.
TAIL, MAX_LINE = 2**16, 2**25
# Of files, which take some six times as much memory when they are read.
KEPT_BYTES = 2**26
# Nanoseconds within which a file may change twice and look the same; it is not kept.
FRESH = 10**9


class Version(NamedTuple):
    """The version of a file: it differs from that of a file that replaces or extends it."""

    inode: int
    changed: int
    size: int

    @classmethod
    def of(cls, path: Path) -> Version:
        """Return the version of a file, :data:`ABSENT` without one. No clock is read: a file server has its own."""
        try:
            status = path.stat()
        except OSError:
            return ABSENT
        return cls(status.st_ino, status.st_mtime_ns, status.st_size)


ABSENT = Version(0, 0, 0)
# What was read last is at the end.
_kept: dict[Path, tuple[Version, Any]] = {}
_T = TypeVar("_T")


def kept(path: Path, read: Callable[[Path], _T]) -> _T:
    """Return the content of a file, which nobody changes, read once for each of its versions while there is room."""
    version, (last_version, content) = Version.of(path), _kept.pop(path, (None, None))
    if time.time_ns() - version.changed < FRESH:
        return read(path)
    new = last_version != version
    _kept[path] = version, content = version, read(path) if new else content
    while new and len(_kept) > 1 and sum(other.size for other, _ in [*_kept.values()]) > KEPT_BYTES:
        _kept.pop(next(iter(_kept)), None)
    return cast(_T, content)


def last_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, if it is there, the last first; one that a crash cut short does not count."""
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        position, beginning, cut = file.seek(0, os.SEEK_END), b"", True
        while position > 0:
            if len(beginning) > MAX_LINE:
                raise DamagedFile(path, f"a line has more than {MAX_LINE} bytes")
            size = min(position, max(TAIL, len(beginning)))
            position = file.seek(position - size)
            beginning, *lines = (file.read(size) + beginning).split(b"\n")
            if cut and lines:
                lines.pop()
                cut = False
            yield from reversed(lines)
        if not cut:
            yield beginning


def latest(path: Path) -> tuple[int, float | None]:
    """Return the number of recorded rounds, and the personalised accuracy of the last test."""
    rounds = 0
    for line in last_lines(path):
        if rounds and b'"personalised": ' not in line:
            continue
        history = History([from_json_line(line, path, "round")])
        rounds = rounds or history.last_round
        if (accuracy := history.last("personalised.accuracy")) is not None:
            return rounds, accuracy
    return rounds, None
