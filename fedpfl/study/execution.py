"""Makes the runs of a grid: some at a time, each on its share of this machine or on a testbed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from ..core import user_code
from ..core.errors import ConfigError
from ..core.files import Rounds, locked, private_folder
from ..core.process import cores
from ..setup.all_settings import code_in
from .grid import Grid
from .run_store import PlannedRun, State, Store, unique

POLL_SECONDS = 0.1
FEDPFL = (sys.executable, "-P", "-c", "from fedpfl.cli import main; main()")


class Watcher(Protocol):
    """Shows how a grid proceeds."""

    def begin(self, runs: int, done: int, rounds: int) -> None:
        """Show how many runs there are, how many of them were done before, and how many rounds are still to do."""

    def started(self, run: PlannedRun) -> None:
        """Show that a run starts or is resumed."""

    def round(self, run: PlannedRun, line: dict[str, Any]) -> None:
        """Show a finished round, given its line of ``metrics.jsonl``."""

    def ended(self, run: PlannedRun, reason: str) -> None:
        """Show that a run has ended; a reason means that it failed."""


class Job(Protocol):
    """A run that was started."""

    def outcome(self) -> dict[str, Any] | None:
        """Return status, error and whether ``fedpfl run`` succeeded (``trained``) once all has ended; None before."""

    def interrupt(self) -> bool:
        """Ask the run to end; return whether it will, or continues without the grid."""


class Resources(NamedTuple):
    """The part of a machine that a run may use: its cores (empty: all), and the worker processes of its clients."""

    cores: tuple[int, ...]
    workers: int


Start = Callable[[PlannedRun, Store, Resources], Job]


class Execution:
    """Makes runs, those of the same name once; ``start`` starts one: by default as a :class:`Process`.

    Several executions, also of other processes and machines that see the store, share its runs: each takes one that
    has neither finished nor is taken.
    """

    def __init__(
        self, runs: Iterable[PlannedRun], store: Store, start: Start | None = None, look_seconds: float | None = None
    ) -> None:
        self.runs = unique(runs)
        self._store, self._start = store, start or Process
        self._pause = POLL_SECONDS if look_seconds is None else look_seconds

    def run(self, watcher: Watcher, jobs: int = 1, discard_models: bool = False) -> dict[str, State]:
        """Make what is not finished, ``jobs`` runs at a time, and return the state of each run by name.

        An interruption ends what runs on this machine and leaves it resumable. ``discard_models`` removes the models of
        each run that has finished.
        """
        try:
            private_folder(self._store.root)
        except OSError as error:
            raise ConfigError("output-dir", str(self._store.root), f"cannot be written ({error.strerror})") from error
        waiting = deque(run for run in self.runs if self._store.state(run) is not State.FINISHED)
        tried = {run.name: self._store.tried(run) for run in waiting}
        done = {
            run.name: self._store.folder(run).history().last_round for run in waiting if not self._store.changed(run)
        }
        rounds = sum(run.rounds - done.get(run.name, 0) for run in waiting)
        watcher.begin(len(self.runs), len(self.runs) - len(waiting), rounds)
        shares = _shares(jobs)
        active: dict[int, _ActiveRun] = {}
        try:
            while waiting or active:
                for place in sorted(set(range(jobs)) - set(active))[: len(waiting)]:
                    run = waiting.popleft()
                    if reason := self._store.outdated(run):
                        self._store.note(run, {"status": "failed", "error": reason, "trained": False})
                        watcher.ended(run, reason)
                    elif active_run := self._start_run(run, shares[place], watcher, tried[run.name]):
                        active[place] = active_run
                    elif self._store.state(run) is State.FINISHED:
                        watcher.ended(run, "")
                    elif self._has_failed_elsewhere(run, tried[run.name]):
                        watcher.ended(run, self._store.reason(run))
                    else:
                        waiting.append(run)
                time.sleep(self._pause)
                for place, active_run in list(active.items()):
                    if self._check(active_run, watcher, discard_models):
                        del active[place]
        finally:
            ending = [active_run for active_run in active.values() if active_run.job.interrupt()]
            while any(active_run.job.outcome() is None for active_run in ending):
                time.sleep(self._pause)
            for active_run in ending:
                if (outcome := active_run.job.outcome()) is not None:
                    self._store.note(active_run.run, outcome)  # what has finished by now is not run again
            for active_run in active.values():
                active_run.lock.close()
        return {run.name: self._store.state(run) for run in self.runs}

    def _has_failed_elsewhere(self, run: PlannedRun, tried: int) -> bool:
        """Return whether a run has failed in another execution since this one began, when it was last ``tried``."""
        return self._store.state(run) is State.FAILED and self._store.tried(run) != tried

    def _start_run(self, run: PlannedRun, share: Resources, watcher: Watcher, tried: int) -> _ActiveRun | None:
        """Start a run; None if another execution makes it now or has made it."""
        cell = self._store.cell(run)
        private_folder(cell)
        try:
            lock = locked(cell / "lock", wait=False)
        except BlockingIOError:
            return None
        if self._store.state(run) is State.FINISHED or self._has_failed_elsewhere(run, tried):
            lock.close()
            return None
        try:
            watcher.started(run)
            rounds = Rounds(self._store.folder(run).path / "metrics.jsonl")
            return _ActiveRun(run, self._start(run, self._store, share), lock, rounds)
        except BaseException:
            lock.close()
            raise

    def _check(self, active_run: _ActiveRun, watcher: Watcher, discard_models: bool) -> bool:
        """Show what is new, and return whether the run has ended."""
        outcome = active_run.job.outcome()
        for line in active_run.rounds.new():
            watcher.round(active_run.run, line)
        if outcome is None:
            return False
        if reason := self._store.changed(active_run.run):
            outcome = {"status": "failed", "error": reason, "trained": False}
        self._store.note(active_run.run, outcome)
        active_run.lock.close()
        finished = self._store.state(active_run.run) is State.FINISHED
        if finished and discard_models:
            self._store.discard_models(active_run.run)
        watcher.ended(active_run.run, "" if finished else self._store.reason(active_run.run) or str(outcome["status"]))
        return True


@dataclass
class _ActiveRun:
    run: PlannedRun
    job: Job
    lock: IO[bytes]
    rounds: Rounds


def run_grid(
    grid: Grid, watcher: Watcher, start: Start | None = None, jobs: int = 1, discard_models: bool = False,
    look_seconds: float | None = None,
) -> dict[str, State]:  # fmt: skip
    """Make the runs of a grid, those with chosen settings once these are chosen, and return their states by name."""

    def make(runs: Iterable[PlannedRun], discard: bool) -> dict[str, State]:
        return Execution(runs, grid.store, start, look_seconds).run(watcher, jobs, discard)

    def is_whole(run: PlannedRun) -> bool:
        """Return whether nothing is left to do for a run: after the trial that was chosen there may be."""
        made = states.get(run.name)
        return made is not None and (made is not State.FINISHED or grid.store.state(run) is State.FINISHED)

    later = discard_models and grid.measures_after_choice
    states = make(grid.wanted(), discard_models and not later)
    grid.choose(final=True)
    if more := [run for run in grid.wanted() if not is_whole(run)]:
        states |= make(more, discard_models and not later)
    for run in filter(grid.store.trained, grid.planned() if later else ()):
        grid.store.discard_models(run)
    return {run.name: states[run.name] for run in grid.wanted()}


@contextmanager
def making_data(run: PlannedRun, store: Store) -> Iterator[list[str]]:
    """Give the command that makes a run's data, empty if they are there; when it has succeeded put them in place."""
    if not run.generate or (place := store.generated(run.generate)).is_dir():
        yield []
        return
    part = place.with_name(f"{place.name}.{run.name}")
    shutil.rmtree(part, ignore_errors=True)
    yield [sys.executable, *run.generate, "--write", str(part)]
    if place.is_dir():  # another run has made the same meanwhile
        shutil.rmtree(part)
    else:
        part.replace(place)


