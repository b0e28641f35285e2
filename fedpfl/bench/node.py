"""``fedpfl node``: runs a SuperNode with its worker and fork server, which live as long as it does."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..client.policy import VARIABLE as POLICY
from ..client.protocol import SOCKET_VARIABLE
from ..core.errors import FedpflError
from ..flower_private import CONCURRENCY, TASK_POLL_INTERVAL
from . import run_guard
from .device.forward import worker_command
from .flower_command import SUPERNODE, supernode_command
from .forkserver import command_folder
from .superlink import script

# The shortest wait of `bench/flower_command.py`; Flower's is always 1 s. It looks for a message with a request to the
# SuperNode on the same machine.
TASK_POLL_SECONDS = 0.2
# All objects of a message at the same time, where a machine has as many cores.
AT_ONCE = dict.fromkeys(CONCURRENCY, "3")
# A SuperNode says goodbye to its SuperLink when it is asked to end.
END_SECONDS = 10.0
RESTART_SECONDS = 5.0
POLL_SECONDS = 0.2


def environment_of(environment: Mapping[str, str], worker: Path, forkserver: Path, home: Path) -> dict[str, str]:
    """Return the environment in which a SuperNode uses a worker and a fork server, by their sockets.

    ``home`` becomes its ``FLWR_HOME``, which must be its own: ClientApps of several SuperNodes that unpack an app at
    the same time read half of it.
    """
    return {
        **environment,
        **AT_ONCE,
        "PATH": f"{command_folder(forkserver)}{os.pathsep}{environment.get('PATH', os.defpath)}",
        "FLWR_HOME": str(home),
        TASK_POLL_INTERVAL: str(TASK_POLL_SECONDS),
        SOCKET_VARIABLE: str(worker),
    }


def forkserver_command(path: Path, preload: Sequence[str] = ()) -> list[str]:
    """Return the command of a fork server that listens at a socket."""
    modules = [option for module in preload for option in ("--preload", module)]
    return [sys.executable, "-P", "-m", "fedpfl.bench.forkserver", "--socket", str(path), *modules]


def program_of(name: str) -> list[str]:
    """Return how the program of this name, or at this path, is started: a SuperNode with shorter waits.

    It is the SuperNode of this environment, as the fork server's Flower is.
    """
    program = script(name)
    return supernode_command() if Path(program).name == SUPERNODE else [program]


def run(command: Sequence[str], policy: Path | None = None, preload: Sequence[str] = ()) -> int:
    """Run a SuperNode's command with a worker and a fork server of its own; return its exit code.

    All of them end together, however this process ends. ``policy`` is the device's, ``preload`` names the modules that
    the fork server imports before it forks. ``FedpflError`` if the command cannot be started.
    """
    # Paths of sockets are short.
    folder = Path(tempfile.mkdtemp(prefix="fedpfl-node-", dir=os.environ.get("XDG_RUNTIME_DIR")))
    worker, forkserver = folder / "worker.sock", folder / "forkserver.sock"
    environment = environment_of(os.environ, worker, forkserver, run_guard.home(folder))
    if policy is not None:
        environment[POLICY] = str(policy.expanduser().absolute())
    guard = run_guard.watch(folder)
    try:
        parts = {"worker": worker_command(), "fork server": forkserver_command(forkserver, preload)}
        running = {name: _started(part, environment) for name, part in parts.items()}
        times = dict.fromkeys(parts, time.monotonic())
        node = _started([*program_of(command[0]), *command[1:]], environment)
        try:
            while node.poll() is None:
                for name, process in running.items():
                    if process.poll() is not None and time.monotonic() - times[name] > RESTART_SECONDS:
                        print(f"fedpfl node: the {name} ended ({process.returncode}), starts again", file=sys.stderr)
                        running[name], times[name] = _started(parts[name], environment), time.monotonic()
                time.sleep(POLL_SECONDS)
        finally:
            node.terminate()
            try:
                node.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                node.kill()
        return node.returncode
    finally:
        guard.communicate()  # closes its input: it ends what is left, and removes the folder


def _started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    try:
        # In a group of its own: Ctrl-C in a terminal ends this program, which ends the SuperNode properly.
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        raise FedpflError(f"{command[0]}: {error.strerror}") from error
