"""The command line. Each command imports what it needs when it runs, so that ``--help`` is there at once."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any

from ..core.process import spin_shortly
from .program import GROUPS

__all__ = ["GROUPS", "app", "main"]

# The commands of each file.
COMMANDS = {
    "analyse": ("analyse",), "clean": ("clean",), "doctor": ("doctor",), "experiment": ("experiment",),
    "keys": ("keys", "broker"), "catalogue": ("methods", "datasets", "models", "config"), "new": ("new",),
    "node": ("node",), "partition": ("partition",), "register": ("register",), "report": ("report",),
    "resume": ("resume",), "run": ("run",),
    "stored_runs": ("show", "export", "personalise"), "sweep": ("sweep", "compare"), "up": ("up",),
    "watch": ("watch",),
}  # fmt: skip


def load(command: str = "") -> Any:
    """Import the file of a command, or all files if it is none; return the program, which has them then."""
    for name in [file for file, commands in COMMANDS.items() if command in commands] or COMMANDS:
        import_module(f"{__name__}.{name}")
    return import_module(f"{__name__}.program").app


def __getattr__(name: str) -> Any:
    if name == "app":
        return load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Run the command line (the console script ``fedpfl``)."""
    if not os.environ.get("HOME", "unset"):
        del os.environ["HOME"]  # empty, it would be the root folder; unset, it is the user's
    spin_shortly()
    try:
        load(sys.argv[1] if len(sys.argv) > 1 else "")()
    except KeyboardInterrupt:  # before or after the command's own
        sys.exit(130)
    finally:
        # A Ctrl-C while the interpreter closes ends it, and is no traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
