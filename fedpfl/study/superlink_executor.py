"""Runs of a grid on a SuperLink that is there, with its devices, one after the other.

A run's server writes its folder where the store has it: the grid runs on the server's machine, as the server's user.
A run that goes on while the grid is away, or this machine restarts, is followed again or resumed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..bench.superlink import answer, copy_app, reason_in, run_flwr
from ..core import user_code
from ..core.checksummed_files import read_json, to_toml
from ..core.errors import ConfigError, FedpflError
from ..core.files import write_atomically
from ..flower_private import UNKNOWN_RUN
from ..setup.all_settings import at_home, code_in
from ..setup.config import RunSettings
from .execution import Job, Resources
from .run_store import PlannedRun, Store

# Between two questions to Flower, each of which is a process and a second of a core; and how long it may not answer.
ASK_SECONDS, UNANSWERED_SECONDS = 5.0, 600.0
ENDED = "finished:"
COMPLETED = "finished:completed"


class SuperLinkExecutor:
    """Starts runs by ``flwr run``, and finds those that an earlier grid has started.

    ``superlink`` is the SuperLink's name in Flower's configuration. ``app`` is the folder of the app that devices get;
    None stands for the installed package.
    """

    look_seconds = 5.0  # between two looks at a run's files

    def __init__(self, superlink: str, app: Path | None = None) -> None:
        self._superlink, self._app = superlink, app
        self._jobs: list[_SubmittedRun] = []

    def require(self, runs: Iterable[PlannedRun]) -> None:
        """Raise ``ConfigError`` for a run that the devices cannot carry out."""
        online = self.online()
        for run in runs:
            if run.generate:
                allowed = "first makes data, which the devices would not have; use --executor local"
                raise ConfigError("executor", "flower", f"{run.name} {allowed}")
            if run.modes:
                allowed = "measures new clients with personal arrays, which stay on the devices; use --executor local"
                raise ConfigError("executor", "flower", f"{run.name} {allowed}")
            clients = int(run.settings["num-clients"])
            least = RunSettings(min_clients=int(run.settings.get("min-clients", 0))).enough_clients(clients)
            if least > len(online):
                allowed = f"{len(online)} SuperNodes are online at {self._superlink!r}, at least {least} are needed"
                allowed += " (min-clients)"
                raise ConfigError("num-clients", clients, allowed)
            if self._app is None:
                user_code.require_installed(code_in(run.settings))

    def online(self) -> list[str]:
        """Return the ids of the SuperNodes that are there."""
        try:
            nodes = self._ask("supernode", "list")["nodes"]
        except FedpflError as error:
            raise ConfigError("federation", self._superlink, str(error)) from error
        return [str(node["node-id"]) for node in nodes if node["status"] == "online"]

    def __call__(self, run: PlannedRun, store: Store, share: Resources) -> Job:
        """Submit a run, or follow it if it is on its way; the share of this machine does not matter."""
        note = store.cell(run) / "flower.json"
        run_id = str(read_json(note)["id"]) if note.is_file() else ""
        if not run_id or self.status(run_id).startswith(ENDED):
            run_id = self._submit(run, store)
            write_atomically(note, (json.dumps({"id": run_id}) + "\n").encode())
        self._jobs.append(_SubmittedRun(self, run_id, run, store))
        return self._jobs[-1]

    def active(self) -> list[str]:
        """Return the ids of the runs that have not ended."""
        return [job.id for job in self._jobs if job.outcome() is None]

    def status(self, run_id: str) -> str:
        """Return Flower's word for how a run is; one that a SuperLink without a database has forgotten has ended."""
        try:
            return str(self._ask("ls", "--run-id", run_id)["runs"][0]["status"])
        except FedpflError as error:
            if UNKNOWN_RUN not in str(error):
                raise
            return f"{ENDED}forgotten"

    def reason(self, run_id: str) -> str | None:
        """Return why a run has failed, from its log."""
        done = run_flwr("log", run_id, self._superlink, "--show")
        return reason_in(done.stdout + done.stderr)

    def _submit(self, run: PlannedRun, store: Store) -> str:
        store.prepare(run)
        folder, app = store.folder(run), store.cell(run) / "app"
        values = {"output-dir": str(folder.path.parent), "run-name": run.name, "resume": folder.resumable}
        settings = store.cell(run) / "bench.toml"
        write_atomically(settings, to_toml({**at_home(run.settings), **values}).encode())
        shutil.rmtree(app, ignore_errors=True)
        copy_app(self._app, app)
        return str(self._ask("run", str(app), "--run-config", str(settings))["run-id"])

    def _ask(self, *arguments: str) -> Mapping[str, Any]:
        """Return the answer of a command of ``flwr``; the SuperLink comes after the command's own argument."""
        count = 2 if arguments[0] in ("run", "supernode") else 1
        command = [*arguments[:count], self._superlink, *arguments[count:], "--format", "json"]
        return answer(" ".join(arguments[:1]), run_flwr(*command))


class _SubmittedRun:
    """A run on the testbed."""

    def __init__(self, bench: SuperLinkExecutor, run_id: str, run: PlannedRun, store: Store) -> None:
        self._bench, self.id, self._run, self._store = bench, run_id, run, store
        self._ended: dict[str, Any] | None = None
        self._answered = self._asked = time.monotonic()

    def outcome(self) -> dict[str, Any] | None:
        """Return how the run ended, once Flower says that it has."""
        now = time.monotonic()
        if self._ended is None and now - self._asked >= ASK_SECONDS:
            self._asked = now
            try:
                status = self._bench.status(self.id)
            except FedpflError as error:  # the SuperLink may just be started again
                if now - self._answered > UNANSWERED_SECONDS:
                    self._ended = self._failed(str(error))
            else:
                self._answered = now
                if status.startswith(ENDED):
                    self._ended = self._result(status)
        return self._ended

    def interrupt(self) -> bool:
        """Leave the run on the testbed."""
        return False

    def _result(self, status: str) -> dict[str, Any]:
        if status == COMPLETED and self._store.folder(self._run).finished:
            return {"status": COMPLETED, "error": None}
        if status == COMPLETED:
            where = self._store.folder(self._run).path
            return self._failed(
                f"its server did not write {where}; run this command on the server's machine, as its user"
            )
        return self._failed(self._bench.reason(self.id) or f"Flower reports {status}")

    def _failed(self, reason: str) -> dict[str, Any]:
        return {"status": "failed", "error": reason, "trained": False}
