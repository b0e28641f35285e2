"""Which client a node is, if it is configured with nothing but the path of its data.

The server gives such a node a number when all are connected, in the order of the nodes' ids, which follow from their
registered keys. The node keeps the number with the run's state: later messages, a restarted node and a resumed run find
it there, so that a number and the personal arrays that belong to it never part.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Mapping

from ..core.checksummed_files import from_json_line, json_line
from ..core.errors import ConfigError, StateError
from ..core.files import private_folder, write_atomically
from ..core.payload import UNNUMBERED, Payload
from ..core.settings import Value
from .policy import FILE_BYTES, guard
from .state import run_state

# Flower's own name of it, and the older one here.
PATH_KEYS = ("data-path", "data")


def own_data_path(node_config: Mapping[str, Value]) -> str:
    """Return where a node's own data lie; an empty text if it has none."""
    paths = {key: str(node_config[key]) for key in PATH_KEYS if node_config.get(key)}
    if len(set(paths.values())) > 1:
        raise ConfigError("data-path", paths["data-path"], f"but its other name, data, is set to {paths['data']!r}")
    path = next(iter(paths.values()), "")
    if "\0" in path:
        raise ConfigError("data-path", path, "has a NUL character")
    return path


def stored_number(message: Payload, run_config: Mapping[str, Value], path: str) -> int | None:
    """Return the client that this node is in the message's run; None if it has not been told."""
    file = _file(message, run_config, path)
    told = message.config.get("client")
    stored = _read(file) if file.is_file() else None
    if told is None or told == stored:
        return stored
    if type(told) is not int or not 0 <= told < clients_of(run_config):
        raise StateError(f"client = {told!r}: must be a number below num-clients")
    if stored is not None:
        raise StateError(
            f"data-path = {path!r}: is client {stored} already; two nodes of a device that use the same data need a "
            "partition-id each"
        )
    if (owner := guard()) is not None:
        owner.require_room(FILE_BYTES)
    private_folder(file.parent)
    write_atomically(file, json_line({"client": told}).encode(), private=True)
    return told


def clients_of(run_config: Mapping[str, Value]) -> int:
    """Return the number of clients, which a node without num-partitions cannot say."""
    clients = run_config.get("num-clients", 0)
    if type(clients) is not int or clients < 1:
        raise ConfigError("num-clients", clients, "must be the number of clients where nodes have no num-partitions")
    return clients


def unnumbered(run_config: Mapping[str, Value]) -> Payload:
    """Return the answer of a node that does not know yet which client it is."""
    return Payload({UNNUMBERED: True, "num-clients": clients_of(run_config)})


def _read(file: Path) -> int:
    content = file.read_bytes()
    return int(from_json_line(content, file, "client")["client"])


def _file(message: Payload, run_config: Mapping[str, Value], path: str) -> Path:
    folder = run_state(Path(str(run_config["state-dir"])), str(message.config.get("state-key", "")))
    place = str(Path(path).expanduser().absolute())
    return folder / f"number-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
