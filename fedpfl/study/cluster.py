"""Runs of a grid as jobs of a Slurm cluster, one job a run, through submitit.

A job does on a machine of the cluster what :class:`~fedpfl.study.grid.Process` does on this machine. All machines
must see the folder of the runs, the data and the Python environment under the same paths. A job writes the same files
as a local run; the queue is asked only for the jobs' states.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError, FedpflError
from ..core.files import write_atomically
from ..core.stored import read_json
from .grid import Job, Process, Resources, Start
from .store import PlannedRun, Store
from .warm_process import WarmProcess

if TYPE_CHECKING:
    from submitit import Executor
    from submitit import Job as QueuedJob
    from submitit.helpers import DelayedSubmission

POLL_SECONDS = 5.0
# The queue knows that a job has ended before a network's file system shows its files.
SILENT_SECONDS = 15.0
# Default number of runs in the queue at the same time.
QUEUED = 100
# How often a job that reaches its time limit is put into the queue again.
MAX_TIMEOUTS = 20
# Seconds within which a run has to end when it is asked to. Slurm warns a job half a minute earlier before it kills it.
END_SECONDS = 60
WARNING_SECONDS = END_SECONDS + 30
DEFAULTS: dict[str, Any] = {"time": 240, "cpus_per_task": 4, "signal_delay_s": WARNING_SECONDS}
LISTS = ("setup", "teardown", "srun_args")
# What submitit understands; it passes all other options on to sbatch.
KNOWN = ("time", "cpus_per_task", "signal_delay_s", *LISTS)
# A run is one process on one machine. The others are made by submitit, or would break what it makes.
REFUSED = (
    "nodes", "ntasks", "ntasks_per_node", "array", "array_parallelism", "job_name", "output", "error", "signal",
    "open_mode", "requeue", "no_requeue", "additional_parameters", "use_srun", "stderr_to_stdout",
)  # fmt: skip
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


class Cluster:
    """Starts runs as jobs, and finds the jobs in the queue that an earlier grid has submitted.

    ``executor`` is submitit's, for Slurm or, in tests, for this machine. A job imports ``start``, which starts a run,
    by its name.
    """

    side_by_side = QUEUED
    stay, end = "jobs stay in Slurm's queue", "scancel"

    def require(self, runs: Iterable[PlannedRun]) -> None:
        """Refuse nothing: a job can do what this machine can."""

    def __init__(self, executor: Executor, workers: int, start: Start = Process) -> None:
        self._executor, self._workers, self._start = executor, workers, start
        self._jobs: list[_Submitted] = []

    def __call__(self, run: PlannedRun, store: Store, share: Resources) -> Job:
        """Submit a run, or watch the job that is in the queue; the share of this machine does not matter."""
        self._jobs.append(_Submitted(self._found(run, store) or self._submit(run, store), run, store))
        return self._jobs[-1]

    def active(self) -> list[str]:
        """Return the ids of the jobs that wait or run."""
        return [job.id for job in self._jobs if job.outcome() is None]

    def _found(self, run: PlannedRun, store: Store) -> QueuedJob[Any] | None:
        path = _note(run, store)
        if not path.is_file():
            return None
        job = self._executor.job_class(self._executor.folder, str(read_json(path)["id"]))
        return None if job.done(force_check=True) else job

    def _submit(self, run: PlannedRun, store: Store) -> QueuedJob[Any]:
        from submitit.core.utils import FailedJobError

        self._executor.update_parameters(job_name=run.name)
        try:
            job = self._executor.submit(Task(run, store, self._workers, self._start))
        except (FailedJobError, OSError, subprocess.SubprocessError) as error:
            lines = str(error).strip().splitlines() or [repr(error)]
            raise FedpflError(f"Slurm refuses {run.name}: {lines[-1]}") from error
        write_atomically(_note(run, store), (json.dumps({"id": job.job_id}) + "\n").encode())
        return job


class _Submitted:
    """A run in a job; submitit knows the job's state."""

    def __init__(self, job: QueuedJob[Any], run: PlannedRun, store: Store) -> None:
        self._job, self._run, self._store = job, run, store
        self._ended: dict[str, Any] | None = None
        self._since: float | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return str(self._job.job_id)

    def outcome(self) -> dict[str, Any] | None:
        """Return the outcome that the job has stored, once it has ended."""
        if self._ended is None and self._job.done():
            self._since = self._since or time.monotonic()
            stored = self._job.paths.result_pickle.exists()
            if stored or time.monotonic() - self._since > SILENT_SECONDS:
                self._ended = self._result(stored)
                _note(self._run, self._store).unlink(missing_ok=True)
        return self._ended

    def interrupt(self) -> bool:
        """Leave the job in the queue."""
        return False

    def _result(self, stored: bool) -> dict[str, Any]:
        from submitit.core.utils import UncompletedJobError

        with suppress(UncompletedJobError):
            if stored:
                return dict(self._job.result())
        error = f"job {self.id} ended without an outcome ({self._job.state}; log: {self._job.paths.stderr})"
        return {**self._store.outcome(self._run), "status": "failed", "error": error}


