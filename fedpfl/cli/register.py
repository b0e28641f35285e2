"""``fedpfl register``: makes the SuperLink know the keys of devices' nodes."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core.errors import ConfigError, FedpflError
from ..core.files import write_atomically
from ..flower_private import KEY_IN_USE
from .program import app


@app.command("register")
def register_command(
    keys: Annotated[list[Path], typer.Argument(metavar="KEY.pub...", help="Public keys of nodes.")],
    record: Annotated[
        Path, typer.Option(metavar="FILE", help="File that records the key of each node; Flower's own list does not.")
    ],
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Unregister all recorded nodes that are not named. Flower never accepts such a key again."
        ),
    ] = False,
) -> None:
    """Register nodes' keys with the default SuperLink.

    Flower's config.toml names it.

    A recorded node whose key has changed is unregistered with its old one.

    Example: fedpfl register keys/nodes/node-*.pub --record keys/nodes.json
    """
    keys = list(dict.fromkeys(keys))
    wanted = {path.stem: _read(path).strip() for path in keys}
    if len(wanted) < len(keys):
        names = [path.stem for path in keys]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError("key", twice, "is the name of two files; nodes are recorded by these names")
    noted = _noted(record)
    # Nodes that were unregistered stay in the list.
    listed = {node["node-id"] for node in _flwr("list")["nodes"] if node["status"] != "unregistered"}
    nodes = {name: node for name, node in noted.items() if node["node"] in listed}
    present = {} if prune else {name: node["key"] for name, node in nodes.items()}
    for name in [name for name, node in nodes.items() if node["key"] != {**present, **wanted}.get(name)]:
        _flwr("unregister", nodes.pop(name)["node"])
        _note(record, nodes)
        typer.echo(f"unregistered {name}")
    missing = {path.stem: path for path in keys if path.stem not in nodes}
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        waiting = {pool.submit(_flwr, "register", str(path), "--name", name): name for name, path in missing.items()}
        failed: FedpflError | None = None
        for done in as_completed(waiting):
            name = waiting[done]
            try:
                nodes[name] = {"key": wanted[name], "node": str(done.result()["node-id"])}
            except FedpflError as error:  # the others are registered nevertheless, and must be noted
                failed = failed or _explained(error, missing[name])
                continue
            _note(record, nodes)
            typer.echo(f"registered {name}")
    if failed is not None:
        raise failed
    typer.echo(f"{len(nodes)} nodes, {len(missing)} of them new")


def _explained(error: FedpflError, key: Path) -> FedpflError:
    """Say what helps where Flower has had a key before: it takes none twice, also after it was unregistered."""
    if KEY_IN_USE not in str(error):
        return error
    advice = (
        "is registered already, or was unregistered: put back the file of --record that had this node, or make a new"
    )
    return FedpflError(f"key = {key}: {advice} key (remove {key} and {key.with_suffix('')}, then fedpfl keys)")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("key", str(path), f"cannot be read ({error})") from error


def _noted(record: Path) -> dict[str, dict[str, str]]:
    try:
        return dict(json.loads(_read(record))) if record.exists() else {}
    except ValueError as error:
        raise ConfigError("record", str(record), f"is not a record of nodes ({error})") from error


def _note(record: Path, nodes: dict[str, dict[str, str]]) -> None:
    try:
        write_atomically(record, json.dumps(nodes, indent=1, sort_keys=True).encode(), private=True)
    except OSError as error:
        raise ConfigError("record", str(record), f"cannot be written ({error.strerror})") from error


def _flwr(*arguments: str) -> dict[str, Any]:
    from ..bench.superlink import answer, run_flwr

    return answer(f"supernode {arguments[0]}", run_flwr("supernode", *arguments, "--format", "json"))
