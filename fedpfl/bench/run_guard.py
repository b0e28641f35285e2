"""Ends what a run started, and removes its temporary folder, once the program that started it is done or dead.

Run as a separate process, ``python run_guard.py FOLDER``: it waits until its standard input is closed, which happens
when its parent closes it, and just as well when its parent is killed. Nobody else would end a detached SuperLink.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

STOP_SECONDS = 5.0
# In a run's folder: the control groups that were made for it, one a line.
GROUPS = "control-groups"


def home(folder: Path) -> Path:
    """Return the ``FLWR_HOME`` that marks, in their environment, the processes that belong to ``folder``.

    Paths that begin with it mark them just as well.
    """
    return folder / "home"


def watch(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process that ends what belongs to ``folder`` once its standard input is closed.

    It is in a group of its own: Ctrl-C in a terminal must not end it before it has ended the others.
    """
    command = [sys.executable, "-I", __file__, str(folder)]
    # It belongs to no other folder either: what watches over this program must not end it first.
    environment = {name: value for name, value in os.environ.items() if name != "FLWR_HOME"}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)


def end_all(folder: Path, spared: set[int]) -> None:
    """Kill all process groups in which a process belongs to ``folder``, then remove the folder.

    They are not asked to end first: nothing of theirs is kept, and results are written atomically.
    """
    deadline = time.monotonic() + STOP_SECONDS
    # By group: what a process starts just now goes with it.
    while (groups := _groups(f"FLWR_HOME={home(folder)}") - spared) and time.monotonic() < deadline:
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        time.sleep(0.02)
    for control_group in map(Path, _lines(folder / GROUPS)):
        # What was killed is in it for a moment longer.
        while control_group.is_dir() and time.monotonic() < deadline:
            try:
                control_group.rmdir()
            except OSError:
                time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _groups(mark: str) -> set[int]:
    """Return the process groups in which the environment of a process has a line that begins with ``mark``."""
    marked: list[int] = []
    if Path("/proc/self/environ").exists():
        for entry in Path("/proc").glob("[0-9]*/environ"):
            try:
                if any(word.startswith(mark.encode()) for word in entry.read_bytes().split(b"\0")):
                    marked.append(int(entry.parent.name))
            except OSError:  # another user's, or gone
                continue
    else:
        listing = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, text=True, check=False)
        marked += [int(line.split()[0]) for line in listing.stdout.splitlines() if f" {mark}" in line]
    groups = set()
    for pid in marked:
        with suppress(ProcessLookupError):
            groups.add(os.getpgid(pid))
    return groups


def main() -> None:
    """Wait for the end of standard input, then end everything."""
    spared = {os.getpgrp(), os.getpgid(os.getppid())}
    sys.stdin.buffer.read()
    end_all(Path(sys.argv[1]), spared)


if __name__ == "__main__":
    main()
