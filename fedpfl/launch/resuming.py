"""What is decided before a run that goes on: the settings that it had, and whether there is anything left to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..data.registry import AUTO
from ..results.earlier_run import EarlierRun
from ..results.run_folder import RunFolder, find_run
from ..setup.config import Config, RunSettings
from .plan import Plan


def stored_settings(
    resume: str | None, continued: str | None, values: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of a run that is resumed, or else continued, with those that are ``given``."""
    run = find_run(str(resume or continued), Path(str(values.get("output-dir", RunSettings.output_dir))))
    if resume is None:
        return _with_clients({**run.config(), **given, "continue-from": str(run.path)}, run)
    where = {"run-name": run.path.name, "output-dir": str(run.path.parent), "resume": True}
    # What auto meant was decided when the run began.
    given = {key: value for key, value in given.items() if (key, value) != ("partitioner", AUTO)}
    return _with_clients({**run.config(), **given, **where}, run)


def _with_clients(values: Mapping[str, Any], run: RunFolder) -> dict[str, Any]:
    # Without a number `flwr run` took one client for each node that there was.
    return {**values, "num-clients": values.get("num-clients") or run.task().get("clients", 0)}


def reopened(config: Config, more_clients: bool) -> EarlierRun:
    """Return the folder of a run that is resumed, which nobody else is running now; the server locks it again."""
    run = EarlierRun.reopen(config, more_clients=more_clients)
    with run.exclusive():
        return run


def is_over(plan: Plan) -> bool:
    """Return whether a run that has written its results has done all its rounds."""
    history, run = plan.folder.history(), plan.config.run
    done = history.last_round >= run.num_server_rounds or history.stalled(run.early_stop)
    # What is damaged is made again when the run is resumed.
    return done and EarlierRun(plan.folder.path).is_intact(run.state_dir)


def how_to_continue(plan: Plan) -> str:
    """Return why resuming a run that has finished trains nothing, and which setting changes that."""
    name, last = plan.config.run.run_name, plan.folder.history().last_round
    if last < plan.config.run.num_server_rounds:
        stopped = f"ended early after {last} rounds (early-stop = {plan.config.run.early_stop})"
        return f"{name} {stopped}; to continue: --run-config 'early-stop=0'"
    return f"{name} has finished its {last} rounds; for more: --run-config 'num-server-rounds={2 * last}'"
