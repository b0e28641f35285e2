"""What the live page is told of runs, read from their folders; nothing is written there, and torch is not needed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from ...bench.mqtt.events import state_of
from ...core.errors import ConfigError, DamagedFile, FedpflError, printable
from ...core.files import open_regular, read_regular
from ...core.stored import from_json_line, read_toml
from ...results.history import WORST_TENTH, History
from ...results.latest import Version, last_lines
from ...results.same_clients import clients_key

# The newest ones are listed.
MAX_RUNS = 500
# Of metrics.jsonl, for one answer; the page asks again for the rest. A longer line is read whole.
MAX_CHUNK = 2**21
# Of a line, or of the description of a task.
MAX_BYTES = 2**25
# Each has a row in the page.
MAX_CLIENTS = 1000

CURVES = {
    "personalised": "personalised.accuracy", "worst": f"personalised.{WORST_TENTH}", "global": "global.accuracy",
    "loss": "train_loss", "up": "bytes_up", "down": "bytes_down", "seconds": "seconds",
}  # fmt: skip
# Of a run's settings, those that the list of runs shows.
LISTED = ("method", "dataset", "model", "seed", "num-server-rounds")
_SINCE = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")
# Of a task, what the page has lists of.
_LISTS = {
    "samples": "samples", "names": "client_names", "counts": "class_counts", "classes": "class_names",
    "remarks": "remarks", "changed": "changed",
}  # fmt: skip
_T = TypeVar("_T")
# What a file raises whose values are of other types than they were written with.
_UNFIT = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


def list_runs(root: Path) -> list[dict[str, Any]]:
    """Return the newest runs of a folder, the newest first.

    Each has ``name``, ``state``, its ``round``, its last ``personalised`` accuracy and some of its settings. A run
    whose files are damaged has ``error`` instead.
    """
    found = {path.parent: Version.of(path) for path in root.glob("*/config.toml")}
    newest = sorted(found, key=lambda folder: found[folder].changed, reverse=True)[:MAX_RUNS]
    return [_listed(folder, found[folder]) for folder in newest]


@contextmanager
def _as_written(folder: Path) -> Iterator[None]:
    """Raise :class:`DamagedFile` for what a run's files hold that cannot be told."""
    try:
        yield
    except _UNFIT as error:
        raise DamagedFile(folder, printable(f"{type(error).__name__}: {error}")) from error


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
    # A name may be anything that somebody asked for, also a path.
    if name not in (path.parent.name for path in root.glob("*/config.toml")):
        raise ConfigError("run", printable(name), f"there is no such run in {root}")
    folder = root / name
    path = folder / "metrics.jsonl"
    with _as_written(folder):
        lines, begins, after, more = _new_lines(path, since)
        history = History([from_json_line(line, path, "round") for line in lines])
        rounds = [_count(line["round"]) for line in history.lines]
        curves = {curve: history.curve(number) for curve, number in CURVES.items()}
        tests = history.tests()
        told = {
            **state_of(folder),
            "rounds": rounds,
            **{curve: [_finite(values.get(number)) for number in rounds] for curve, values in curves.items()},
            "each": [_by_client(tests.get(number, {})) for number in rounds],
            "trained": [[client for client in line["clients"] if client < MAX_CLIENTS] for line in history.lines],
            "failed": [
                (number, client, str(reason)) for number, client, reason in history.failures() if client < MAX_CLIENTS
            ],
            "since": after,
            "more": more,
        }
        return {**told, **({"about": _about(folder)} if begins else {})}


def _listed(folder: Path, config: Version) -> dict[str, Any]:
    metrics = folder / "metrics.jsonl"
    try:
        folder.name.encode()  # a name may be no text
        told = {key: value for key, value in _kept(_settings, folder / "config.toml", config).items() if key in LISTED}
        number, accuracy = _kept(_last, metrics, Version.of(metrics))
        return {"name": folder.name, **told, "round": number, "personalised": accuracy, **state_of(folder)}
    except (FedpflError, OSError, UnicodeEncodeError) as error:
        name, reason = (text.encode("utf-8", "replace").decode() for text in (folder.name, str(error)))
        return {"name": name, "state": "unreadable", "error": reason}


