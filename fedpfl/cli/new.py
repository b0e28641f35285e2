"""``fedpfl new``: make a Flower app for custom code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app


@app.command("new")
def new_command(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The app's name, or the path of its folder to be.")],
) -> None:
    """Make a Flower app of your own: pyproject.toml, parts.py with a model, a data set and a method, a test."""
    from ..core import custom
    from ..launch.project import make
    from ..methods import discover
    from ..setup import reference

    written = make(name.expanduser())
    folder = written[0].parent
    # And the settings of the example's method.
    custom.set_folder(folder)
    discover()
    reference.update(folder)
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo(f"try it: cd {folder} && fedpfl run", err=True)
