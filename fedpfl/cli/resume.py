"""``fedpfl resume``: a run on a testbed goes on after a power cut, or with a device that was replaced."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from .common import RunConfig, RunName, output_dir, prepare
from .program import app
from .run import AppDir


@app.command("resume")
def resume_command(
    run: RunName,
    app_dir: AppDir = None,
    federation: Annotated[
        str, typer.Option(metavar="NAME", help="The testbed's SuperLink, as Flower's config.toml calls it.")
    ] = "testbed",
    replaced: Annotated[
        str | None,
        typer.Option(
            metavar="CLIENTS",
            help="Clients whose device was replaced, such as 9,10,11: they go on from the shared arrays.",
        ),
    ] = None,
    run_config: RunConfig = None,
) -> None:
    """Resume a run on a testbed, with its settings.

    Run it on the server's machine, as the server's user.

    Example: fedpfl resume first --replaced 9,10,11
    """
    from ..bench.superlink import answer, copy_app, run_flwr
    from ..core.checksummed_files import to_toml
    from ..results.resumed_run import ResumedRun
    from ..results.run_folder import find_run
    from ..setup.all_settings import at_home

    plan = prepare(app_dir, run_config, None, run)
    if replaced is not None:
        folder = ResumedRun(find_run(run, output_dir()).path)
        with folder.exclusive():
            folder.let_in([folder.client_number(text.strip()) for text in replaced.split(",")])
    with tempfile.TemporaryDirectory() as place:
        code, settings = Path(place) / "app", Path(place) / "settings.toml"
        copy_app(plan.app, code)
        settings.write_text(to_toml(at_home(plan.run_config())), encoding="utf-8")
        submitted = answer(
            "run", run_flwr("run", str(code), federation, "--run-config", str(settings), "--format", "json")
        )
    typer.echo(f"{plan.folder.path.name} goes on as run {submitted['run-id']}: flwr ls {federation}")
