"""A whole federation on this machine, without Flower."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..core.errors import NoPlainModel
from ..core.user_code import global_state_kept
from ..engine.listener import Listener
from ..engine.server_run import run_federation
from ..engine.simulation_transport import SimulationTransport
from ..results.export import export_personal
from ..results.run_folder import RunFolder
from ..setup.config import Config
from ..setup.options.after_the_end import PersonaliseSettings
from .plan import Plan
from .progress import Display, logged


def simulate(
    config: Config,
    listeners: Sequence[Listener] = (),
    workers: int | None = None,
    printed: Callable[[int, str], None] | None = None,
) -> RunFolder:
    """Run a federation with all clients on this machine; ``config`` has run-name and num-clients.

    ``workers`` is the number of processes that run the clients, by default one for each core; 0: this process does.
    On a GPU it is 0. ``printed`` gets a client's number and what it prints in a worker;
    by default that is dropped.
    """
    traces = Path(config.run.output_dir).expanduser() / config.run.run_name / "tracebacks"
    with SimulationTransport(config, workers, printed or _drop, traces) as transport:
        return run_federation(transport, config, listeners)


def run(
    plan: Plan,
    shown: Display,
    workers: int | None = None,
    listeners: Sequence[Listener] = (),
) -> None:
    """Simulate a run from its data to its personalised models, and show its progress.

    A run that has already finished only writes its models again: it may have been killed while it wrote them.
    """
    with logged(shown), global_state_kept():
        if plan.has_finished():
            shown.line(f"note: {plan.how_to_continue()}")
        else:
            shown.show_step("reading the data")
            simulate(plan.config, [shown, *listeners], workers, shown.printed)
        export(plan, shown)


def export(plan: Plan, shown: Display) -> None:
    """Write the personalised models of a run that has finished; what follows its end changes none of them."""
    if plan.config.of(PersonaliseSettings).on:
        return
    shown.show_step("writing the personalised models")
    try:
        export_personal(plan.folder)
    except NoPlainModel as reason:
        shown.line(f"note: no personalised models are written: {reason}")


def _drop(client: int, text: str) -> None:
    """Let what a client prints go."""
