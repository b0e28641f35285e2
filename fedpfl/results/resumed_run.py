"""The folder of a run that goes on: it is resumed, or serves clients after its end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..client.state import ClientState, run_state
from ..core import code_hash
from ..core.checksummed_files import Stored, from_json_line, json_line, read_arrays, write_arrays
from ..core.errors import ConfigError, DamagedFile, DataError, FedpflError, StateError, printable
from ..core.files import open_regular, private_folder, write_atomically
from ..core.name_lists import in_short, other_than
from ..setup.all_settings import tagged
from ..setup.config import Config
from ..version import __version__
from .identity import OF_DATA, changed, contents, identity
from .run_folder import (
    GLOBAL,
    KEPT_CHECKPOINTS,
    PERSONALISED,
    RunFolder,
    task_of,
    writer,
)

BEST = "best"


class ResumedRun(RunFolder):
    """The folder of a run, with what is asked of it before it goes on."""

    @classmethod
    def reopen(cls, config: Config, more_clients: bool = False) -> ResumedRun:
        """Open the folder of a run that is resumed; ``more_clients``: it may have more of them than it had."""
        folder = cls(Path(config.run.output_dir).expanduser() / config.run.run_name)
        written_by = folder.task().get("written_by", {})
        # A setting that is younger than the run counts as its default.
        stored = {**type(config).parse({"method": config.run.method}).flat(), **folder.config()}
        same = dict(config.flat())
        if same["method"] != stored["method"]:
            how = "`fedpfl run --resume`, and on a testbed `fedpfl resume`, take all of its settings"
            raise ConfigError("method", same["method"], f"the run to resume used {stored['method']!r}; {how}")
        for key in sorted(stored.keys() - same.keys()):
            raise ConfigError(key, stored[key], f"{folder.path / 'config.toml'} has it, and there is no such setting")
        joined = more_clients and same["num-clients"] > stored["num-clients"]
        if joined or 0 in (stored["num-clients"], same["num-clients"]):  # as many as there are nodes: see require_task
            del same["num-clients"]
        for key, value in same.items():
            if key not in tagged("free") and stored[key] != value:
                raise ConfigError(key, value, f"the run to resume used {stored[key]!r}")
        had, has = written_by.get("files", {}), contents(same)
        # Clients' samples have a hash of their own (see require_unchanged_samples).
        for key in sorted((had.keys() & has.keys()) - OF_DATA):
            if had[key] != has[key]:
                raise ConfigError(key, same.get(key, ""), "its content has changed since the run to resume began")
        if not more_clients:
            folder._require_alone(stored["output-dir"], config.run.state_dir)
        if not folder.resumable:
            rounds = len(folder.metrics())
            what = f"it recorded {rounds} rounds, but checkpoint/ is empty" if rounds else "no round was finished"
            raise StateError(f"{folder.path}: {what}, so there is nothing to resume")
        return folder

    def _require_alone(self, output_dir: str, state_dir: str) -> None:
        """Refuse a copy of a run that is still there: both would write the same clients' arrays in ``state-dir``.

        A run's key begins with its first name, and ``output_dir`` is where it was made.
        """
        key = str(self.task()["state_key"])
        first = RunFolder(Path(output_dir).expanduser() / key.rpartition("-")[0])
        if not run_state(state_dir, key).is_dir() or not (first.path / "config.toml").is_file():
            return
        if first.path.samefile(self.path) or first.task()["state_key"] != key:
            return
        if first.config()["state-dir"] == state_dir:
            message = (
                f"is a copy of {first.path}, whose clients' arrays in {state_dir} it would overwrite: resume that one"
            )
            raise ConfigError("run-name", self.path.name, message)

    @classmethod
    def copied(
        cls, path: Path, source: RunFolder, config: Config, last: int, state: Mapping[str, np.ndarray], lines: Path
    ) -> ResumedRun:
        """Write a run that ended with the newest round, ``last``, of another one; ``lines`` may have its first ones."""
        folder = cls(path)
        folder._write_config(config)
        folder._write_task(source.task())
        with open_regular(source.path / "metrics.jsonl") as all_lines, lines.open("ab") as file:
            all_lines.seek(file.tell())
            shutil.copyfileobj(all_lines, file)
            file.flush()
            os.fsync(file.fileno())
        lines.rename(path / "metrics.jsonl")
        private_folder(path / "checkpoint")
        write_arrays(path / "checkpoint" / f"round-{last:06d}.safetensors", state)
        return folder

    def add_identities(self, identities: Mapping[str, str], samples: Mapping[str, str] | None = None) -> None:
        """Store the nodes of clients that were absent before, and the hashes of samples of their own."""
        task, merged = self.task(), {}
        for key, new in (("identities", identities), ("data_of_clients", samples or {})):
            merged[key] = {**new, **task.get(key, {})}
        if added := {key: values for key, values in merged.items() if values != task.get(key, {})}:
            self._write_task({**task, **added})

    def let_in(self, clients: Sequence[int]) -> None:
        """Let other nodes have the numbers of clients, whose personal arrays are lost with their earlier nodes."""
        task = self.described()
        for client in clients:
            if not 0 <= client < task["clients"]:
                raise ConfigError("client", client, f"the clients of {self.path.name} are 0 … {task['clients'] - 1}")
        for _, path in self._checkpoints():
            with suppress(DamagedFile):  # from which no run is resumed
                state = read_arrays(path)
                counted = state["personal_round"].copy()
                counted[[*clients]] = 0
                write_arrays(path, {**state, "personal_round": counted})
        lost = {str(client) for client in clients}
        # The hash of a client's own samples has its node's secret in it.
        kept = {
            key: {client: value for client, value in task[key].items() if client not in lost}
            for key in ("identities", "data_of_clients") if key in task
        }  # fmt: skip
        self.note(**kept)

    def require_models(self, models: Mapping[int, str]) -> None:
        """Raise :class:`ConfigError` if a device of a resumed run has another model of its own than before."""
        before = self.task().get("models", {})
        for client, model in models.items():
            if model != (had := before.get(str(client), "")):
                message = f"client {client} had {had or 'the model of the settings'} in the run to resume"
                raise ConfigError("model", model, message)

    def require_task(
        self,
        input_shape: tuple[int, ...],
        classes: Sequence[int],
        division: int | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Raise :class:`ConfigError` if a resumed run has another task, or division of common data, than before."""
        before = self.task()
        for key, value in {"classes_of_clients": None, **task_of(input_shape, classes)}.items():
            if before.get(key) != value:
                raise ConfigError(key, value, f"the run to resume had {before.get(key)}{self._for_classes(key)}")
        names_before = before.get("names", {})
        had, have = ("names" if called.get("classes") else "numbers" for called in (names_before, names or {}))
        if names is not None and had != have:
            raise DataError(f"the classes of the data have {have}, and those of the run to resume had {had}")
        for key, text in (names or {}).items():
            if text != (had := names_before.get(key, text)):
                told = other_than(text, had) if key == "columns" else "other names, or another order"
                raise DataError(f"the {key} of the data are not those of the run to resume; {told}")
        # Unknown of runs that are older than it, and where a device has data of its own.
        division_before = before.get("division")
        if None not in (division, division_before) and division != division_before:
            why = "clients would get other samples (have the data changed, or NumPy?)"
            raise ConfigError("division", division, f"the run to resume had {division_before}: {why}")

    def require_unchanged_samples(self, hashes: Mapping[int, str]) -> None:
        """Raise :class:`DataError` if clients of a resumed run have other samples than before, by their hashes."""
        common, each = self.task().get("data"), self.task().get("data_of_clients", {})
        other = [client for client, now in hashes.items() if now and now != (each.get(str(client)) or common or now)]
        if other:
            whose = "" if len(other) == len(hashes) else f" of clients {in_short([*map(str, other)])}"
            remedy = "start a new run with them, from this one's shared arrays with initial-weights"
            raise DataError(f"the samples{whose} are not those of the run to resume, which has their hash: {remedy}")

    def _for_classes(self, key: str) -> str:
        """Return advice where the data have another number of classes; empty for other keys."""
        names = ",".join(self.task().get("class_names", ()))
        how = f'class-names = "{printable(names, 200)}"' if names else f"num-classes = {self.task()['num_classes']}"
        return f"; if the data lack samples of some: {how}" if key == "num_classes" else ""

    def mark_resumed(self, config: Config) -> None:
        """Record that the run is resumed with these settings; its earlier outcome no longer holds."""
        self._write_config(config)
        self._write_task({**self.task(), "written_by": writer(config)})  # from now on with a checksum
        for name in ("summary.md", "failed.txt"):
            (self.path / name).unlink(missing_ok=True)

    def note_personalised(self, about: Mapping[str, Any]) -> None:
        """Append to ``personalised.jsonl`` what became of clients after the run's end."""
        path = self.path / PERSONALISED
        before = path.read_bytes() if path.is_file() else b""
        write_atomically(path, before + json_line({"round": self.history().last_round, **about}).encode())

    def changes(self) -> list[str]:
        """Tell in what this program differs from the one that wrote the run: settings, version, code."""
        try:
            values, by = self.config(), self.task().get("written_by", {})
        except StateError as error:
            return [str(error)]
        version, code = (str(by.get(key, "")) for key in ("fedpfl", "code"))
        differences = []
        if code not in ("", code_hash.of_package()):
            differences = [
                f"fedpfl's code has changed since (it was {version}, this is {__version__}): results may differ"
            ]
        try:
            settings = Config.parse(values).flat()
            differences += [f"{what} has changed since" for what in changed(by, identity(settings))]
        except FedpflError as error:
            return [*differences, f"its settings cannot be checked here: {error}"]
        for key in sorted(values.keys() - settings.keys()):
            differences.append(f"config.toml has {key} = {values[key]!r:.100}, and there is no such setting")
        return differences

    def personalised(self) -> Stored:
        """Return the last line that :meth:`note_personalised` wrote."""
        path = self.path / PERSONALISED
        try:
            return from_json_line(path.read_bytes().splitlines(keepends=True)[-1], path, "round")
        except (OSError, IndexError) as error:
            raise StateError(f"{path}: cannot be read ({error})") from error

    def last_intact(self, state_dir: str) -> tuple[int, Stored, list[str]]:
        """Return (round, state after it, remarks) of the newest checkpoint from which the run can be resumed.

        All lines up to it and the clients' arrays of it are intact, too. Clients keep the arrays of two checkpoints.
        """
        task, damaged = self.task(), dict[str, int]()
        for number, path in reversed(self._checkpoints()[-KEPT_CHECKPOINTS:]):
            try:
                state = self._intact_state(number, path, state_dir, task)
            except DamagedFile as error:
                damaged[str(error)] = number
            else:
                return (
                    number,
                    state,
                    [f"{reason}; round {repeated} is repeated" for reason, repeated in damaged.items()],
                )
        what = "put a copy in its place or start another run; without a client's file this client alone fails"
        raise StateError(f"{'; '.join(damaged)}; no earlier round to resume from is stored: {what}")

    def is_intact(self, state_dir: str) -> bool:
        """Tell whether all files of the newest checkpoint are as they were written; see :meth:`last_intact`."""
        try:
            for number, path in self._checkpoints()[-1:]:
                self._intact_state(number, path, state_dir, self.task())
            if (self.path / GLOBAL).is_file():
                read_arrays(self.path / GLOBAL)
        except DamagedFile:
            return False
        return True

    def _intact_state(self, number: int, path: Path, state_dir: str, task: Mapping[str, Any]) -> Stored:
        state = read_arrays(path)
        self._rounds(number)
        for client, trained in enumerate(state["personal_round"].tolist()):
            ClientState(state_dir, task["state_key"], client).require_intact(trained)
        return state

    def drop_after(self, last: int) -> None:
        """Drop what was stored after round ``last``, that of the checkpoint from which the run is resumed."""
        for number, path in self._checkpoints():
            if number > last:
                path.unlink()
        write_atomically(self.path / "metrics.jsonl", b"".join(self._lines()[:last]))


def best_of(folder: RunFolder) -> RunFolder:
    """Return the run that ended with the round that is best on the validation samples."""
    best = RunFolder(folder.path / BEST)
    if not (best.path / "config.toml").is_file():
        needed = "validation samples (validation-fraction) for which choose-by is defined, and test-at = end"
        message = f"has no best round, whose models are kept with {needed}"
        raise ConfigError("round", folder.path.name, message)
    return best
