"""What the live page is told of runs, read from their folders; nothing is written there, and torch is not needed."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import ConfigError, FedpflError
from ..core.stored import from_json_line, read_toml
from ..mqtt.events import state_of
from ..results.history import WORST_TENTH, History

# The newest ones are listed.
MAX_RUNS = 500
# Of metrics.jsonl, for one answer; the page asks again for the rest. A longer line is read whole.
MAX_CHUNK = 2**21
# The last line of a run is looked for in so many bytes, then in twice as many.
TAIL = 2**16
# Each has a row in the page.
MAX_CLIENTS = 1000

CURVES = {
    "personalised": "personalised.accuracy", "worst": f"personalised.{WORST_TENTH}", "global": "global.accuracy",
    "loss": "train_loss", "up": "bytes_up", "down": "bytes_down", "seconds": "seconds",
}  # fmt: skip
# Of a run's settings, those that the list of runs shows.
LISTED = ("method", "dataset", "model", "seed", "num-server-rounds")


class _Version(NamedTuple):
    """What differs between a file and what replaces or extends it."""

    inode: int
    changed: int
    size: int

    @classmethod
    def of(cls, path: Path) -> _Version:
        try:
            found = path.stat()
        except FileNotFoundError:
            return cls(0, 0, 0)
        return cls(found.st_ino, found.st_mtime_ns, found.st_size)


def list_runs(root: Path) -> list[dict[str, Any]]:
    """Return the newest runs of a folder, the newest first.

    Each has ``name``, ``state``, its ``round``, its last ``personalised`` accuracy and some of its settings. A run
    whose files are damaged has ``error`` instead.
    """
    found = {path.parent: _Version.of(path) for path in root.glob("*/config.toml")}
    newest = sorted(found, key=lambda folder: found[folder].changed, reverse=True)[:MAX_RUNS]
    return [_listed(folder, found[folder]) for folder in newest]


def read_run(root: Path, name: str, since: str = "") -> dict[str, Any]:
    """Return what a run has recorded since an earlier answer.

    Parameters
    ----------
    root : Path
        Folder of runs.
    name : str
        Name of the run.
    since : str
        What the earlier answer gave as ``since``; empty for all rounds.

    Returns
    -------
    dict
        ``state`` (with ``error`` if it failed), ``rounds`` with a list for each of ``CURVES``, ``each`` with the
        clients' accuracies and ``trained`` with the clients that trained, by round, ``failed`` as (round, client,
        reason), ``since`` for the next call, and whether there may be ``more`` already. Where it begins with round 1,
        ``about`` has settings, clients and remarks.

    Raises
    ------
    ConfigError
        There is no such run.
    DamagedFile
        A line is not as it was written.
    """
    folder = root / name
    # A name may be anything that somebody asked for, also a path.
    if name not in (path.parent.name for path in root.glob("*/config.toml")):
        raise ConfigError("run", name, f"there is no such run in {root}")
    path = folder / "metrics.jsonl"
    lines, begins, after, more = _new_lines(path, since)
    history = History([from_json_line(line, path, "round") for line in lines])
    rounds = [line["round"] for line in history.lines]
    curves = {curve: history.curve(number) for curve, number in CURVES.items()}
    tests = history.tests()
    return {
        **state_of(folder),
        "rounds": rounds,
        **{curve: [_finite(values.get(number)) for number in rounds] for curve, values in curves.items()},
        "each": [_by_client(tests.get(number, {})) for number in rounds],
        "trained": [[client for client in line["clients"] if client < MAX_CLIENTS] for line in history.lines],
        "failed": [found for found in history.failures() if found[1] < MAX_CLIENTS],
        "since": after,
        "more": more,
        **({"about": _about(folder)} if begins else {}),
    }


def _listed(folder: Path, config: _Version) -> dict[str, Any]:
    try:
        settings = _settings(folder / "config.toml", config)
        metrics = folder / "metrics.jsonl"
        number, accuracy = _last(metrics, _Version.of(metrics))
        told = {key: settings.get(key) for key in LISTED}
        return {"name": folder.name, **told, "round": number, "personalised": accuracy, **state_of(folder)}
    except (FedpflError, OSError, ValueError) as error:
        return {"name": folder.name, "state": "unreadable", "error": str(error)}


@lru_cache(MAX_RUNS)
def _settings(path: Path, version: _Version) -> dict[str, Any]:
    return tomllib.loads(read_toml(path))


@lru_cache(MAX_RUNS)
def _last(path: Path, version: _Version) -> tuple[int, float | None]:
    """Return the number and the personalised accuracy of the last round."""
    lines, tail, start = list[bytes](), TAIL, version.size
    # The first of the lines may be cut.
    while len(lines) < 2 and start > 0:
        start = max(0, version.size - tail)
        with path.open("rb") as file:
            file.seek(start)
            lines, tail = file.read().rpartition(b"\n")[0].splitlines(), 2 * tail
    if not lines:
        return 0, None
    history = History([from_json_line(lines[-1], path, "round")])
    return history.last_round, history.last("personalised.accuracy")


def _new_lines(path: Path, since: str) -> tuple[list[bytes], bool, str, bool]:
    """Return the lines after ``since``, whether that is the beginning, the next ``since``, and whether more may follow.

    A resumed run writes the file again without the rounds after its checkpoint: then it is read from its beginning.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return [], True, "", False
    with file:
        found = _Version.of(path)
        inode, _, offset = since.partition("-")
        at = int(offset) if inode == str(found.inode) and offset.isdecimal() and int(offset) <= found.size else 0
        file.seek(at)
        chunk = file.read(MAX_CHUNK)
        if b"\n" not in chunk:
            chunk += file.readline()
    complete = chunk[: chunk.rfind(b"\n") + 1]
    after = at + len(complete)
    return complete.splitlines(), at == 0, f"{found.inode}-{after}", bool(complete) and len(chunk) >= MAX_CHUNK


def _about(folder: Path) -> dict[str, Any]:
    path = folder / "task.json"
    task: Mapping[str, Any]
    try:
        task = from_json_line(path.read_bytes(), path, "state_key")
    except FileNotFoundError:  # its folder was made a moment ago
        task = {}
    config = folder / "config.toml"
    settings = _settings(config, _Version.of(config))
    # Clients that number their classes themselves have other names for them.
    own = "classes_of_clients" in task or settings.get("permute-labels")
    return {
        "settings": settings,
        "clients": task.get("clients"),
        "samples": task.get("samples", [])[:MAX_CLIENTS],
        "names": task.get("client_names", [])[:MAX_CLIENTS],
        "counts": task.get("class_counts", [])[:MAX_CLIENTS],
        "classes": [] if own else task.get("class_names", []),
        "remarks": task.get("remarks", []),
    }


def _by_client(accuracies: dict[str, float]) -> list[float | None]:
    """Return accuracies by client number, None where a client was not tested."""
    shown = [client for client in map(int, accuracies) if client < MAX_CLIENTS]
    return [_short(accuracies.get(str(client))) for client in range(max(shown, default=-1) + 1)]


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def _finite(value: float | None) -> float | None:
    # JSON has no other numbers; the loss of a run that diverged is none.
    return value if value is not None and math.isfinite(value) else None
