"""The grid's end of a warm process, in which commands start without importing anything (``cli/warm.py``)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class WarmProcess:
    """Runs commands one after the other, each in a fork; it starts with the first one, on these cores (empty: all).

    A command is ``fedpfl`` with arguments, or the path of a program with arguments.
    """

    def __init__(self, cores: Sequence[int] = ()) -> None:
        pin = f"import os; os.sched_setaffinity(0, {list(cores)}); " if cores else ""
        self._code = f"{pin}from fedpfl.cli.warm import serve; serve()"
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._answer = b""

    def start(self, command: Sequence[str], folder: Path, output: Path, log: Path) -> None:
        """Start a command in a folder; its standard output replaces a file, and its standard error follows a log."""
        if self._process is None or self._process.poll() is not None:
            self._start_process()
        self._answer = b""
        places = {"folder": str(folder), "output": str(output), "log": str(log)}
        assert self._connection is not None
        with suppress(OSError):  # it was just ended, which `poll` tells
            self._connection.sendall(json.dumps({"command": list(command), **places}).encode() + b"\n")

    def poll(self) -> int | None:
        """Return the exit code of the command that was started; None while it runs."""
        assert self._process is not None
        assert self._connection is not None
        with suppress(OSError):  # nothing yet, or nothing more
            self._answer += self._connection.recv(100)
        lines = self._answer.split(b"\n")
        return int(lines[1]) if len(lines) > 2 else self._process.poll()

    def terminate(self) -> None:
        """Ask the command that was started to end, by SIGTERM."""
        if self._process is not None and self.poll() is None:
            number, begun, _ = self._answer.partition(b"\n")
            os.kill(int(number) if begun else self._process.pid, signal.SIGTERM)

    def close(self) -> None:
        """End the process; no command runs."""
        if self._process is not None and self._connection is not None:
            self._connection.close()
            self._process.wait()
            self._process = None

    def _start_process(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, theirs = socket.socketpair()
        self._connection.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", self._code], stdin=theirs.fileno(), stdout=theirs.fileno(),
                start_new_session=True,
            )  # fmt: skip
