"""The process from which a grid forks its commands: it has imported what they need, and imports once.

Each command runs in a separate process, so nothing that it leaves behind reaches the next one. What is imported starts
neither threads of torch nor a GPU, which no fork could use.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from ..methods import methods
from . import main

# What `fedpfl run` and `fedpfl personalise` import when they need it.
IMPORTED_LATE = (
    "fedpfl.launch.plan", "fedpfl.launch.simulation", "fedpfl.bench.superlink", "fedpfl.results.summary",
    "tensorboard.summary.writer.record_writer", "tensorboard.compat.proto.event_pb2",
)  # fmt: skip


def serve() -> None:
    """Run the commands on standard input, one JSON object a line; answer with the process's number, then its exit code.

    Ends with standard input, as when the grid is killed; in the process of a command it does not return.
    """
    if _can_fork():
        for name in IMPORTED_LATE:
            with suppress(ImportError):  # the command reports what is missing
                importlib.import_module(name)
        methods()
        # Forks that looked through what was imported would copy its pages.
        gc.collect()
        gc.freeze()
    try:
        for line in sys.stdin:
            process = os.fork()
            if process == 0:
                _become(json.loads(line))
            try:
                print(process, flush=True)
            finally:
                code = _exit_code(process)
            print(code, flush=True)
    except ConnectionError:  # the grid was killed; the interpreter's own end would write to it once more
        os._exit(1)


def _exit_code(process: int) -> int:
    """Wait for a command and return its exit code; ask it to end if nobody waits for it any more."""
    if hasattr(os, "pidfd_open"):
        ended = os.pidfd_open(process)
        if ended not in select.select([ended, sys.stdin], [], [])[0]:
            os.kill(process, signal.SIGTERM)
        os.close(ended)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _become(request: Mapping[str, Any]) -> NoReturn:
    os.setsid()  # a Ctrl-C reaches the command once, through the grid
    os.chdir(request["folder"])
    write = os.O_WRONLY | os.O_CREAT
    for number, (path, how) in enumerate(
        [(os.devnull, os.O_RDONLY), (request["output"], write | os.O_TRUNC), (request["log"], write | os.O_APPEND)]
    ):
        file = os.open(path, how)
        os.dup2(file, number)
        os.close(file)
    name, *arguments = request["command"]
    if name != "fedpfl":
        os.execv(name, [name, *arguments])
    if not _can_fork():
        os.execv(sys.executable, [sys.executable, "-P", "-c", "from fedpfl.cli import main; main()", *arguments])
    sys.argv = request["command"]
    main()
    sys.exit()


def _can_fork() -> bool:
    return sys.platform == "linux"  # macOS's own libraries may not be used in a fork
