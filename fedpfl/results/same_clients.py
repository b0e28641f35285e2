"""Keys of runs that have the same clients, so that one's client 3 may be compared with the other's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..core.settings import keys, parse
from ..data.settings import DataSettings
from ..setup.all_settings import tagged

OTHER_CLIENTS = "the runs divide the data differently or have other data, so their clients are not the same"


def clients_key(task: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return a text that runs have in common whose clients are the same, with the same samples in training and test.

    Where owners in the data, a file or ``partition-seed`` make the clients, other seeds leave them the same, though
    they may cut off other samples for the test.
    """
    if has_same_clients(settings):
        return data_key(task, settings)
    if task.get("division") is not None:
        return _hash([_data(task, settings), task["division"], *map(settings.get, sorted(tagged("changes")))])
    # Clients have data of their own.
    return _hash([data_key(task, settings), settings.get("seed"), task.get("samples")])


def data_key(task: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return a text that runs have in common whose data are the same, divided in the same way, seeds excepted."""
    values = [[key, settings.get(key)] for key in keys(DataSettings) if key not in {"num-clients", *tagged("source")}]
    return _hash([_data(task, settings), task.get("clients"), *values])


def _data(task: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    return task.get("data") or [settings.get("dataset"), settings.get("data")]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]


def has_same_clients(settings: Mapping[str, Any]) -> bool:
    """Tell whether runs with other seeds have the same clients."""
    data = parse(DataSettings, settings)
    return bool(data.partition_seed or data.division_file or data.partitioner == "natural")