class Process:
    """A run on this machine: what makes its data, ``fedpfl run`` and what is measured after it, each in a process.

    The processes have a session of their own, so that a Ctrl-C reaches them once, through :meth:`interrupt`.
    """

    def __init__(self, run: PlannedRun, store: Store, share: Resources) -> None:
        self._run, self._store, self._share = run, store, share
        self._settings, self._cell = store.prepare(run), store.cell(run)
        self._log.write_bytes(b"")
        self._trained, self._interrupted = store.trained(run), False
        self._ended: dict[str, Any] | None = None
        self._commands = self._steps()
        self._process = self._spawn(next(self._commands))

    def outcome(self) -> dict[str, Any] | None:
        """Return how the last command ended, once all have."""
        if self._ended is None and (code := self._process.poll()) is not None:
            command = next(self._commands, None) if code == 0 else None
            if command and not self._interrupted:
                self._process = self._spawn(command)
            else:
                self._ended = self._result(code, complete=code == 0 and command is None)
        return self._ended

    def interrupt(self) -> bool:
        """Ask the command to end."""
        self._interrupted = True
        self._process.terminate()
        return True

    def _steps(self) -> Iterator[list[str]]:
        """Yield the commands; what follows each one puts its result in place, if it succeeds."""
        run, store = self._run, self._store
        folder = store.folder(run)
        with making_data(run, store) as command:
            if command:
                yield command
        if not self._trained:
            again = ["--resume", str(folder.path)] if folder.resumable else []
            workers = ["--workers", str(self._share.workers)]
            yield self._fedpfl("run", "--json", "--quiet", *workers, *again, "-c", str(self._settings))
            self._trained = True
            # Noted now, in case this process does not live to note the end.
            store.note(run, {"status": "interrupted", "error": "interrupted", "trained": True})
        for mode in run.modes:
            if not (place := store.measured(run, mode)).is_file():
                yield self._fedpfl("personalise", str(folder.path), "--mode", mode, "--json")
                self._answer.replace(place)

    @property
    def _answer(self) -> Path:
        return self._cell / "answer.txt"  # which is no JSON until the command has ended

    @property
    def _log(self) -> Path:
        return self._cell / "log.txt"

    def _fedpfl(self, *arguments: str) -> list[str]:
        return [*FEDPFL, *arguments]

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        is_custom = bool(code_in(self._run.settings))
        folder = (user_code.folder() if is_custom else None) or self._store.root  # where custom code is found
        with self._answer.open("wb") as output, self._log.open("ab") as log, _on_cores(self._share.cores):
            return subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=log, start_new_session=True
            )

    def _result(self, code: int, complete: bool) -> dict[str, Any]:
        if complete:
            return {"status": "finished:completed", "error": None}
        if code in (0, 130, -signal.SIGINT, -signal.SIGTERM):
            return {"status": "interrupted", "error": "interrupted", "trained": self._trained}
        log = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = log[-1].removeprefix("error: ") if log else f"ended without an outcome, exit code {code}"
        return {"status": "failed", "error": last, "trained": self._trained}


def _shares(jobs: int) -> list[Resources]:
    """Divide the cores among runs side by side; a single run may use all, and all may where cores cannot be chosen."""
    ours, can_pin = cores(), hasattr(os, "sched_getaffinity")
    of_jobs = [ours[place::jobs] or [ours[place % len(ours)]] for place in range(jobs)]
    chosen = [tuple(of_job) if can_pin and jobs > 1 else () for of_job in of_jobs]
    return [Resources(pinned, len(of_job)) for pinned, of_job in zip(chosen, of_jobs, strict=True)]


@contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Have processes that start meanwhile keep to these cores; empty: to those of this process."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
