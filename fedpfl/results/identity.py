"""The identity of a run by content and not by path: its files, the user's code, its data and its clients."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core import object_code, references, user_code
from ..core import settings as s
from ..core.errors import DataError
from ..core.files import files_below, open_regular, stamp_of
from ..data.datasets.reading_helpers import shortcut
from ..data.federation import FederatedData
from ..data.registry import DATASETS
from ..data.settings import DataSettings
from ..setup.all_settings import code_in, places, tagged

# Files that have changed within so many nanoseconds may change again and look the same: their hashes are not kept.
FRESH = 10**9
# Files that clients read, whose samples have a hash of their own.
OF_DATA = tagged("file")
_HF = "hf:"
OTHER_CLIENTS = "the runs divide the data differently or have other data, so their clients are not the same"

_hashes: dict[Path, tuple[tuple[int, ...], str]] = {}


def identity(values: Mapping[str, Any], imported: bool = True) -> dict[str, dict[str, str]]:
    """Return hashes of what settings name: of files by the setting's key, of the user's code by its name.

    The files that this code has opened so far have hashes, too, by their paths, and variables of the environment that
    it has read by their names, unless their values are paths: what lies there counts.
    """
    named = code_in(values, "idle")
    modules, objects = user_code.sources(named, values, imported), object_code.handed_over(named)
    opened = {str(path): content_of(path) for path in user_code.opened(named, values)}
    variables = {name: _of_variable(name) for name in user_code.variables(named) if os.sep not in os.getenv(name, "")}
    parts = {"files": contents(values), "modules": modules, "objects": objects, "opened": opened}
    return {**parts, "environment": variables}


def contents(values: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of what lies in the files and folders that settings name, by key; hidden files do not count."""
    hashes: dict[str, str] = {}
    for key, place in _named(values):
        if place.is_file() or place.is_dir():
            hashes[key] = hashes.get(key, "") + content_of(place)  # two folders of models may have one name
    return hashes


def changed(before: Mapping[str, Any], now: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Describe the differences of two identities; entries that only one of them has are none.

    What code has opened is known after it has run, so these files count as they are now.
    """
    changes = []
    for part, what in (("files", "the content of {}"), ("modules", "the module {}"), ("objects", "the code of {}")):
        pairs = {key: (had, now.get(part, {}).get(key)) for key, had in before.get(part, {}).items()}
        changes += [what.format(key) for key, (had, has) in pairs.items() if has is not None and had != has]
    opened = {Path(path): had for path, had in before.get("opened", {}).items()}
    changes += [f"the file {path}" for path, had in opened.items() if path.is_file() and content_of(path) != had]
    variables = before.get("environment", {}).items()
    changes += [f"{name} in the environment" for name, had in variables if _of_variable(name) != had]
    return changes


def require_same_data(task: Mapping[str, Any], data: FederatedData, run: str) -> None:
    """Raise :class:`DataError` if the data that are read again are not those of a run, or are divided otherwise."""
    if data.contents != task.get("data", data.contents):
        raise DataError(f"{run}: the data have changed since the run")
    if data.checksum != (task.get("division") or data.checksum):
        why = "this machine's partition differs from the run's (check the versions of NumPy and of the data set)"
        raise DataError(f"{run}: {why}")


def _named(values: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Yield the files and folders that settings name, each with its key."""
    for key, place in places(values, tagged("file")).items():
        yield key, Path(place).expanduser()
    data = s.parse(DataSettings, values)
    if data.dataset in DATASETS and DATASETS[data.dataset][0].download:
        yield "data-dir", shortcut(data)  # a file in the place of a published data set
    models = [
        references.without_clients(text)
        for key in ("model", "client-models")
        for text in str(values.get(key, "")).split(",")
    ]
    for text in models:
        if text.startswith(_HF):
            yield text.rpartition("/")[2], Path(text[len(_HF) :]).expanduser()


def content_of(place: Path) -> str:
    """Return a hash of what a file, or a folder without what is hidden in it, holds."""
    if not place.is_dir():
        return _of_file(place)
    digest = hashlib.sha256()
    for path in files_below(place):
        inside = path.relative_to(place)
        digest.update(f"{inside.as_posix()} {_of_file(path)} ".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _of_file(path: Path) -> str:
    stamp = stamp_of(path)
    cached = _hashes.get(path)
    if cached is not None and cached[0] == stamp:
        return cached[1]
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    if time.time_ns() - stamp[0] > FRESH:
        _hashes[path] = stamp, digest.hexdigest()[:16]
    return digest.hexdigest()[:16]


def _of_variable(name: str) -> str:
    """Return a hash of a variable of the environment, which may be a secret; one that is not set has none."""
    return _hash([name, os.environ[name]]) if name in os.environ else ""


def clients_key(task: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return a text that runs have in common whose clients are the same, with the same samples in training and test."""
    if has_same_clients(settings):
        return data_key(task, settings)
    if task.get("division") is not None:
        return _hash([_data(task, settings), task["division"], *map(settings.get, sorted(tagged("changes")))])
    # Clients have data of their own.
    return _hash([data_key(task, settings), settings.get("seed"), task.get("samples")])


def data_key(task: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return a text that runs have in common whose data are the same, divided in the same way, seeds excepted."""
    values = [[key, settings.get(key)] for key in s.keys(DataSettings) if key not in {"num-clients", *tagged("source")}]
    return _hash([_data(task, settings), task.get("clients"), *values])


def _data(task: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    return task.get("data") or [settings.get("dataset"), settings.get("data")]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]


def has_same_clients(settings: Mapping[str, Any]) -> bool:
    """Tell whether runs with other seeds have the same clients."""
    data = s.parse(DataSettings, settings)
    return bool(data.partition_seed or data.division_file or data.partitioner == "natural")
