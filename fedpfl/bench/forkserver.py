"""``fedpfl-forkserver``: starts a device's ClientApps without importing Flower each time.

Flower starts the command ``flwr-clientapp`` for every message; importing its modules costs 1.5 s of a laptop's core and
several times that on a small board. This process imports them once and forks for every message. It puts a small command
of the same name into ``bin`` next to its socket, to stand first in the ``PATH`` of the SuperNode. The small command
hands its arguments, its environment and its outputs over the socket, which is its own user's, or becomes Flower's
command if there is no server. Of Flower, only the command itself is used. ``bin`` also has the two commands
of :mod:`fedpfl.bench.flower_command`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.metadata
import logging
import os
import random
import shlex
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..client.protocol import require_own_peer
from ..core.errors import FedpflError
from ..core.files import write_atomically
from ..core.process import spin_shortly
from ..flower_private import install_apps_once, shorten_pauses
from ..version import untested
from .device.worker import end_at_signals, listening
from .flower_command import SUPEREXEC, SUPERNODE

logger = logging.getLogger("fedpfl.bench.forkserver")

COMMAND = "flwr-clientapp"
# What Flower's HTTP client and NumPy import only when they are first used: a third of a ClientApp's processor time.
# Another version may have other ones, and then each ClientApp imports its own.
IMPORTED_LATE = ("httpcore", "numpy.random")
MAX_REQUEST_BYTES = 1_000_000
STALLED_SECONDS = 10.0
# The folder, next to the socket, that has a file for each app that was unpacked.
INSTALLED = "installed"
FILES = 2  # standard output and standard error

_SHELL = '#!/bin/sh\nexec {python} -IS {hand_over} "$@"\n'
_FLOWER_COMMAND = """\
#!/bin/sh
exec {python} -P -m fedpfl.bench.flower_command {name} "$@"
"""
_HAND_OVER = '''\
"""Hands a start of {name} over to the process that forks; written by it."""
import array, os, socket, struct, sys
words = [os.getcwdb(), b"%d" % len(sys.argv[1:]), *map(os.fsencode, sys.argv[1:])]
words += [key + b"=" + value for key, value in os.environb.items()]
request = b"\\0".join(words)
try:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect({socket!r})
        files = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))
        connection.sendmsg([struct.pack(">I", len(request))], [files])
        connection.sendall(request)
        taken = connection.recv(1)
except OSError:
    taken = b""
if not taken:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
'''


def load(installed: Path, preload: Sequence[str] = ()) -> Callable[[], Any]:
    """Import what every ClientApp of this project needs, and return Flower's command.

    Its processes note in the folder ``installed`` which apps they have unpacked. ``preload`` are further modules. torch
    is the worker's; apps with a training loop of their own need it here.
    """
    import safetensors.numpy  # noqa: F401

    for name in IMPORTED_LATE:
        with suppress(ImportError):
            importlib.import_module(name)
    for name in preload:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise FedpflError(f"--preload {name}: {error}") from error
    if torch := sys.modules.get("torch"):
        # The first optimiser of a process imports torch's compiler, which takes longer than torch.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    shorten_pauses()
    install_apps_once(installed)
    entries = importlib.metadata.entry_points(group="console_scripts", name=COMMAND)
    if not entries:
        raise FedpflError(f"the command {COMMAND} is not installed; install flwr")
    if warning := untested(importlib.metadata.version("flwr")):
        logger.warning("%s", warning)
    command: Callable[[], Any] = next(iter(entries)).load()
    return command


def serve(path: Path, preload: Sequence[str] = ()) -> NoReturn:
    """Fork for every request until the process is told to end.

    Requests that come while the modules are imported wait.
    """
    from .superlink import script

    with listening(path) as listener:
        end_at_signals(path)
        write_commands(path, script(COMMAND))
        before = dict(os.environb)
        entry = load(path.parent / INSTALLED, preload)
        # What modules set for themselves when they are imported, which happens here.
        set_by_modules = {key: os.environb[key] for key in os.environb if os.environb[key] != before.get(key)}
        # What was imported is never collected: a fork that looked through it would copy all of its pages.
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, _reap)
        logger.info("ready at %s, process %d; put %s first into PATH", path, os.getpid(), command_folder(path))
        while True:
            connection, _ = listener.accept()
            with connection:
                files: list[int] = []
                try:
                    require_own_peer(connection)
                    connection.settimeout(STALLED_SECONDS)
                    request, files = _receive(connection)
                    process = os.fork()
                    if process == 0:
                        listener.close()
                        connection.close()
                        _run_command(entry, request, files, set_by_modules)
                    logger.info("%s is process %d", COMMAND, process)
                    try:
                        connection.send(b"\1")
                    except OSError as error:
                        logger.warning("%s was started, but who asked for it is gone: %s", COMMAND, error)
                except (FedpflError, OSError) as error:  # also: no process to be had, or the client has gone
                    logger.warning("a request was dropped: %s", error)
                finally:
                    for file in files:
                        os.close(file)


def command_folder(path: Path) -> Path:
    """Return the folder, to be the first of a ``PATH``, whose command goes to the socket ``path``."""
    return path.parent / "bin"


def write_commands(path: Path, real: str) -> None:
    """Write what hands the command over to the socket ``path``, and the commands of a SuperNode and its SuperExec.

    ``real`` is executed if there is no server.
    """
    folder = command_folder(path)
    folder.mkdir(exist_ok=True, mode=0o700)
    hand_over = folder / f"{COMMAND}.py"
    # It may just be started by someone, who must find the old file or the new one.
    text = _HAND_OVER.format(name=COMMAND, socket=str(path), real=real)
    write_atomically(hand_over, text.encode(), private=True)
    shell = _SHELL.format(python=shlex.quote(sys.executable), hand_over=shlex.quote(str(hand_over)))
    texts = {COMMAND: shell}
    for name in (SUPEREXEC, SUPERNODE):
        texts[name] = _FLOWER_COMMAND.format(python=shlex.quote(sys.executable), name=name)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode(), private=True, executable=True)


def _receive(connection: socket.socket) -> tuple[list[bytes], list[int]]:
    prefix, files, _, _ = socket.recv_fds(connection, 4, FILES)
    try:
        if len(prefix) != 4 or len(files) != FILES:
            raise FedpflError("it does not start like a request")
        (length,) = struct.unpack(">I", prefix)
        if length > MAX_REQUEST_BYTES:
            raise FedpflError(f"it has {length} bytes; at most {MAX_REQUEST_BYTES} are allowed")
        content = b""
        while len(content) < length:
            more = connection.recv(length - len(content))
            if not more:
                raise FedpflError("it is not complete")
            content += more
        fields = content.split(b"\0")
        if len(fields) < 2 or not fields[1].isdigit() or len(fields) < 2 + int(fields[1]):
            raise FedpflError("it is not a list of a folder, arguments and an environment")
    except (FedpflError, OSError):
        for file in files:
            os.close(file)
        raise
    return fields, files


def _run_command(
    entry: Callable[[], Any], request: list[bytes], files: list[int], set_by_modules: Mapping[bytes, bytes]
) -> NoReturn:
    """Run the command in the forked process."""
    status: object = 1
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for place, file in enumerate(files, 1):
            os.dup2(file, place)
            os.close(file)
        folder, count, strings = request[0], int(request[1]), request[2:]
        sys.argv = [COMMAND, *map(os.fsdecode, strings[:count])]
        os.environ.clear()
        os.environb.update(set_by_modules)
        os.environb.update(dict(word.split(b"=", 1) for word in strings[count:] if word.find(b"=") > 0))
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()
        os.chdir(folder)
        # What is imported here is the installed package, and the app brings its own, perhaps another one.
        for module in [module for module in sys.modules if module.partition(".")[0] == "fedpfl"]:
            del sys.modules[module]
        status = entry()
    except SystemExit as end:
        status = end.code
    except BaseException:
        logger.exception("%s ended", sys.argv[0])
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # The parent's clean-up, its socket above all, is not for this process.
            os._exit(status if isinstance(status, int) else int(status is not None))


def _reap(number: int, frame: FrameType | None) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> None:
    """Run the fork server (the console script ``fedpfl-forkserver``)."""
    parser = argparse.ArgumentParser(prog="fedpfl-forkserver", description="Start this device's ClientApps quickly.")
    parser.add_argument("--socket", metavar="PATH", required=True, help="where to listen")
    parser.add_argument(
        "--preload", metavar="MODULE", action="append", default=[], help="import this before forking, too; repeatable"
    )
    arguments = parser.parse_args()
    spin_shortly()
    # Not the root logger, as what is forked inherits it; and not file 2, which is another's in there.
    handler = logging.StreamHandler(os.fdopen(os.dup(2), "w"))
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    end_at_signals()
    try:
        serve(Path(arguments.socket).absolute(), arguments.preload)
    except FedpflError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
