"""Runs of a grid as jobs of a Slurm cluster, one job a run, through submitit.

A job does what :class:`~fedpfl.experiments.grid.Process` does on the own machine, ``fedpfl run`` and what is measured
after it, on a machine of the cluster. All machines must see the folder of the runs, the data and the Python environment
under the same paths. What a job leaves lies where a local run leaves it; the queue is asked only how jobs are.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigError, FedpflError
from ..core.files import write_atomically
from ..core.stored import read_json
from .grid import Job, Process, Share, Start
from .store import PlannedRun, Store

if TYPE_CHECKING:
    from submitit import Executor
    from submitit import Job as QueuedJob
    from submitit.helpers import DelayedSubmission

LOOK_SECONDS = 5.0
# The queue knows that a job has ended before a network's file system shows what it has left.
SILENT_SECONDS = 15.0
# Runs in the queue at the same time, where nobody says how many.
QUEUED = 100
# How often a job that reaches its time limit is put into the queue again.
MOST_TIMEOUTS = 20
# What a run that is told to end may take for it; Slurm warns a job this long and half a minute before it kills it.
END_SECONDS = 60
WARNING_SECONDS = END_SECONDS + 30
DEFAULTS: dict[str, Any] = {"time": 240, "cpus_per_task": 4, "signal_delay_s": WARNING_SECONDS}
LISTS = ("setup", "teardown", "srun_args")
# What submitit does something about; it passes all other options on to sbatch.
OWN = ("time", "cpus_per_task", "signal_delay_s", *LISTS)
# A run is one process on one machine. The others are made by submitit, or would break what it makes.
REFUSED = (
    "nodes", "ntasks", "ntasks_per_node", "array", "array_parallelism", "job_name", "output", "error", "signal",
    "open_mode", "requeue", "no_requeue", "additional_parameters", "use_srun", "stderr_to_stdout",
)  # fmt: skip
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


class Cluster:
    """Starts runs as jobs, and finds those again that an earlier grid has left in the queue.

    Parameters
    ----------
    executor : submitit.Executor
        Takes the jobs: :func:`slurm`, or submitit's own for this machine in tests.
    workers : int
        Processes that play a run's clients.
    start : callable
        What starts a run on the machine of its job; something that a job can import by its name.
    """

    def __init__(self, executor: Executor, workers: int, start: Start = Process) -> None:
        self._executor, self._workers, self._start = executor, workers, start
        self._jobs: list[Submitted] = []

    def __call__(self, run: PlannedRun, store: Store, share: Share) -> Job:
        """Put a run into the queue, or watch the job that is there; the share of the calling machine does not matter.

        Raises
        ------
        FedpflError
            The queue does not take it.
        """
        job = self._left(run, store) or self._submit(run, store)
        self._jobs.append(Submitted(job, run, store))
        return self._jobs[-1]

    def going(self) -> list[str]:
        """Return the ids of the jobs that wait or run."""
        return [job.id for job in self._jobs if job.outcome() is None]

    def _left(self, run: PlannedRun, store: Store) -> QueuedJob[Any] | None:
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
            raise FedpflError(f"the queue does not take {run.name}: {lines[-1]}") from error
        write_atomically(_note(run, store), (json.dumps({"id": job.job_id}) + "\n").encode())
        return job


class Submitted:
    """A run that a job carries out; submitit answers for the job.

    Parameters
    ----------
    job : submitit.Job
        The job.
    run, store : PlannedRun, Store
        What it runs, and where.
    """

    def __init__(self, job: QueuedJob[Any], run: PlannedRun, store: Store) -> None:
        self._job, self._run, self._store = job, run, store
        self._ended: dict[str, Any] | None = None
        self._since: float | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return str(self._job.job_id)

    def outcome(self) -> dict[str, Any] | None:
        """Return what the job has said once it has ended."""
        if self._ended is None and self._job.done():
            self._since = self._since or time.monotonic()
            said = self._job.paths.result_pickle.exists()
            if said or time.monotonic() - self._since > SILENT_SECONDS:
                self._ended = self._said() if said else self._silent()
                _note(self._run, self._store).unlink(missing_ok=True)
        return self._ended

    def interrupt(self) -> bool:
        """Leave the job where it is."""
        return False

    def _said(self) -> dict[str, Any]:
        from submitit.core.utils import UncompletedJobError

        try:
            return dict(self._job.result())
        except UncompletedJobError:
            return self._silent()

    def _silent(self) -> dict[str, Any]:
        error = f"job {self.id} ended without an outcome ({self._job.state}; log: {self._job.paths.stderr})"
        return {**self._store.outcome(self._run), "status": "failed", "error": error}


@dataclass
class Task:
    """What a job does; submitit pickles it into the job's folder.

    Attributes
    ----------
    run, store : PlannedRun, Store
        The run, and where it lies.
    workers : int
        Processes that play the run's clients.
    start : callable
        Starts the run.
    """

    run: PlannedRun
    store: Store
    workers: int
    start: Start = Process
    going: Job | None = field(default=None, init=False)

    def __call__(self) -> dict[str, Any]:
        """Carry the run out and return its outcome, which is noted as well: the grid may be gone."""
        self.going = self.start(self.run, self.store, Share((), self.workers))
        while (outcome := self.going.outcome()) is None:
            time.sleep(LOOK_SECONDS / 10)
        self.store.note(self.run, outcome)
        return outcome

    def checkpoint(self) -> DelayedSubmission:
        """End the run before the queue kills it, and return what is to be queued again: it goes on where this ended.

        submitit calls it when the job's time is up, or its place is wanted for another.
        """
        from submitit.helpers import DelayedSubmission

        if self.going is not None:
            self.going.interrupt()
            deadline = time.monotonic() + END_SECONDS
            while (outcome := self.going.outcome()) is None and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS / 10)
            if outcome is not None:
                self.store.note(self.run, outcome)
        return DelayedSubmission(Task(self.run, self.store, self.workers, self.start))


def slurm(store: Store, options: Mapping[str, Any]) -> Cluster:
    """Return what starts runs as jobs of the Slurm cluster to which this machine belongs.

    Parameters
    ----------
    store : Store
        Where the runs lie; scripts and logs of the jobs go beside them.
    options : mapping
        What ``sbatch`` is told, as in its long options, with ``-`` or ``_``.

    Raises
    ------
    ConfigError
        An option is none of a run's, or has the wrong type.
    FedpflError
        There is no submitit or no Slurm.
    """
    try:
        import submitit
    except ImportError:
        raise FedpflError("Slurm's jobs are made by submitit, which is not installed: pip install submitit") from None
    given = {**DEFAULTS, **_checked(options)}
    try:
        # One folder for all jobs, whose files begin with the job's number: it must be there when a job starts at once.
        executor = submitit.SlurmExecutor(store.root / "jobs", max_num_timeout=MOST_TIMEOUTS)
    except RuntimeError as error:
        raise FedpflError("there is no Slurm on this machine: srun is not among the commands") from error
    own = {key: value for key, value in given.items() if key in OWN}
    others = {key: value for key, value in given.items() if key not in OWN and value is not False}
    executor.update_parameters(**own, additional_parameters=others)
    return Cluster(executor, int(given["cpus_per_task"]))


def _note(run: PlannedRun, store: Store) -> Path:
    return store.beside(run) / "job.json"


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

    Parameters
    ----------
    time_limit : object
        Minutes, or as Slurm writes it: ``MM:SS``, ``HH:MM:SS``, ``D-HH``, ``D-HH:MM``, ``D-HH:MM:SS``.

    Raises
    ------
    ConfigError
        It is neither.
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
