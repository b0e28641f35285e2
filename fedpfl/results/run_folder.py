"""The folder of a run: settings, metrics, checkpoints, final weights (docs/reference/run-folder.md lists its files).

Only the user may enter the folder. Everything that a resumed run reads carries a checksum
(``core/checksummed_files.py``).
"""

from __future__ import annotations

import io
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..core import code_hash, references
from ..core.checksummed_files import (
    MAX_JSON,
    Stored,
    from_json_line,
    json_line,
    read_arrays,
    read_toml,
    to_toml,
    write_arrays,
    write_toml,
)
from ..core.errors import ConfigError, DamagedFile, StateError, did_you_mean, printable, uncontrolled
from ..core.files import locked, naming, private_folder, read_regular, write_atomically
from ..core.metrics import ACCURACY
from ..core.name_lists import client_in, in_short
from ..rules import Rule
from ..setup.config import Config
from ..version import __version__
from .history import History
from .round_line import summarise
from .round_record import Round

# A crash while the newest checkpoint is read or judged damaged leaves one more.
KEPT_CHECKPOINTS = 2
GLOBAL, PERSONALISED = "global.safetensors", "personalised.jsonl"
_CHECKPOINT = re.compile(r"round-(\d{6,})\.safetensors")


class RunFolder:
    """Reads and writes the folder of one run."""

    def __init__(self, path: Path, row: str = "", column: str = "", cache: Path | None = None) -> None:
        self.path, self.row, self.column, self.cache = Path(path), row, column, cache
        self._curves: Any = None

    # -- writing -----------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, config: Config) -> RunFolder:
        """Make the folder of a new run."""
        root = Path(config.run.output_dir).expanduser()
        name = (
            config.run.run_name
            or f"{time.strftime('%Y%m%d-%H%M%S')}-{config.method.name}-{references.short_name(config.data.dataset)}"
        )
        path, tries = root / name, 1
        while True:
            try:
                private_folder(path)
                # Whoever has the lock first makes the run; what a killed process has begun is made again.
                with suppress(BlockingIOError), locked(path / ".lock", wait=False):
                    if cls(path).is_free():
                        return cls(path)._begun(config)
            except OSError as error:
                raise ConfigError("output-dir", str(root), f"cannot be written ({error.strerror})") from error
            if config.run.run_name:
                raise cls(path).taken()
            tries += 1  # two unnamed runs within one second
            path = root / f"{name}-{tries}"

    def is_free(self) -> bool:
        """Tell whether the folder has nothing but what a run writes before its settings."""
        if not self.path.is_dir():
            return not self.path.exists()
        return {path.name for path in self.path.rglob("*") if path.name[0] != "."} <= {"task.json", "checkpoint"}

    def _begun(self, config: Config) -> RunFolder:
        self.path.chmod(0o700)  # it may have been there
        # The name may have been used before, by a run that was deleted: its clients' arrays must not come back.
        key = f"{self.path.name}-{secrets.token_hex(4)}"
        self._write_task({"state_key": key, "method": config.method.name, "written_by": writer(config)})
        private_folder(self.path / "checkpoint")
        self._write_config(config)  # the last, because it makes this a run
        return self

    def taken(self) -> ConfigError:
        """Return why no new run can have this folder, and what to do."""
        how = f"choose another, or resume it: --resume {self.path.name}"
        if (self.path / "config.toml").is_file() and not self.resumable:
            how = f"it has no finished round; choose another, or remove it: fedpfl clean {self.path.name} --remove"
        return ConfigError("run-name", self.path.name, f"a run of this name is in {self.path.parent}; {how}")

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keep other processes from resuming this run meanwhile."""
        for last in (False, True):
            try:
                lock = locked(self.path / ".lock", wait=False)
                break
            except BlockingIOError:
                if last:
                    message = "the run is active in another process; wait for it, or end it"
                    raise StateError(f"{self.path}: {message}") from None
                time.sleep(0.1)  # the bridge holds it for a moment when it looks whether the run goes on
        with lock:
            yield

    def describe(
        self,
        input_shape: tuple[int, ...],
        classes: Sequence[int],
        remarks: Sequence[str] = (),
        vocabulary: int = 0,
        division: int | None = None,
        identities: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """Write what the model was built for, so that it can be built again without the data; and the remarks on it.

        ``division`` is the checksum of how common data are divided, None where a client has data of its own.
        """
        described = {
            "vocabulary": vocabulary, "division": division, "remarks": list(remarks), "identities": identities or {},
            **more,
        }  # fmt: skip
        self.note(**task_of(input_shape, classes), **described)

    @property
    def model_name(self) -> str:
        """The name of the model; before the clients have agreed on a task, the setting."""
        return str(self.task().get("model") or self.config()["model"])

    def note(self, **more: Any) -> None:
        """Store more of what :meth:`task` returns."""
        self._write_task({**self.task(), **more})

    def client_number(self, client: int | str) -> int:
        """Return the number of a client: an int is it, and a text is read by :func:`.names.client_in`."""
        if not isinstance(client, str):
            return int(client)
        names = [*self.task().get("client_names", ())]
        number = client_in(client, names)
        if number is None:
            hint = did_you_mean(client, [printable(name, 40) for name in names])
            if names and not hint:
                hint = f"; they are {in_short(names)}"
            if names and client.isdecimal():
                hint = f"; they are {in_short(names)}, and #{client} is the one with the number {client}"
            raise ConfigError("client", client, f"run {self.path.name} has no client of this name{hint}")
        return number

    def fail(self, reason: str) -> None:
        """Write why the run failed into its folder."""
        with suppress(OSError):  # the reason may well be the same: a full disk
            write_atomically(self.path / "failed.txt", f"{uncontrolled(reason)}\n".encode())

    def record(self, done: Round, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Store a round: its metrics first, then the checkpoint that makes it count; return its line of metrics."""
        line = summarise(done)
        for name, array in done.arrays.items():
            self._write_array(name, done.number, array)
        with naming(path := self.path / "metrics.jsonl"), path.open("a", encoding="utf-8") as file:
            file.write(json_line(line))
            file.flush()
            os.fsync(file.fileno())  # as the checkpoint is: a loss of power must not leave it without its line
        write_arrays(self.path / "checkpoint" / f"round-{done.number:06d}.safetensors", state)
        for old in self._checkpoints()[:-KEPT_CHECKPOINTS]:
            old[1].unlink()
        if self._curves is None:
            from fedpfl.results.curves import Curves

            self._curves = Curves(self.path)
        self._curves.add(line)
        return line

    def finish(self, rule: Rule, text: str) -> None:
        """Write the final weights, and the summary's text."""
        if rule.one_model:
            received = rule.layout.unpack(rule.layout.pack(rule.shared, rule.federation.wire_dtype))
            write_arrays(self.path / GLOBAL, rule.layout.unflatten(received))
        write_atomically(self.path / "summary.md", text.encode())
        if self._curves is not None:
            self._curves.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    def config(self) -> Stored:
        """Return the stored settings."""
        path = self.path / "config.toml"
        try:
            from .file_cache import kept

            return Stored(path, kept(path, read_toml).items())
        except FileNotFoundError:
            raise ConfigError("run", str(self.path), "is not the folder of a run (it has no config.toml)") from None
        except OSError as error:
            raise StateError(f"{path}: cannot be read ({error.strerror})") from error

    def parsed(self) -> Config:
        """Return the settings."""
        return Config.parse(self.config())

    def described(self) -> Stored:
        """Return :meth:`task` of a run whose clients are found."""
        task = self.task()
        if "clients" not in task:
            raise StateError(f"{self.path}: the run has not reached its first round")
        return task

    def task(self) -> Stored:
        """Return ``state_key`` and, once the clients are found, what they have to learn; see :meth:`describe`.

        If clients have different numbers of classes, these are ``classes_of_clients`` and the largest is
        ``num_classes``.
        """
        from .file_cache import kept

        path = self.path / "task.json"
        try:
            content = kept(path, lambda _: from_json_line(read_regular(path, MAX_JSON), path, "state_key"))
        except OSError as error:
            raise StateError(f"{path}: cannot be read ({error.strerror})") from error
        version = str(content.get("written_by", {}).get("fedpfl", ""))
        if is_newer(version):
            raise StateError(
                f"{self.path}: it was written by fedpfl {version}, which is newer than this ({__version__})"
            )
        return Stored(path, content.items())

    def metrics(self) -> list[Stored]:
        """Return the recorded rounds; a last line that a crash cut short does not count."""
        return self._rounds()

    def history(self) -> History:
        """Return the recorded rounds, whose lines stay as they are: they may be kept for the next call."""
        from .file_cache import kept

        path = self.path / "metrics.jsonl"
        # Before the lines are read: a run that goes on writes a round's line first.
        last = max((number for number, _ in self._checkpoints()), default=0) if self.finished else 0
        lines = kept(path, lambda _: self.metrics())
        if len(lines) < last:
            raise DamagedFile(path, f"it has {len(lines)} of {last} rounds")
        chooses = any("validation" in line for line in lines)
        return History(lines, str(self.config().get("choose-by", ACCURACY)) if chooses else ACCURACY)

    def stalled(self, patience: int) -> bool:
        """Return :meth:`History.stalled`, without reading the rounds if there is no patience (0: never)."""
        return patience > 0 and self.history().stalled(patience)

    @property
    def method(self) -> str:
        """The method's own name, without its code."""
        named = str(self.config()["method"])
        return str(self.task().get("method", named)) if references.is_custom("method", named) else named

    @property
    def finished(self) -> bool:
        """Tell whether the run has written its results."""
        return (self.path / "summary.md").is_file()

    @property
    def resumable(self) -> bool:
        """Tell whether there is a checkpoint from which the run can be resumed."""
        return bool(self._checkpoints())

    def checkpoint(self) -> tuple[int, Stored]:
        """Return (round, the state of rule and listeners after it) of the newest checkpoint."""
        stored = self._checkpoints()
        if not stored:
            raise StateError(f"{self.path}: no round was finished")
        return stored[-1][0], read_arrays(stored[-1][1])

    def _lines(self) -> list[bytes]:
        path = self.path / "metrics.jsonl"
        return io.BytesIO(path.read_bytes()).readlines() if path.is_file() else []

    def _rounds(self, last: int | None = None) -> list[Stored]:
        """Return the lines of all recorded rounds, or of those up to ``last``, each of which has to be there."""
        path, rounds = self.path / "metrics.jsonl", list[Stored]()
        for line in self._lines()[:last]:
            if not line.endswith(b"\n"):  # a crash cut it short
                break
            try:
                rounds.append(from_json_line(line, path, "round"))
            except DamagedFile as error:
                raise DamagedFile(path, f"line {len(rounds) + 1}{error.more and f': {error.more}'}") from error
            if rounds[-1]["round"] != len(rounds):
                raise DamagedFile(path, f"line {len(rounds)} is of round {rounds[-1]['round']}")
        if last is not None and len(rounds) < last:
            raise DamagedFile(path, f"it has {len(rounds)} of {last} rounds")
        return rounds

    def _write_array(self, name: str, number: int, array: np.ndarray) -> None:
        path = self.path / "arrays" / name / f"round-{number:06d}.npy"
        private_folder(path.parent)
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        write_atomically(path, content.getvalue())

    def _write_config(self, config: Config) -> None:
        values = {**config.flat(), "run-name": "", "resume": False}
        write_toml(self.path / "config.toml", to_toml(values))

    def _write_task(self, task: Mapping[str, Any]) -> None:
        write_atomically(self.path / "task.json", json_line(task).encode(), private=True)

    def _checkpoints(self) -> list[tuple[int, Path]]:
        folder = self.path / "checkpoint"
        if not folder.is_dir():
            return []
        matches = ((_CHECKPOINT.fullmatch(path.name), path) for path in folder.iterdir())
        return sorted((int(match.group(1)), path) for match, path in matches if match)


def writer(config: Config) -> dict[str, Any]:
    """Return the version and hash of the code that writes a run, and hashes of the files that its settings name."""
    from .identity import identity

    return {"fedpfl": __version__, "code": code_hash.of_package(), **identity(config.flat())}


def is_newer(version: str) -> bool:
    """Tell whether a version is newer than this one."""
    theirs, ours = (tuple(map(int, re.findall(r"\d{1,9}", text)[:3])) for text in (version, __version__))
    return theirs > ours


def find_run(run: str, root: Path) -> RunFolder:
    """Find a run by its folder's path or by its name in a folder of runs."""
    root = root.expanduser()
    for path in (Path(run).expanduser(), root / run):
        if (path / "config.toml").is_file():
            return RunFolder(path.resolve())
    raise ConfigError("run", run, f"there is no such run in {root}, and no run's folder at this path")


def task_of(input_shape: tuple[int, ...], classes: Sequence[int]) -> dict[str, Any]:
    """Return the facts that a run stores of its task."""
    task = {"input_shape": list(input_shape), "num_classes": max(classes), "clients": len(classes)}
    return task if len(set(classes)) == 1 else {**task, "classes_of_clients": list(classes)}
