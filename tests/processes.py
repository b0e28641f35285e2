"""Finds the processes of a test by what their environment holds."""

from __future__ import annotations

from pathlib import Path


def marked(mark: str) -> dict[int, bytes]:
    """Return the command lines of the processes with ``mark``, NAME=VALUE, in their environment, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                found[int(path.parent.name)] = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
    return found
