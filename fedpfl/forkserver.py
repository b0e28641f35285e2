"""``fedpfl-forkserver``: starts a device's ClientApps without importing Flower each time.

Flower starts the command ``flwr-clientapp`` for every message; importing its modules costs 1.5 s of a laptop's core and
several times that on a small board. This process imports them once and forks for every message. It puts a small
``flwr-clientapp`` into a folder that stands first in the SuperNode's ``PATH``; that one hands its arguments and its
environment over a Unix socket of its own user, or becomes Flower's command where nobody listens. Of Flower, only the
command itself is used.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import logging
import os
import random
import shlex
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from .errors import FedpflError
from .files import write_atomically
from .frames import require_own_peer
from .worker import listening

logger = logging.getLogger("fedpfl.forkserver")

COMMAND = "flwr-clientapp"
MAX_REQUEST_BYTES = 1_000_000
STALLED_SECONDS = 10.0
FILES = 2  # standard output and standard error

_SHELL = '#!/bin/sh\nexec {python} -IS {hand_over} "$@"\n'
_HAND_OVER = '''\
"""Hands a ClientApp over to the fork server; written by it."""
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


def serve(path: Path, real: str) -> None:
    """Fork a ClientApp for every request until the process is told to end.

    Parameters
    ----------
    path : Path
        The socket; the command is put into ``bin`` beside it.
    real : str
        Flower's own command.

    Raises
    ------
    FedpflError
        Another fork server has the socket, or Flower is not installed.
    """
    run = _load()
    signal.signal(signal.SIGCHLD, _reap)
    with listening(path) as listener:
        _write_command(path, real)
        logger.info("ready at %s, process %d; put %s first into PATH", path, os.getpid(), path.parent / "bin")
        while True:
            connection, _ = listener.accept()
            with connection:
                files: list[int] = []
                try:
                    require_own_peer(connection)
                    connection.settimeout(STALLED_SECONDS)
                    request, files = _receive(connection)
                    if os.fork() == 0:
                        listener.close()
                        connection.close()
                        _become(run, request, files)
                    try:
                        connection.send(b"\1")
                    except OSError as error:
                        logger.warning("a ClientApp was started, but who asked for it is gone: %s", error)
                except (FedpflError, OSError) as error:  # also: no process to be had, or nobody waits any more
                    logger.warning("a request was dropped: %s", error)
                finally:
                    for file in files:
                        os.close(file)


def _load() -> Callable[[], Any]:
    # What every ClientApp of this project needs as well; torch is the worker's.
    import safetensors.numpy  # noqa: F401

    found = importlib.metadata.entry_points(group="console_scripts", name=COMMAND)
    if not found:
        raise FedpflError(f"the command {COMMAND} is not installed; install flwr")
    run: Callable[[], Any] = next(iter(found)).load()
    return run


def _receive(connection: socket.socket) -> tuple[list[bytes], list[int]]:
    prefix, files, _, _ = socket.recv_fds(connection, 4, FILES)
    try:
        if len(prefix) != 4 or len(files) != FILES:
            raise FedpflError("it does not begin as a request does")
        (length,) = struct.unpack(">I", prefix)
        if length > MAX_REQUEST_BYTES:
            raise FedpflError(f"it has {length} bytes; at most {MAX_REQUEST_BYTES} are allowed")
        content = b""
        while len(content) < length:
            more = connection.recv(length - len(content))
            if not more:
                raise FedpflError("it is not complete")
            content += more
        words = content.split(b"\0")
        if len(words) < 2 or not words[1].isdigit() or len(words) < 2 + int(words[1]):
            raise FedpflError("it is not a list of a folder, arguments and an environment")
    except (FedpflError, OSError):
        for file in files:
            os.close(file)
        raise
    return words, files


def _become(run: Callable[[], Any], request: list[bytes], files: list[int]) -> NoReturn:
    """Be the ClientApp, in the process that was forked."""
    status: object = 1
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for place, file in enumerate(files, 1):
            os.dup2(file, place)
            os.close(file)
        folder, count, words = request[0], int(request[1]), request[2:]
        sys.argv = [COMMAND, *map(os.fsdecode, words[:count])]
        os.environ.clear()
        for key, equals, value in (word.partition(b"=") for word in words[count:]):
            if key and equals:
                os.environb[key] = value
        random.seed()
        os.chdir(folder)
        # What is imported here is the installed package, and the app brings its own, perhaps another one.
        for name in [name for name in sys.modules if name.partition(".")[0] == "fedpfl"]:
            del sys.modules[name]
        status = run()
    except SystemExit as end:
        status = end.code
    except BaseException:
        logger.exception("the ClientApp ended")
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            # The parent's clean-up, its socket above all, is not for this process.
            os._exit(status if isinstance(status, int) else int(status is not None))


def _write_command(path: Path, real: str) -> None:
    folder = path.parent / "bin"
    folder.mkdir(exist_ok=True, mode=0o700)
    hand_over, command = folder / "hand_over.py", folder / COMMAND
    # A SuperNode may start one just now: it must find the old file or the new one.
    write_atomically(hand_over, _HAND_OVER.format(socket=str(path), real=real).encode(), private=True)
    shell = _SHELL.format(python=shlex.quote(sys.executable), hand_over=shlex.quote(str(hand_over)))
    write_atomically(command, shell.encode(), private=True, executable=True)


def _reap(number: int, frame: FrameType | None) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> None:
    """Run the fork server (the console script ``fedpfl-forkserver``)."""
    from .launch import script

    parser = argparse.ArgumentParser(prog="fedpfl-forkserver", description="Start this device's ClientApps quickly.")
    parser.add_argument("--socket", metavar="PATH", required=True, help="where to listen")
    arguments = parser.parse_args()
    # Not the root logger: the ClientApps inherit it.
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        serve(Path(arguments.socket).absolute(), script(COMMAND))
    except FedpflError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
