"""``fedpfl keys``: certificates and node keys for real devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import app


@app.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where the files go; what is there is kept.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Address or name under which devices reach the server; repeatable."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=0, help="Number of node keys.")] = 3,
) -> None:
    """Make a certificate authority, a server certificate for 127.0.0.1 and the given addresses, and node keys."""
    from ..credentials import LOOPBACK, prepare

    made = prepare(folder.expanduser(), nodes, [*LOOPBACK, *(host or ())])
    typer.echo(f"server:  {made.authority} {made.certificate} {made.key} {made.superexec_secret}")
    typer.echo(f"devices: {made.authority}, and each its own of {' '.join(str(key) for key in made.node_keys)}")
