"""Workers as processes of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waiting import wait_until

from fedpfl.client import protocol

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def workers(*options: str) -> Iterator[Any]:
    """Yield what starts workers on one socket, with these options; stop them afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="fedpfl-test-"))
    path = folder / "run" / "worker.sock"
    processes = []

    def start(python=sys.executable, wait=True):
        log = (folder / "log").open("ab")
        variables = {**os.environ, "PYTHONPATH": str(ROOT), protocol.SOCKET_VARIABLE: str(path)}
        command = [python, "-m", "fedpfl.bench.device.worker", *options]
        process = subprocess.Popen(command, env=variables, cwd=folder, stderr=log)
        processes.append(process)
        if wait:
            wait_until(lambda: "ready" in start.log(), lambda: process.poll() is None, start.log)
        return process

    start.path = path
    start.log = lambda: (folder / "log").read_text()
    yield start
    for process in processes:
        process.kill()
        process.wait()
    shutil.rmtree(folder)