def _kept(read: Callable[[Path, Version], _T], path: Path, version: Version) -> _T:
    """Return what is read of a file, read once for each of its versions, also if it is damaged."""
    found, damage = _read_once(read, path, version)
    if damage is not None:
        raise DamagedFile(*damage)
    return cast(_T, found)


@lru_cache(2 * MAX_RUNS)
def _read_once(
    read: Callable[[Path, Version], _T], path: Path, version: Version
) -> tuple[_T | None, tuple[Path, str] | None]:
    try:
        with _as_written(path):
            return read(path, version), None
    except DamagedFile as error:
        return None, (error.path, error.more)


def _settings(path: Path, version: Version) -> dict[str, Any]:
    found = read_toml(path)
    json.dumps(found, allow_nan=False)  # NaN, dates
    for key in LISTED:
        if isinstance(found.get(key), (dict, list)):
            raise TypeError(f"{key} is no text or number")
    return found


def _last(path: Path, version: Version) -> tuple[int, float | None]:
    """Return the number and the personalised accuracy of the last round."""
    line = next(last_lines(path), None)
    if line is None:
        return 0, None
    history = History([from_json_line(line, path, "round")])
    return _count(history.lines[-1]["round"]), _finite(history.last("personalised.accuracy"))


def _new_lines(path: Path, since: str) -> tuple[list[bytes], bool, str, bool]:
    """Return the lines after ``since``, whether that is the beginning, the next ``since``, and whether more may follow.

    A resumed run writes the file again without the rounds after its checkpoint: then it is read from its beginning.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return [], True, "", False
    with file:
        found, earlier = Version.of(path), _SINCE.fullmatch(since)
        goes_on = earlier and int(earlier[1]) == found.inode and int(earlier[2]) <= found.size
        at = int(earlier[2]) if earlier and goes_on else 0
        file.seek(at)
        chunk = file.read(MAX_CHUNK)
        if b"\n" not in chunk:
            chunk += file.readline(MAX_BYTES)
            if len(chunk) > MAX_BYTES and not chunk.endswith(b"\n"):
                raise DamagedFile(path, f"a line has more than {MAX_BYTES} bytes")
    complete = chunk[: chunk.rfind(b"\n") + 1]
    after = at + len(complete)
    return complete.splitlines(), at == 0, f"{found.inode}-{after}", bool(complete) and len(chunk) >= MAX_CHUNK


def _about(folder: Path) -> dict[str, Any]:
    path = folder / "task.json"
    task: Mapping[str, Any]
    try:
        task = from_json_line(read_regular(path, MAX_BYTES), path, "state_key")
    except FileNotFoundError:  # its folder was made a moment ago
        task = {}
    config = folder / "config.toml"
    settings = _kept(_settings, config, Version.of(config))
    # Clients that number their classes themselves have other names for them.
    own = "classes_of_clients" in task or settings.get("permute-labels")
    lists = {name: _list(task, key) for name, key in _LISTS.items()}
    same = clients_key(task, settings) if "clients" in task else ""
    about = {
        "settings": settings, "clients": task.get("clients"), "same": same, **lists,
        **({"classes": []} if own else {}),
    }  # fmt: skip
    json.dumps(about, allow_nan=False)
    return about


def _list(task: Mapping[str, Any], key: str) -> list[Any]:
    found = task.get(key, [])
    if not isinstance(found, list):
        raise TypeError(f"{key} is no list")
    return found if key in ("class_names", "remarks", "changed") else found[:MAX_CLIENTS]


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:  # beyond that JavaScript has no whole numbers
        raise TypeError("a round has no number")
    return value


def _by_client(accuracies: dict[str, float]) -> list[float | None]:
    """Return accuracies by client number, None where a client was not tested."""
    shown = [client for client in map(int, accuracies) if client < MAX_CLIENTS]
    return [_short(accuracies.get(str(client))) for client in range(max(shown, default=-1) + 1)]


def _short(value: float | None) -> float | None:
    found = _finite(value)
    return None if found is None else round(found, 5)


def _finite(value: float | None) -> float | None:
    # JSON has no other numbers; the loss of a run that diverged is none.
    return value if value is not None and math.isfinite(value) else None
