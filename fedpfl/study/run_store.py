"""Where the runs of grids are stored, under names that follow from their settings: equal runs are run once.

::

    ROOT/runs/NAME/                  the run's folder
    ROOT/cells/NAME/settings.toml    what it was started with
    ROOT/cells/NAME/outcome.json     how the last try ended
    ROOT/cells/NAME/log.txt          what it wrote on standard error
    ROOT/cells/NAME/flower.json      Flower's run of it, on a testbed
    ROOT/cells/NAME/new-clients-…    what `fedpfl personalise` measured after it
    ROOT/state/                      the clients' personal arrays
    ROOT/generated/HASH/             data that a script of an experiment made
    ROOT/tables/EXPERIMENT/SCALE/    tables that `fedpfl experiment run` wrote
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from ..client.state import run_state
from ..core import references
from ..core.checksummed_files import read_json, to_toml
from ..core.errors import ConfigError, FedpflError, StateError
from ..core.files import private_folder, write_atomically
from ..data.dataset import contents
from ..data.reading import load_once
from ..results.identity import changed, identity
from ..results.run_folder import RunFolder, find_run
from ..setup.all_settings import absolute_places, check_keys, places, tagged
from ..setup.config import Config
from . import run_numbers

DEFAULT_ROOT = "~/.fedpfl/experiments"


class State(Enum):
    """The state of a run."""

    MISSING = "missing"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    FINISHED = "finished"


@dataclass(frozen=True)
class PlannedRun:
    """A run of a grid, not started yet."""

    name: str  # method, data set and a hash of the settings, with what the files and modules hold that they name
    settings: Mapping[str, Any]  # all but the places, checked
    rounds: int
    modes: tuple[str, ...] = ()  # of `fedpfl personalise`, measured after it
    generate: tuple[str, ...] = ()  # script and arguments that make its data first; empty: none
    key: str = ""  # a hash of the settings alone, as they name files and modules
    identity: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # what these held when it was planned


def unique(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return each run once, with everything that is to be measured after it."""
    by_name: dict[str, PlannedRun] = {}
    for run in runs:
        modes = {*run.modes, *(by_name[run.name].modes if run.name in by_name else ())}
        by_name[run.name] = replace(run, modes=tuple(sorted(modes)))
    return list(by_name.values())


def plan(
    settings: Mapping[str, Any], seed: int, measured: Collection[str] = (), generate: tuple[str, ...] = ()
) -> PlannedRun:
    """Check the settings of a run, given as in ``fedpfl run -c``, and name it.

    ``measured`` are the metrics that are wanted, and ``generate`` is a script with arguments that makes its data first.
    """
    check_keys(settings)
    if "seed" in settings:
        raise ConfigError("seed", settings["seed"], "cannot be set here; use --seeds N for the seeds 1 to N")
    config = Config.parse({**settings, "seed": seed})
    written = config.flat()
    # The runs work in another directory, and a name must not depend on this one.
    flat = absolute_places(written)
    if not flat["num-clients"]:
        raise ConfigError("num-clients", 0, "must be given for a comparison, a sweep or an experiment")
    # Defaults count: runs with the old one are other runs than those with a new one. Folders of this machine do not.
    aside = tagged("idle") | (tagged("place") - tagged("file"))
    counted: dict[str, Any] = {key: value for key, value in sorted(flat.items()) if key not in aside}
    key = _hash(counted)
    contents_now, files = identity(flat), places(flat, tagged("file"))
    if generate:  # the script and its arguments make the data, which are not there yet
        contents_now["files"] = {}
        counted.update({key: place.rpartition("/generated/")[2] for key, place in files.items()})
    else:  # a file is what it holds, wherever it lies; one that is not here is what it was called
        counted.update({key: str(written[key]) for key in files if str(written[key]).startswith("~")})
        if references.is_custom("dataset", config.data.dataset):
            contents_now["files"]["dataset"] = contents(load_once(config.data, config.run.seed))
    counted.update(contents_now["files"])
    name = f"{references.short_name(str(flat['method']))}-{references.short_name(str(flat['dataset']))}"
    digest = _hash([counted, contents_now["modules"]])
    modes = sorted({mode for name in measured if (mode := run_numbers.mode_of(name)) is not None})
    _require_new_clients(config, modes)
    rounds = config.run.num_server_rounds
    return PlannedRun(f"{name}-{digest}", flat, rounds, tuple(modes), generate, key, contents_now)


