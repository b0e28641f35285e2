"""Finds the processes of a test by what their environment holds, or by the folder that they use."""

from __future__ import annotations

import os
from pathlib import Path


def marked(mark: str) -> dict[int, bytes]:
    """Return the command lines of the processes with ``mark``, NAME=VALUE, in their environment, by process id."""
    commands = {}
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                commands[int(path.parent.name)] = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
    return commands


def using(folder: Path) -> dict[int, bytes]:
    """Return the command lines of the other processes that use ``folder``, by process id.

    They name it in their environment or in their command line, or have a file in it open. A process of Ray's that
    renames itself overwrites the first two, but it writes its log there.
    """
    commands = {}
    name = os.fsencode(folder)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            files = [os.fsencode(file.readlink()) for file in (process / "fd").iterdir()]
            if any(name in text for text in (command, (process / "environ").read_bytes(), *files)):
                commands[int(process.name)] = command
        except OSError:  # somebody else's, or gone
            continue
    commands.pop(os.getpid(), None)
    return commands
