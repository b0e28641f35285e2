"""``fedpfl run``: a whole simulated run with one command, and its outcome in the exit code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging import WARNING, Handler, LogRecord, getLogger
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import app
from .common import RunConfig
from .conduct import AppDir, Outcome, Quiet, Resume, conduct, export

if TYPE_CHECKING:
    from .plan import Plan
    from .progress import Display


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
    as_json: Outcome = False,
    quiet: Quiet = False,
    clients_per_gpu: Annotated[
        int, typer.Option(min=1, help='Clients that share a GPU at the same time (device = "cuda").')
    ] = 4,
) -> None:
    """Simulate a federation on this machine and wait for its end."""

    def make() -> Plan:
        from .plan import prepare

        return prepare(app_dir, run_config, num_clients, resume)

    def run(plan: Plan) -> None:
        from ..launch.simulation import simulate
        from .progress import display

        with display(plan.config.run.num_server_rounds, quiet) as shown, _logged(shown):
            shown.stage("reading the data")
            simulate(plan.config, _Shown(shown), workers, clients_per_gpu, shown.printed)
            export(plan, shown)

    conduct("run", make, run, as_json, quiet)


class _Shown:
    """Passes on to a display what a run tells."""

    def __init__(self, shown: Display) -> None:
        self._shown = shown

    def described(self, remarks: Sequence[str]) -> None:
        for remark in remarks:
            self._shown.line(f"note: {remark}")
        self._shown.stage("first round")

    def round(self, line: dict[str, Any]) -> None:
        self._shown.round(line)


class _Warnings(Handler):
    def __init__(self, shown: Display) -> None:
        super().__init__(WARNING)
        self._shown = shown

    def emit(self, record: LogRecord) -> None:
        self._shown.line(record.getMessage())


@contextmanager
def _logged(shown: Display) -> Iterator[None]:
    """Show the server's warnings among the progress; they go through Flower's logger, which has its own form."""
    logger, handler = getLogger("flwr"), _Warnings(shown)
    before, level = logger.handlers[:], logger.level
    logger.handlers[:] = [handler]
    logger.setLevel(WARNING)
    try:
        yield
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)