def _require_new_clients(config: Config, modes: Collection[str]) -> None:
    """Raise :class:`ConfigError` for what new clients cannot do after a run, before it is made."""
    if not modes:
        return
    from ..results.new_clients import MODES, require_new_clients

    for mode in modes:
        if mode not in MODES:
            name = f"{run_numbers.NEW_CLIENTS}:{mode}"
            raise ConfigError("metrics", name, f"the mode must be one of {', '.join(MODES)}")
    if not config.run.new_clients:
        raise ConfigError("new-clients", 0.0, f"must be above 0 for a metric {run_numbers.NEW_CLIENTS}:MODE")
    require_new_clients(config)


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


class Store:
    """The folder of all runs of grids; it is made when it is needed."""

    def __init__(self, root: Path) -> None:
        self.root = root.expanduser().absolute()

    @property
    def is_default(self) -> bool:
        """Whether this is the folder that commands take unless told another."""
        return self.root == Path(DEFAULT_ROOT).expanduser().absolute()

    def folder(self, run: PlannedRun) -> RunFolder:
        """Return the run's folder, which need not exist."""
        return self.of_name(run.name)

    def of_name(self, name: str) -> RunFolder:
        """Return the folder of a run of this name, which need not exist."""
        return RunFolder(self.root / "runs" / name)

    def cell(self, run: PlannedRun) -> Path:
        """Return the folder with everything about a run but its results."""
        return self.root / "cells" / run.name

    def tables(self, *names: str) -> Path:
        """Return the folder of written tables."""
        return self.root.joinpath("tables", *names)

    def generated(self, generate: tuple[str, ...]) -> Path:
        """Return the folder of what a script makes with these arguments; a changed script gets another one."""
        script = Path(generate[0])
        named = [script.name, hashlib.sha256(script.read_bytes()).hexdigest(), *generate[1:]]
        return self.root / "generated" / hashlib.sha256(json.dumps(named).encode()).hexdigest()[:12]

    def state(self, run: PlannedRun) -> State:
        """Return the state of a run, from its files alone."""
        folder = self.folder(run)
        measured = all(self.measured(run, mode).is_file() for mode in run.modes)
        if self.changed(run):
            return State.FAILED if self.reason(run) else State.MISSING
        if self.trained(run) and measured:
            return State.FINISHED
        if self.reason(run):
            return State.FAILED
        if folder.resumable:
            return State.INTERRUPTED
        return State.MISSING

    def trained(self, run: PlannedRun) -> bool:
        """Return whether ``fedpfl run`` has succeeded: after the summary its export can still fail."""
        return self.folder(run).finished and bool(self.outcome(run).get("trained", True))

    def changed(self, run: PlannedRun) -> str:
        """Return in what a stored run is not of the files, modules and data of the plan; empty if in nothing."""
        folder = self.folder(run)
        if not folder.resumable or not (folder.path / "task.json").is_file():
            return ""
        task, files = folder.task(), run.identity.get("files", {})
        changes = changed(task.get("written_by", {}), run.identity)
        cure = "start it again"
        if task.get("data") != files.get("dataset", task.get("data")):
            changes.append("what the dataset gives")
            cure += "; a function that draws random numbers must seed them itself, as np.random.default_rng(1) does"
        return f"{have_changed(changes)} since the run was planned; {cure}" if changes else ""

    def outdated(self, run: PlannedRun) -> str:
        """Return why a run cannot start as it was planned: what it names has changed; empty if nothing has."""
        now = changed(run.identity, identity(run.settings, imported=False))
        return f"{have_changed(now)} since the run was planned; start it again" if now else ""

    def measure(self, run: PlannedRun, metric: str, clients: Collection[int] = ()) -> float | None:
        """Return a metric of a run; None where it is not finished or has no such number."""
        if self.state(run) is not State.FINISHED:
            return None
        return run_numbers.measure(metric, self.folder(run), self.cell(run), clients)

    def measured(self, run: PlannedRun, mode: str) -> Path:
        """Return the file with the result of ``fedpfl personalise`` in a mode."""
        return self.cell(run) / f"{run_numbers.NEW_CLIENTS}-{mode}.json"

    def reason(self, run: PlannedRun) -> str:
        """Return why the last attempt of a run failed; empty if it did not."""
        outcome = self.outcome(run)
        return "" if outcome.get("status") == "interrupted" else str(outcome.get("error") or "")

    def outcome(self, run: PlannedRun) -> Mapping[str, Any]:
        """Return the recorded outcome of a run's last attempt; empty if there is none."""
        path = self.cell(run) / "outcome.json"
        return read_json(path) if path.is_file() else {}

    def tried(self, run: PlannedRun) -> int:
        """Return when the outcome of a run's last attempt was stored, in nanoseconds; 0 if there is none."""
        path = self.cell(run) / "outcome.json"
        return path.stat().st_mtime_ns if path.is_file() else 0

    def prepare(self, run: PlannedRun) -> Path:
        """Write the file of settings that a run is started with, and prepare its folder for a try.

        Files of a try without a finished round are removed. If there are rounds, the summary is removed, and the run
        counts as interrupted until :meth:`note` stores how this try ends. A run that is still active, because its grid
        was killed, is not changed: this try will fail and say so.
        """
        folder, cell = self.folder(run), self.cell(run)
        private_folder(cell)
        with suppress(StateError), folder.exclusive() if folder.path.is_dir() else nullcontext():
            self._make_ready(run)
        places = {"output-dir": str(folder.path.parent), "state-dir": str(self.root / "state")}
        values = {**run.settings, **places, "run-name": run.name, "resume": False}
        path = cell / "settings.toml"
        write_atomically(path, to_toml(values).encode())
        return path

    def _make_ready(self, run: PlannedRun) -> None:
        folder = self.folder(run).path
        if folder.is_dir() and (not self.folder(run).resumable or self.changed(run)):
            with suppress(FedpflError):  # the next try has clients' state of its own
                self._remove_state(run)
            shutil.rmtree(folder)
        if self.trained(run):
            (self.cell(run) / "outcome.json").unlink(missing_ok=True)
        else:
            (folder / "summary.md").unlink(missing_ok=True)  # or it would count as finished, and not be resumed
            # So that it does not count as finished either if this process dies before it can note how this attempt
            # ends.
            self.note(run, {"status": "interrupted", "error": "interrupted", "trained": False})

    def note(self, run: PlannedRun, outcome: Mapping[str, Any]) -> None:
        """Store the outcome of an attempt."""
        private_folder(self.cell(run))
        write_atomically(self.cell(run) / "outcome.json", (json.dumps(outcome) + "\n").encode())

    def discard_models(self, run: PlannedRun) -> None:
        """Remove a run's personalised models and its clients' state; its numbers stay."""
        folder = self.folder(run)
        shutil.rmtree(folder.path / "personal", ignore_errors=True)
        self._remove_state(run)

    def _remove_state(self, run: PlannedRun) -> None:
        key = str(self.folder(run).task()["state_key"])
        shutil.rmtree(run_state(self.root / "state", key), ignore_errors=True)


def require_files(runs: Iterable[PlannedRun]) -> None:
    """Raise :class:`ConfigError` for files and folders that runs need and that are not here; it names all of them."""
    named = ((run, places(run.settings, tagged("file"))) for run in runs if not run.generate)
    missing = {place: key for run, files in named for key, place in files.items() if not Path(place).exists()}
    if missing:
        (first, key), *others = missing.items()
        more = "".join(f"; {key} = {place!r}: nor this one" for place, key in others)
        raise ConfigError(key, first, f"no such file or folder{more}")


def have_changed(changes: Sequence[str]) -> str:
    """Return the beginning of a sentence about what has changed."""
    return f"{' and '.join(changes)} {'have' if len(changes) > 1 else 'has'} changed"


def find_stored(run: str, root: Path) -> RunFolder:
    """Find a run by its folder's path or by its name in a folder of runs or among those of sweeps and experiments."""
    of_grid = Path(DEFAULT_ROOT).expanduser() / "runs" / run
    try:
        return find_run(run, root)
    except ConfigError:
        if not (of_grid / "config.toml").is_file():
            raise
        return find_run(str(of_grid), root)