@dataclass
class Task:
    """What a job does: start a run and wait for its end; submitit pickles it into the job's folder."""

    run: PlannedRun
    store: Store
    workers: int
    start: Start = Process
    active: Job | None = field(default=None, init=False)

    def __call__(self) -> dict[str, Any]:
        """Run and return the outcome, which is noted as well: the grid may no longer be there."""
        with closing(WarmProcess()) as warm:
            self.active = self.start(self.run, self.store, Resources((), self.workers, warm))
            outcome = self._wait(math.inf)
        assert outcome is not None  # there is no deadline
        return outcome

    def checkpoint(self) -> DelayedSubmission:
        """End the run before the queue kills it, and return the task that resumes it.

        submitit calls it when the job's time is up, or another job needs its place.
        """
        from submitit.helpers import DelayedSubmission

        if self.active is not None:
            self.active.interrupt()
            self._wait(time.monotonic() + END_SECONDS)
        return DelayedSubmission(Task(self.run, self.store, self.workers, self.start))

    def _wait(self, deadline: float) -> dict[str, Any] | None:
        assert self.active is not None
        while (outcome := self.active.outcome()) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 10)
        if outcome is not None:
            self.store.note(self.run, outcome)
        return outcome


def slurm(store: Store, options: Mapping[str, Any]) -> Cluster:
    """Return a :class:`Cluster` for the Slurm cluster to which this machine belongs.

    ``options`` are long options of ``sbatch``, with ``-`` or ``_``. Scripts and logs of the jobs are stored with the
    runs.
    """
    try:
        import submitit
    except ImportError:
        raise FedpflError(
            "Slurm's jobs are made by submitit, which is not installed: pip install 'fedpfl[cluster]'"
        ) from None
    given = {**DEFAULTS, **_checked(options)}
    try:
        # One folder for all jobs, whose files begin with the job's number: it must be there when a job starts at once.
        executor = submitit.SlurmExecutor(store.root / "jobs", max_num_timeout=MAX_TIMEOUTS)
    except RuntimeError as error:
        raise FedpflError("there is no Slurm on this machine: srun is not among the commands") from error
    known = {key: value for key, value in given.items() if key in KNOWN}
    others = {key: value for key, value in given.items() if key not in KNOWN and value is not False}
    executor.update_parameters(**known, additional_parameters=others)
    return Cluster(executor, int(given["cpus_per_task"]))


def _note(run: PlannedRun, store: Store) -> Path:
    return store.cell(run) / "job.json"


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in options.items():
        key = name.replace("-", "_")
        if key in REFUSED:
            raise ConfigError("slurm", name, "cannot be set: a run is one task on one machine, under its own name")
        if key in LISTS:
            if not (isinstance(value, list) and all(isinstance(line, str) for line in value)):
                raise ConfigError("slurm", f"{name}={value}", "must be a list of texts, in a TOML file")
        elif isinstance(value, (list, dict)):
            raise ConfigError("slurm", f"{name}={value}", "must be a text, a number, true or false")
        elif key in ("cpus_per_task", "signal_delay_s") and (type(value) is not int or value < 1):
            raise ConfigError("slurm", f"{name}={value}", "must be a whole number of at least 1")
        out[key] = minutes(value) if key == "time" else value
    return out


def minutes(time_limit: object) -> int:
    """Return a time limit in whole minutes, at least 1.

    It is given in minutes, or as Slurm writes it: ``MM:SS``, ``HH:MM:SS``, ``D-HH``, ``D-HH:MM``, ``D-HH:MM:SS``.
    """
    found = _TIME.fullmatch(str(time_limit))
    if found is None or isinstance(time_limit, bool):
        raise ConfigError("slurm", f"time={time_limit}", "must be minutes, or HH:MM:SS, or D-HH:MM:SS")
    days, *rest = (int(part) if part else None for part in found.groups())
    parts = [part for part in rest if part is not None]
    if days is not None:  # D-HH[:MM[:SS]]
        hours, more, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, more, seconds = parts
    else:  # MM[:SS]
        hours, more, seconds = 0, *(*parts, 0)[:2]
    total = 24 * 60 * (days or 0) + 60 * hours + more + (seconds > 0)
    if total < 1:
        raise ConfigError("slurm", f"time={time_limit}", "must be at least a minute")
    return total
