"""``fedpfl new``: make a Flower app for custom code, or the files of a testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .program import app


@app.command("new")
def new_command(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Name, or path of the new folder.")],
    testbed: Annotated[
        bool,
        typer.Option("--testbed", help="Make inventory, policy, settings and instructions of a testbed."),
    ] = False,
    flower: Annotated[
        bool,
        typer.Option("--flower", help="Make an app in Flower's shape: its own training loop, a strategy of fedpfl."),
    ] = False,
) -> None:
    """Make a Flower app of your own, or the files of a testbed.

    The app has parts.py with a model, a data set and a method, and a test.

    Example: fedpfl new my-app
    """
    from ..core import own_code
    from ..core.errors import ConfigError
    from ..launch.project import APP, OWN_FLOWER_APP, TESTBED, make
    from ..methods import discover
    from ..setup import reference

    if testbed and flower:
        raise ConfigError("--flower", True, "cannot be combined with --testbed")
    kind = TESTBED if testbed else OWN_FLOWER_APP if flower else APP
    written = make(name.expanduser(), kind)
    folder = written[0].parent
    trial = {
        TESTBED: "fedpfl up --inventory inventory.yml -c settings.toml",
        OWN_FLOWER_APP: "flwr run . --stream",
    }.get(kind, "fedpfl run")
    if kind == APP:
        # And the settings of the example's method.
        own_code.set_folder(folder)
        discover()
        reference.update(folder)
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo(f"try it: cd {folder} && {trial}", err=True)
