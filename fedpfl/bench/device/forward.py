"""Hand a message to the device's worker; start one for a SuperNode that has none.

Flower starts a process for every message. One that forwards it imports no torch (5 to 25 s on a small board) and holds
no model.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from logging import INFO, WARNING, getLogger
from pathlib import Path

from ...client import protocol
from ...core import code_hash, references, user_code
from ...core.errors import FedpflError
from ...core.files import private_folder
from ...core.payload import Payload
from ...core.settings import Value
from ...version import __version__

logger = getLogger("flwr")

# How long a worker that was there may be away: it is started again, and imports NumPy, before it listens.
WAIT_SECONDS = 30.0
POLL_SECONDS = 0.2
# A ClientApp's process. In others, such as a program that calls the app, nobody would end a worker.
CLIENT_APP = "flwr-clientapp"
# A request that ends its worker each time (too little memory) would go on for ever.
MAX_LOSSES = 2


class WorkerError(RuntimeError):
    """The worker failed in a way that it does not explain in one line; its log has the traceback."""


def worker_command(*options: str) -> list[str]:
    """Return the command of a worker; without options its environment names the socket."""
    return [sys.executable, "-P", "-m", "fedpfl.bench.device.worker", *options]


def forward(
    kind: str, message: Payload, run_config: Mapping[str, Value], node_config: Mapping[str, Value]
) -> Payload | None:
    """Return the worker's answer to a message, or None if this process has to answer it.

    A request whose worker dies is repeated when the worker is back: the answer follows from the message and the stored
    state, and a repeated round starts from the same state.
    """
    path = protocol.socket_path()
    if not path.exists() and protocol.SOCKET_VARIABLE not in os.environ and Path(sys.argv[0]).name == CLIENT_APP:
        path = _start_worker(path.parent, os.getppid())
    if not path.exists():
        logger.log(INFO, "fedpfl: no worker at %s; this process handles the request", path)
        return None
    header = {
        "version": __version__, "code": code_hash.of_package(), "kind": kind,
        "run-config": dict(run_config), "node-config": dict(node_config),
        # Where Flower has unpacked custom code, if a setting names some.
        "app": str(user_code.app_folder(references.references(run_config, sorted(run_config))) or ""),
    }  # fmt: skip
    losses, deadline = 0, time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and losses <= MAX_LOSSES:
        connection = _connect(path)
        if connection is None:
            time.sleep(POLL_SECONDS)
            continue
        with connection:
            protocol.require_own_peer(connection)
            logger.log(INFO, "fedpfl: the worker at %s is available", path)
            try:
                with connection.makefile("rwb") as stream:
                    protocol.write(stream, header, message)
                    return _answer(*protocol.read(stream))
            except (ConnectionError, EOFError):
                losses, deadline = losses + 1, time.monotonic() + WAIT_SECONDS
                logger.log(WARNING, "fedpfl: the worker ended during the request; waiting for it to come back")
    reason = f"ended {losses} times during this request" if losses > MAX_LOSSES else "did not come back"
    logger.log(WARNING, "fedpfl: the worker at %s %s; this process handles the request", path, reason)
    return None


def _start_worker(folder: Path, parent: int) -> Path:
    """Start the worker of a SuperNode, unless it has one; return where it listens once it does.

    ``parent`` is the process that starts the SuperNode's ClientApps. The worker ends with it and has its environment,
    and so its policy.
    """
    folder = folder / f"supernode-{parent}"
    path = folder / "worker.sock"
    if (connection := _connect(path)) is not None:
        connection.close()
        return path
    logger.log(INFO, "fedpfl: starting a worker for this SuperNode, which logs to %s", folder / "worker.log")
    private_folder(folder)
    # The code of this app, which may not be the installed one.
    paths = [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = worker_command("--socket", str(path), "--until", str(parent))
    with (folder / "worker.log").open("ab") as log:
        worker = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + WAIT_SECONDS
    # Where two messages come at once, the worker of the other one may be there first, and this one ends.
    while not path.exists() and worker.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return path


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except (ConnectionError, FileNotFoundError):
        connection.close()
        return None
    return connection


def _answer(header: protocol.Header, payload: Payload) -> Payload:
    if "error" in header:
        raise FedpflError(str(header["error"]))
    if "failure" in header:
        raise WorkerError(str(header["failure"]))
    return payload
