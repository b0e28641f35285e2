"""The Flower ServerApp."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from logging import ERROR, WARNING, getLogger

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..core.errors import FedpflError
from ..core.process import spin_shortly

app = ServerApp()

# With this option Flower installs all that the app depends on before it calls the app.
INSTALLS = "--allow-runtime-dependency-installation"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run's settings describe."""
    if INSTALLS in sys.argv:
        getLogger("flwr").log(
            WARNING,
            "fedpfl: Flower has installed all dependencies again for this run, which takes a minute and gigabytes; "
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 in the environment of the first flwr command, which starts "
            "the SuperLink, avoids it",
        )
    spin_shortly()
    if "flwr.simulation" in sys.modules and find_spec("ray"):
        # Flower's simulation imports it now, in another thread, and then only waits for processes that it starts. Two
        # threads that import take turns: with torch at the same time, workers would start some four seconds later.
        import_module("ray")
    # torch and the methods take seconds to import; Flower's simulation loads this module before it starts its workers.
    from ..setup.all_settings import require_absolute
    from .strategy import run_over_flower

    try:
        require_absolute(context.run_config)
        run_over_flower(grid, context.run_config)
    except (FedpflError, OSError) as error:  # OSError: the disk is full, or the folder is gone
        # One line names what to change. Flower logs a failed ServerApp with its traceback, which would bury it.
        getLogger("flwr").log(ERROR, "fedpfl: %s", error)
        sys.tracebacklimit = 0
        raise
