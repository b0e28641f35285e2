"""What the live page is told of runs, read from their folders; nothing is written there.

The list of runs needs no torch. The document of those that are shown is the same as that of their report.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ...bench.mqtt.events import state_of
from ...core.checksummed_files import read_toml
from ...core.errors import ConfigError, DamagedFile, FedpflError, printable
from ...core.metrics import score_in_words
from ...results.file_cache import Version, latest

# The newest ones are listed.
MAX_RUNS = 500
# So many of them are shown together, and so many documents are kept for several readers.
MAX_SHOWN, MAX_MADE = 20, 8
# After a document has been made, so many times as long none is: a fifth of one processor is the most that a page takes.
PAUSE = 4
# Of a run's folder, what its document follows from.
FILES = ("config.toml", "task.json", "metrics.jsonl", "summary.md", "failed.txt")
# Of a run's settings, those that the list of runs shows.
LISTED = ("method", "dataset", "model", "seed", "num-server-rounds")
# What a file raises whose values are of other types than they were written with.
_UNFIT = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


def list_runs(root: Path) -> list[dict[str, Any]]:
    """Return the newest runs of a folder, the newest first.

    Each has ``name``, ``state``, its ``round``, its last ``personalised`` score, also as a text, and some of its
    settings. A run whose files are damaged has ``error`` instead.
    """
    versions = {path.parent: Version.of(path) for path in root.glob("*/config.toml")}
    newest = sorted(versions, key=lambda folder: versions[folder].changed, reverse=True)[:MAX_RUNS]
    return [_listed(folder, versions[folder]) for folder in newest]


@contextmanager
def _as_written(path: Path) -> Iterator[None]:
    """Raise :class:`DamagedFile` for what a run's files hold that cannot be told."""
    try:
        yield
    except _UNFIT as error:
        raise DamagedFile(path, printable(f"{type(error).__name__}: {error}")) from error


class Pages:
    """What a page shows of runs of a folder, made again when their files have changed.

    That takes a small part of one processor's time: the runs have the rest.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._lock, self._made = root, threading.Lock(), dict[tuple[str, ...], _BuiltPage]()
        self.is_last = False  # whether what is asked for now will not be asked for again
        self.current = -math.inf  # when an answer was begun that told all, by time.monotonic

    def tell(self, names: Sequence[str], since: str) -> dict[str, Any]:
        """Return the document of runs and its ``version``, or the version alone if it is ``since``.

        Raises :class:`ConfigError` for a run that is not in the folder, and :class:`DamagedFile` for one whose files
        are not as they were written.
        """
        folders = [self._folder(name) for name in dict.fromkeys(names)][:MAX_SHOWN]
        key = tuple(folder.name for folder in folders)
        with self._lock:  # matplotlib draws one figure at a time
            begun, now, made = time.monotonic(), _version(folders), self._made.pop(key, _NOTHING)
            if made.version != now and (self.is_last or begun > made.moment + PAUSE * made.seconds):
                made = _made(now, folders, self.is_last)
            self._made[key] = made
            for old in [*self._made][:-MAX_MADE]:
                del self._made[old]
            if made.version == now:
                self.current = begun
        return {"version": made.version, **({} if made.version == since else {"document": made.document})}

    def _folder(self, name: str) -> Path:
        # A name may be anything that somebody asked for, also a path.
        if name not in (path.parent.name for path in self._root.glob("*/config.toml")):
            raise ConfigError("run", printable(name), f"there is no such run in {self._root}")
        return self._root / name


class _BuiltPage(NamedTuple):
    version: str
    document: Mapping[str, Any]
    moment: float
    seconds: float


_NOTHING = _BuiltPage("", {}, -math.inf, 0.0)


def _version(folders: Sequence[Path]) -> str:
    """Return a value that differs where a run's files or its state do."""
    files = [[*map(Version.of, map(folder.joinpath, FILES)), state_of(folder)] for folder in folders]
    return hashlib.sha256(repr(files).encode()).hexdigest()[:16]


def _made(version: str, folders: Sequence[Path], in_a_hurry: bool) -> _BuiltPage:
    """Make a document: with analyses, which need torch, if no run is running and there is time."""
    from ...results.run_folder import RunFolder
    from ..report import Snapshot, document, progress, sections

    begun = time.monotonic()
    runs = [Snapshot.of(RunFolder(folder)) for folder in folders]
    with _as_written(folders[0].parent):
        going_on = any(run.state["state"] == "running" for run in runs)
        parts, labels = sections(runs, analysed=not going_on and not in_a_hurry)
        page = document(", ".join(folder.name for folder in folders), parts, labels, progress(runs))
        json.dumps(page, allow_nan=False)
    ended = time.monotonic()
    return _BuiltPage(version, page, ended, ended - begun)


def _listed(folder: Path, config: Version) -> dict[str, Any]:
    metrics = folder / "metrics.jsonl"
    try:
        folder.name.encode()  # a name may be no text
        settings = _settings(folder / "config.toml", config)
        listed = {key: value for key, value in settings.items() if key in LISTED}
        number, score = _last(metrics, Version.of(metrics))
        accuracy = score_in_words(score, str(settings.get("loss", "")), 1)
        state = state_of(folder)
        return {"name": folder.name, **listed, "round": number, "personalised": score, "score": accuracy, **state}
    except (FedpflError, OSError, UnicodeEncodeError) as error:
        name, reason = (text.encode("utf-8", "replace").decode() for text in (folder.name, str(error)))
        return {"name": name, "state": "unreadable", "error": reason}


@lru_cache(MAX_RUNS)  # each version of a file is read once
def _settings(path: Path, version: Version) -> dict[str, Any]:
    with _as_written(path):
        values = read_toml(path)
        json.dumps(values, allow_nan=False)  # NaN, dates
        for key in LISTED:
            if isinstance(values.get(key), (dict, list)):
                raise TypeError(f"{key} is no text or number")
        return values


@lru_cache(MAX_RUNS)
def _last(path: Path, version: Version) -> tuple[int, float | None]:
    """Return the number of the last round, and the personalised score of the last test."""
    with _as_written(path):
        number, score = latest(path)
        return number, _finite(score)


def _finite(value: float | None) -> float | None:
    # JSON has no other numbers; the loss of a run that diverged is none.
    return value if value is not None and math.isfinite(value) else None
