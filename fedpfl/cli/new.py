"""``fedpfl new``: make a Flower app for custom code, or the files of a bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app


@app.command("new")
def new_command(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Name of the app or bench, or path of its new folder.")],
    bench: Annotated[
        bool, typer.Option("--bench", help="Make inventory, policy, settings and instructions for a bench of devices.")
    ] = False,
) -> None:
    """Make a Flower app of your own: pyproject.toml, parts.py with a model, a data set and a method, a test."""
    from ..core import custom
    from ..launch.project import make
    from ..methods import discover
    from ..setup import reference

    written = make(name.expanduser(), bench)
    folder = written[0].parent
    trial = "fedpfl up --inventory inventory.yml -c settings.toml"
    if not bench:
        # And the settings of the example's method.
        custom.set_folder(folder)
        discover()
        reference.update(folder)
        trial = "fedpfl run"
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo(f"try it: cd {folder} && {trial}", err=True)
