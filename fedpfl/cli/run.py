"""``fedpfl run``, and what ``fedpfl up`` has in common with it: options, and a run from its plan to its exit code."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import ConfigError, FedpflError
from ..setup.options.after_the_end import PersonaliseSettings
from .common import NumClients, RunConfig, ending_signals, outcome_table, prepare, print_json, require_allowed, stdout
from .program import app, in_words

if TYPE_CHECKING:
    from ..bench.mqtt.account import Account
    from ..launch.plan import Plan

COMPLETED, FAILED = "finished:completed", "finished:failed"


class RunFailedError(FedpflError):
    """Raised when a run ended without its results."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


AppDir = Annotated[
    Path | None, typer.Argument(metavar="[APP_DIR]", help="Folder of the app; by default the working directory.")
]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Resume this run (name or folder) with its settings.")]
Outcome = Annotated[bool, typer.Option("--json", help="Print the outcome as one JSON object.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Web = Annotated[
    bool, typer.Option("--web", help="Serve a live page of the run on this machine until it ends; prints its address.")
]


@app.command("run")
def run_command(
    app_dir: AppDir = None,
    run_config: RunConfig = None,
    num_clients: NumClients = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=(
                "Number of worker processes; by default one per core, none with a GPU. 0: clients run in this process, "
                "for debuggers and profilers. The results are the same."
            ),
        ),
    ] = None,
    resume: Resume = None,
    as_json: Outcome = False,
    quiet: Quiet = False,
    web: Web = False,
) -> None:
    """Simulate a federation on this machine and wait for its end.

    Example: fedpfl run -c 'method="ditto" dirichlet-alpha=0.1' --num-clients 20
    """

    def make() -> Plan:
        return prepare(app_dir, run_config, num_clients, resume)

    def run(plan: Plan) -> None:
        from ..launch import simulation
        from ..launch.progress import Display

        with live_page(plan) if web else nullcontext():
            simulation.run(plan, Display(plan.config.run.num_server_rounds, quiet), workers)

    # An earlier run may have a custom method, whose settings are not known yet.
    check = partial(require_allowed, [] if resume else run_config, app_dir)
    execute("run", check, make, run, as_json, quiet)


def live_page(plan: Plan, account: Account | None = None) -> AbstractContextManager[None]:
    """Return a context in which a live page of a run, and of the testbed of an account, is served."""
    from ..study.live.page_server import LivePage, listen, served_in_background

    page = LivePage(plan.folder.path.parent, listen(), account=account)
    typer.echo(f"live page: {page.address(plan.folder.path.name)}", err=True)
    return served_in_background(page)


def execute(
    command: str,
    check: Callable[[], None],
    make: Callable[[], Plan],
    run: Callable[[Plan], None],
    as_json: bool,
    quiet: bool,
    around: AbstractContextManager[Any] | None = None,
) -> None:
    """Make a plan, run it, report, and exit with the run's code.

    ``command`` is what an interrupted run is resumed with. ``check`` refuses wrong settings before torch is imported.
    ``around`` is entered before the plan is made and left when the run has ended.
    """
    plan: Plan | None = None
    try:
        check()
        with ending_signals(), around or nullcontext():
            plan = make()
            from ..data import fetch

            # Here the progress is shown, and no client has to download within the server's time limit.
            with contextlib.redirect_stderr(io.StringIO()) if quiet else nullcontext():
                fetch(plan.config.data)
            run(plan)
    except (FedpflError, OSError) as error:
        if as_json:
            began = plan is not None and (plan.folder.path / "config.toml").is_file()
            before = "invalid" if isinstance(error, ConfigError) and not began else FAILED
            _report(plan, error.status if isinstance(error, RunFailedError) else before, in_words(error))
        raise
    except KeyboardInterrupt:
        message = "interrupted"
        if plan is not None and plan.has_finished():
            message += f"; the run has finished; its models, if the method has any: fedpfl export {plan.folder.path}"
        elif plan is not None and plan.folder.resumable:
            message += f"; resume it: fedpfl {command} --resume {plan.folder.path}"
        if as_json:
            _report(plan, "interrupted", message)
        typer.echo(message, err=True)
        raise typer.Exit(130) from None
    if as_json:
        _report(plan, COMPLETED, None)
    elif plan.config.of(PersonaliseSettings).on:
        from .stored_runs import personalised, tell_personalised

        tell_personalised(plan.folder, personalised(plan.folder))
    else:
        stdout().print(outcome_table(plan.folder))
        typer.echo(plan.folder.path)


def _report(plan: Plan | None, status: str, error: str | None) -> None:
    from ..results.summary import OUTCOME_KEYS, outcome

    result: dict[str, Any] = {"run": plan.folder.path.name if plan else None, "status": status, "error": error}
    # The same keys in every case, so that readers need not check which are there.
    result.update(outcome(plan.folder) if plan is not None else dict.fromkeys(OUTCOME_KEYS))
    print_json(result)
