"""Runs the runs of a grid, each as ``fedpfl run`` in a process of its own, one after another or side by side."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from ..core import parts
from ..core.errors import ConfigError
from ..core.files import Rounds
from .store import PlannedRun, State, Store

LOOK_SECONDS = 0.3
NO_OUTCOME = "ended without an outcome"


class Watcher(Protocol):
    """Gets to know how a grid goes on."""

    def begin(self, runs: int, done: int, rounds: int) -> None:
        """Hear how many runs there are, how many of them were done before, and how many rounds are left."""

    def started(self, run: PlannedRun) -> None:
        """Hear that a run starts, or goes on."""

    def round(self, run: PlannedRun, line: dict[str, Any]) -> None:
        """Hear of a finished round, given its line of ``metrics.jsonl``."""

    def ended(self, run: PlannedRun, reason: str) -> None:
        """Hear that a run has ended; a reason means that it failed."""


class Job(Protocol):
    """A run that goes on."""

    def outcome(self) -> dict[str, Any] | None:
        """Return status and error once the run has ended, None before; ``trained``: whether ``fedpfl run`` did well."""

    def interrupt(self) -> bool:
        """Ask it to end; say whether it will, or goes on without the grid."""


class Share(NamedTuple):
    """What a run may use of the machine that it runs on.

    Attributes
    ----------
    cores : tuple of int
        The cores it is kept to; empty: all.
    workers : int
        The worker processes that play its clients.
    """

    cores: tuple[int, ...]
    workers: int


Start = Callable[[PlannedRun, Store, Share], Job]


class Grid:
    """Runs of a grid.

    Parameters
    ----------
    runs : iterable of PlannedRun
        Those of the same name count once.
    store : Store
        Where they lie.
    start : callable, optional
        Starts a run on its share of the machine: :class:`Process`, or as a job of a cluster.
    look_seconds : float, optional
        Pause between two looks at what goes on.
    """

    def __init__(
        self,
        runs: Iterable[PlannedRun],
        store: Store,
        start: Start | None = None,
        look_seconds: float | None = None,
    ) -> None:
        self.runs = unique(runs)
        self._store = store
        self._start = start or Process
        self._pause = LOOK_SECONDS if look_seconds is None else look_seconds

    def run(self, watcher: Watcher, jobs: int = 1, discard_models: bool = False) -> dict[str, State]:
        """Run what is not finished; an interruption ends what runs here and leaves it resumable.

        Parameters
        ----------
        watcher : Watcher
            Is told what happens.
        jobs : int
            How many runs go on at the same time, each on its share of the cores.
        discard_models : bool
            Whether to remove the models of a run when it has finished.

        Returns
        -------
        dict of str to State
            How far each run is, by name.

        Raises
        ------
        ConfigError
            The folder of the runs cannot be written.
        """
        try:
            self._store.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError("output-dir", str(self._store.root), f"cannot be written ({error.strerror})") from error
        waiting = deque(run for run in self.runs if self._store.state(run) is not State.FINISHED)
        left = sum(run.rounds - self._store.folder(run).history().last_round for run in waiting)
        watcher.begin(len(self.runs), len(self.runs) - len(waiting), left)
        shares = _shares(jobs)
        going: dict[int, _Going] = {}
        try:
            while waiting or going:
                for place in sorted(set(range(jobs)) - set(going)):
                    if waiting and (one := self._begin(waiting.popleft(), shares[place], waiting, watcher)):
                        going[place] = one
                time.sleep(self._pause)
                for place, one in list(going.items()):
                    if self._look(one, watcher, discard_models):
                        del going[place]
        finally:
            ending = [one for one in going.values() if one.job.interrupt()]
            while any(one.job.outcome() is None for one in ending):
                time.sleep(self._pause)
            for one in ending:
                if (outcome := one.job.outcome()) is not None:
                    self._store.note(one.run, outcome)  # what it has finished by now is not done again
            for one in going.values():
                one.lock.close()
        return {run.name: self._store.state(run) for run in self.runs}

    def _begin(self, run: PlannedRun, share: Share, waiting: deque[PlannedRun], watcher: Watcher) -> _Going | None:
        beside = self._store.beside(run)
        beside.mkdir(parents=True, exist_ok=True)
        lock = (beside / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another grid runs it just now
            lock.close()
            waiting.append(run)
            return None
        if self._store.state(run) is State.FINISHED:  # by that other grid
            lock.close()
            watcher.ended(run, "")
            return None
        watcher.started(run)
        rounds = Rounds(self._store.folder(run).path / "metrics.jsonl")
        return _Going(run, self._start(run, self._store, share), lock, rounds)

    def _look(self, one: _Going, watcher: Watcher, discard_models: bool) -> bool:
        """Pass on what is new; say whether the run has ended."""
        outcome = one.job.outcome()
        for line in one.rounds.new():
            watcher.round(one.run, line)
        if outcome is None:
            return False
        self._store.note(one.run, outcome)
        one.lock.close()
        finished = self._store.state(one.run) is State.FINISHED
        if finished and discard_models:
            self._store.discard_models(one.run)
        watcher.ended(one.run, "" if finished else self._store.reason(one.run) or str(outcome["status"]))
        return True


class _Going:
    def __init__(self, run: PlannedRun, job: Job, lock: IO[str], rounds: Rounds) -> None:
        self.run, self.job, self.lock, self.rounds = run, job, lock, rounds


class Process:
    """A run as ``fedpfl run --json``, what makes its data before and what is measured after it, each in a process.

    They have a session of their own, so that a Ctrl-C reaches them once, through :meth:`interrupt`.

    Parameters
    ----------
    run : PlannedRun
        The run.
    store : Store
        Where it lies.
    share : Share
        The cores it may use, and how many processes play its clients.
    """

    def __init__(self, run: PlannedRun, store: Store, share: Share) -> None:
        self._run, self._store, self._cores = run, store, share.cores
        settings, folder = store.prepare(run), str(store.folder(run).path)
        self._log = (store.beside(run) / "log.txt").open("wb")
        self._ended: dict[str, Any] | None = None
        self._steps: deque[_Step] = deque()
        self._training: _Step | None = None
        if run.generate and not (place := store.generated(run.generate)).is_dir():
            part = place.with_name(f"{place.name}.{run.name}")
            shutil.rmtree(part, ignore_errors=True)
            self._steps.append(_Step([sys.executable, *run.generate, "--write", str(part)], part, place))
        if not store.trained(run):
            again = ["--resume", folder] if store.folder(run).resumable else []
            workers = ["--workers", str(share.workers)]
            self._training = _Step(self._fedpfl("run", "--json", "--quiet", *workers, *again, "-c", str(settings)))
            self._steps.append(self._training)
        for mode in run.modes:
            if not (place := store.measured(run, mode)).is_file():
                command = self._fedpfl("new-clients", folder, "--mode", mode, "--json")
                self._steps.append(_Step(command, self._answer, place))
        self._next()

    def outcome(self) -> dict[str, Any] | None:
        """Return what was said last, once all has ended."""
        if self._ended is None and self._child.poll() is not None:
            if self._child.returncode == 0 and self._steps:
                if self._step is self._training:  # said now, in case that nobody is there to note the end
                    self._store.note(self._run, {"status": "interrupted", "error": "interrupted", "trained": True})
                self._step.keep()
                self._next()
            else:
                self._ended = self._said()
                if self._child.returncode == 0:
                    self._step.keep()
                self._log.close()
        return self._ended

    def interrupt(self) -> bool:
        """Ask it to end."""
        self._steps.clear()
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)  # SIGINT is ignored by all that a shell started in the background
        return True

    @property
    def _place(self) -> Path:
        """The folder that the run finds the user's own code in, if it has any."""
        own = any(parts.is_reference(str(self._run.settings[kind])) for kind in parts.GROUPS)
        return parts.folder() or self._store.root if own else self._store.root

    @property
    def _answer(self) -> Path:
        return self._store.beside(self._run) / "answer.json"

    def _fedpfl(self, *arguments: str) -> list[str]:
        pin = f"import os; os.sched_setaffinity(0, {list(self._cores)}); " if self._cores else ""
        return [sys.executable, "-P", "-c", f"{pin}from fedpfl.cli import main; main()", *arguments]

    def _next(self) -> None:
        self._step = self._steps.popleft()
        with self._answer.open("wb") as out:
            self._child = subprocess.Popen(
                self._step.command, cwd=self._place, stdin=subprocess.DEVNULL, stdout=out, stderr=self._log,
                start_new_session=True,
            )  # fmt: skip

    def _said(self) -> dict[str, Any]:
        code = self._child.returncode
        if code == 0:
            return {"status": "finished:completed", "error": None}
        trained = self._training not in (self._step, *self._steps)  # the summary alone does not say it
        if code in (130, -signal.SIGINT, -signal.SIGTERM):
            return {"status": "interrupted", "error": "interrupted", "trained": trained}
        log = (self._store.beside(self._run) / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        last = log[-1].removeprefix("error: ") if log else f"{NO_OUTCOME}, exit code {code}"
        return {"status": "failed", "error": last, "trained": trained}


class _Step:
    """A command, and what it leaves that is put in its place when it has succeeded."""

    def __init__(self, command: list[str], made: Path | None = None, place: Path | None = None) -> None:
        self.command, self._made, self._place = command, made, place

    def keep(self) -> None:
        if self._made is None or self._place is None:
            return
        if self._place.is_dir():  # another run has made the same meanwhile
            shutil.rmtree(self._made)
        else:
            self._made.replace(self._place)


def unique(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return each run once, with everything that is to be measured after it."""
    found: dict[str, PlannedRun] = {}
    for run in runs:
        modes = {*run.modes, *(found[run.name].modes if run.name in found else ())}
        found[run.name] = replace(run, modes=tuple(sorted(modes)))
    return list(found.values())


def _shares(jobs: int) -> list[Share]:
    """Divide the cores among runs side by side; one run alone is not kept to any, nor one where that is impossible."""
    pinned = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if pinned else list(range(os.cpu_count() or 1))
    parts = [cores[place::jobs] or [cores[place % len(cores)]] for place in range(jobs)]
    return [Share(tuple(part) if pinned and jobs > 1 else (), len(part)) for part in parts]
