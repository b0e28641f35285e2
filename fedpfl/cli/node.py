"""``fedpfl node``: a SuperNode with its worker and fork server, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import ending_signals
from .program import app

# What every message of a training app imports. The first optimiser of a process imports torch's compiler.
PRELOADED = ("torch", "torchvision")


@app.command("node")
def node_command(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="flower-supernode with its options.")],
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The device's policy: in which runs it takes part.")
    ] = None,
    preload: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="Module that your app imports, loaded only once; repeatable."),
    ] = None,
) -> None:
    """Run a SuperNode that answers in seconds.

    Flower starts a process for each message. Here it is forked from one that has imported Flower and torch, and a
    worker keeps the model and data of fedpfl's own app. Both end with the SuperNode, whose FLWR_HOME is temporary.

    Example: fedpfl node -- flower-supernode --insecure --superlink 192.168.1.10:9092
    """
    from ..bench import node

    with ending_signals():
        raise typer.Exit(node.run(command, policy, [*PRELOADED, *(preload or ())]))
