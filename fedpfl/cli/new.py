"""``fedpfl new``: make a Flower app for custom code, or the files of a testbed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import complete_methods
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
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="Make a project in the form of Flower's baselines.", autocompletion=complete_methods
        ),
    ] = None,
) -> None:
    """Make a Flower app of your own, or the files of a testbed.

    The app has parts.py with a model, a data set and a method, and a test.

    Example: fedpfl new my-app
    """
    from ..core import user_code
    from ..core.errors import ConfigError
    from ..launch.new_project import APP, BASELINE, OWN_FLOWER_APP, TESTBED, make
    from ..methods import discover, find
    from ..methods.settings import SETTINGS
    from ..setup import reference

    kinds = [*[TESTBED] * testbed, *[OWN_FLOWER_APP] * flower, *[BASELINE] * (baseline is not None)]
    if len(kinds) > 1:
        raise ConfigError("new", " ".join(f"--{kind}" for kind in kinds), "give only one of them")
    kind = kinds[0] if kinds else APP
    place = name.expanduser().absolute()
    method = None if baseline is None else find(baseline)
    if method is not None and method.name not in SETTINGS:
        raise ConfigError("--baseline", baseline, "must be a method of fedpfl's: baselines are made of its strategies")
    written = make(place, kind, method)
    trial = {OWN_FLOWER_APP: "flwr run . --stream", BASELINE: "flwr run . --stream"}.get(kind, "fedpfl run")
    if kind == APP:
        # And the settings of the example's method.
        user_code.set_folder(place)
        discover()
        reference.update(place)
    for path in written:
        typer.echo(f"wrote {name.expanduser() / path.relative_to(place)}")
    # A testbed's clients have files of samples, which its README makes first.
    rehearsal = f"next: step 1 of {name.expanduser()}/README.md rehearses it on this machine"
    typer.echo(rehearsal if kind == TESTBED else f"try it: cd {name.expanduser()} && {trial}", err=True)
