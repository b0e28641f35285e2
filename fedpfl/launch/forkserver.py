"""``fedpfl-forkserver``: starts a device's ClientApps without importing Flower each time.

Flower starts the command ``flwr-clientapp`` for every message; importing its modules costs 1.5 s of a laptop's core and
several times that on a small board. This process imports them once and forks for every message. Of Flower, only the
command itself is used.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.errors import FedpflError
from . import forks

COMMAND = "flwr-clientapp"
# What Flower's HTTP client and NumPy import only when they are first used: a third of a ClientApp's processor time.
# Another version may have other ones, and then each ClientApp imports its own.
IMPORTED_LATE = ("httpcore", "numpy.random")


def load() -> Callable[[], Any]:
    """Import what every ClientApp of this project needs; torch is the worker's."""
    import safetensors.numpy  # noqa: F401

    for name in IMPORTED_LATE:
        with suppress(ImportError):
            importlib.import_module(name)
    return forks.entry_point(COMMAND)


def main() -> None:
    """Run the fork server (the console script ``fedpfl-forkserver``)."""
    from .superlink import script

    parser = argparse.ArgumentParser(prog="fedpfl-forkserver", description="Start this device's ClientApps quickly.")
    parser.add_argument("--socket", metavar="PATH", required=True, help="where to listen")
    arguments = parser.parse_args()
    try:
        forks.run(Path(arguments.socket).absolute(), forks.Command(COMMAND, script(COMMAND), load))
    except FedpflError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
