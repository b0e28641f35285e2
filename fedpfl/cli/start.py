"""``fedpfl run``: a whole simulated run with one command, and its outcome in the exit code."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import FedpflError
from . import app
from .common import RunConfig
from .watched import AppDir, KeepLog, Outcome, Quiet, Resume


@app.command("run")
def run_command(
    app_dir: AppDir = None,
    run_config: RunConfig = None,
    num_supernodes: Annotated[
        int | None, typer.Option(min=1, help="Number of clients where num-clients is 0; 10 by default.")
    ] = None,
    resume: Resume = None,
    as_json: Outcome = False,
    quiet: Quiet = False,
    keep_log: KeepLog = False,
    clients_per_gpu: Annotated[
        int, typer.Option(min=1, help='Clients that share a GPU at the same time (device = "cuda").')
    ] = 4,
) -> None:
    """Simulate a federation on this machine and wait for its end."""
    from .plan import prepare

    prepare(app_dir, run_config, num_supernodes, resume)
    raise FedpflError("`fedpfl run` has no engine in this version; use `flwr run .` or `fedpfl up`")
