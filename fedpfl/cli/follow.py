"""Follows a run of ``fedpfl up`` until it has finished; its server is another process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..core.errors import FedpflError
from .run import COMPLETED, RunFailedError

if TYPE_CHECKING:
    from ..bench.superlink import SuperLink
    from ..launch.plan import Plan
    from ..launch.progress import Display
    from ..results.file_cache import Version

POLL_SECONDS = 0.2
# A question to Flower costs a process and more than a second of one core, taken from the training. Only a server that
# was killed ends without a hint, and so the questions become rarer the longer the run goes on.
FIRST_ASK_SECONDS, MAX_ASK_SECONDS = 20.0, 600.0
ASK_SECONDS_AT_END = 1.0
# The SuperLink may just be started again when it is asked.
ASK_SECONDS_UNANSWERED, UNANSWERED_SECONDS = 1.0, 60.0
# Flower's words for a run of whose server it has heard nothing for a minute, by the clock that people set.
SILENT = "No heartbeat received"
FILES_WATCHED = ("summary.md", "task.json")
# After the results are written the server winds down. Only if Flower does not log the end by then, ask for it.
WIND_DOWN_SECONDS = 8.0


def run_and_follow(link: SuperLink, plan: Plan, submit: Callable[[Plan], str], quiet: bool, keep_log: bool) -> None:
    """Submit a run, show its progress, and stop Flower when it has ended.

    ``submit`` submits the plan and returns the run's id. A run that has already finished only writes its models again:
    it may have been killed while it wrote them.
    """
    from ..bench.superlink import reason_in
    from ..launch.progress import Display
    from ..results.file_cache import Version

    shown = Display(plan.config.run.num_server_rounds, quiet)
    if plan.has_finished():
        shown.line(f"note: {plan.how_to_continue()}")
        export(plan, shown)
        return
    run_id, status, details, log = None, "failed", "", ""
    shown.show_step("starting Flower")
    try:
        # A resumed run has files of its earlier part.
        old = [Version.of(plan.folder.path / name) for name in FILES_WATCHED]
        run_id = submit(plan)
        status, details = _watch(link, run_id, plan, shown, old)
        # A resumed run removes the summary of its earlier part before its first round.
        finished = status == COMPLETED and plan.folder.finished
        if keep_log or not finished:
            log = link.log(run_id)
    except FedpflError as error:
        finished, details, log = False, str(error), link.log(None)
    shown.show_step("stopping Flower")
    link.stop()
    if finished:
        export(plan, shown)
    where = _keep(log, plan) if log else None
    if not finished:
        if SILENT in details:
            details = "the server was silent: it was killed, this machine slept, or its clock was set"
            if plan.folder.resumable:
                details += f"; resume the run: fedpfl up --resume {plan.folder.path}"
        reason = reason_in(log) or (details if details not in ("", "N/A") else "the run ended without results")
        raise RunFailedError(status, f"{reason} (log: {where})" if where else reason)
    if where:
        typer.echo(f"log: {where}", err=True)


def export(plan: Plan, shown: Display) -> None:
    """Write the personalised models of a run that has finished."""
    from ..launch import simulation  # and with it torch, which is not needed before

    simulation.export(plan, shown)


def _watch(link: SuperLink, run_id: str, plan: Plan, shown: Display, old: Sequence[Version]) -> tuple[str, str]:
    """Show the run's progress until Flower says that it has finished; return Flower's status and details."""
    from ..core.files import Rounds
    from ..results.file_cache import ABSENT, Version

    rounds = Rounds(plan.folder.path / "metrics.jsonl")
    summary, task = (plan.folder.path / name for name in FILES_WATCHED)
    old_summary, old_task = old
    shown.show_step("starting the server")
    folder_seen = clients_seen = ending = False
    pause, unanswered_since = FIRST_ASK_SECONDS, 0.0
    ask_at = time.monotonic() + pause
    while True:
        if not folder_seen and (plan.folder.path / "config.toml").is_file():
            folder_seen = True
            shown.show_step("waiting for the clients")
        # The folder of a new run begins with a task that lacks everything that the clients say.
        task_is_new = not clients_seen and Version.of(task) not in (ABSENT, old_task)
        if task_is_new and "remarks" in (parts := plan.folder.task()):
            clients_seen = True
            for remark in parts["remarks"]:
                typer.echo(f"note: {remark}", err=True)
            shown.show_step("first round")
        for line in rounds.new():
            shown.round(line)
        if link.logged_end():
            pause, ask_at = ASK_SECONDS_AT_END, 0.0
        elif not ending and Version.of(summary) not in (ABSENT, old_summary):
            ending, pause, ask_at = True, ASK_SECONDS_AT_END, time.monotonic() + WIND_DOWN_SECONDS
        if ended := link.ended():
            raise FedpflError(ended)
        if time.monotonic() >= ask_at:
            try:
                status, details = link.status(run_id)
            except FedpflError:
                unanswered_since = unanswered_since or time.monotonic()
                if time.monotonic() - unanswered_since > UNANSWERED_SECONDS:
                    raise
                ask_at = time.monotonic() + ASK_SECONDS_UNANSWERED
            else:
                if status.startswith("finished"):
                    for line in rounds.new():
                        shown.round(line)
                    return status, details
                unanswered_since = 0.0
                ask_at = time.monotonic() + pause
                pause = min(2 * pause, MAX_ASK_SECONDS)
        time.sleep(POLL_SECONDS)


def _keep(log: str, plan: Plan) -> Path | None:
    folder = plan.folder.path
    path = folder / "flower.log" if folder.is_dir() else folder.with_name(folder.name + ".flower.log")
    try:
        path.write_text(log, encoding="utf-8")
    except OSError as error:  # why the run failed is reported below, and may be the same: a full disk
        typer.echo(f"note: {path}: {error.strerror}", err=True)
        return None
    return path
