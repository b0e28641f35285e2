"""``fedpfl run``: a whole simulated run with one command, and its outcome in the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .app import app
from .common import RunConfig
from .conduct import AppDir, Continue, Outcome, Quiet, Resume, conduct

if TYPE_CHECKING:
    from ..launch.plan import Plan


@app.command("run")
def run_command(
    app_dir: AppDir = None,
    run_config: RunConfig = None,
    num_clients: Annotated[
        int | None,
        typer.Option(
            "--num-clients", "--num-supernodes", min=1, help="Number of clients where the setting is 0; 10 by default."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes that play the clients, by default one for each core; 0: this process plays them all, for "
            "debuggers and profilers. The numbers are the same.",
        ),
    ] = None,
    resume: Resume = None,
    continue_from: Continue = None,
    as_json: Outcome = False,
    quiet: Quiet = False,
    clients_per_gpu: Annotated[
        int, typer.Option(min=1, help='Clients that share a GPU at the same time (device = "cuda").')
    ] = 4,
) -> None:
    """Simulate a federation on this machine and wait for its end."""

    def make() -> Plan:
        from .plan import prepare

        return prepare(app_dir, run_config, num_clients, resume, continued=continue_from)

    def run(plan: Plan) -> None:
        from ..launch.progress import display
        from ..launch.simulation import carry_out

        carry_out(plan, display(plan.config.run.num_server_rounds, quiet), workers, clients_per_gpu)

    conduct("run", make, run, as_json, quiet)
