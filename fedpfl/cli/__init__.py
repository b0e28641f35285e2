"""The command line. Each command imports what it needs when it runs, so that ``--help`` is there at once."""

from __future__ import annotations

# Importing a module registers its commands with `app`.
from . import (  # noqa: F401
    analyse,
    doctor,
    experiment,
    keys,
    listing,
    new,
    partition,
    register,
    report,
    run,
    runs,
    sweep,
    up,
    watch,
)
from .app import GROUPS, app

__all__ = ["GROUPS", "app", "main"]


def main() -> None:
    """Run the command line (the console script ``fedpfl``)."""
    app()
