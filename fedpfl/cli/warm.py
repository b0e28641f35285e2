"""The process from which a grid forks its commands: it has imported what they need, and imports once.

Each command runs in a separate process, so nothing that it leaves behind reaches the next one. What is imported starts
neither threads of torch nor a GPU, which no fork could use.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from ..methods import methods
from . import main

# What `fedpfl run` and `fedpfl personalise` import when they need it.
IMPORTED_LATE = (
    "fedpfl.cli.run_config", "fedpfl.launch.simulation", "fedpfl.bench.superlink", "fedpfl.results.summary",
    "tensorboard.summary",
)  # fmt: skip


def serve() -> None:
    """Run the commands on standard input, one JSON object a line; answer with the process's number, then its exit code.

    Ends with standard input; in the process of a command it does not return.
    """
    if _can_fork():
        for name in IMPORTED_LATE:
            with suppress(ImportError):  # the command reports what is missing
                importlib.import_module(name)
        methods()
        # Forks that looked through what was imported would copy its pages.
        gc.collect()
        gc.freeze()
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            _become(json.loads(line))
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


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
