"""The end of a run's metrics, read from the end: a run of 10,000 rounds is listed as fast as one of ten."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..core.errors import DamagedFile
from ..core.files import open_regular
from ..core.stored import from_json_line
from .history import History

# So many bytes are read first, and twice as many where a line is longer than what was read, up to MAX_LINE.
TAIL, MAX_LINE = 2**16, 2**25
_TESTS = ("personalised", "global")
_TESTED = tuple(f'"{part}": '.encode() for part in _TESTS)


def last_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, the last first, if there is a file; a last one that a crash cut short does not count.

    Raises ``DamagedFile`` for a line that is too long.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return
    with file:
        at, beginning, cut = file.seek(0, os.SEEK_END), b"", True
        while at > 0:
            if len(beginning) > MAX_LINE:
                raise DamagedFile(path, f"a line has more than {MAX_LINE} bytes")
            size = min(at, max(TAIL, len(beginning)))
            at = file.seek(at - size)
            beginning, *lines = (file.read(size) + beginning).split(b"\n")
            if cut and lines:
                lines.pop()
                cut = False
            yield from reversed(lines)
        if not cut:
            yield beginning


def latest(path: Path) -> tuple[int, float | None, float | None]:
    """Return how many rounds ``metrics.jsonl`` has, and both accuracies, personalised and global, of the last tests."""
    rounds = 0
    for line in last_lines(path):
        if rounds and not any(part in line for part in _TESTED):
            continue
        history = History([from_json_line(line, path, "round")])
        rounds = rounds or history.last_round
        own, shared = (history.last(f"{part}.accuracy") for part in _TESTS)
        if own is not None or shared is not None:
            return rounds, own, shared
    return rounds, None, None
