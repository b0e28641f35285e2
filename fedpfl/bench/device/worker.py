"""``fedpfl-worker``: one warm process a device that answers every message its SuperNodes get.

It keeps torch, data and models loaded and listens on a Unix socket of its own user. Requests are answered one after the
other, so that three SuperNodes on a small board never train at the same time; those that wait stand in the socket's
queue. It needs Python 3.8, torch 1.13, NumPy and safetensors, and no Flower: ``python -m fedpfl.bench.device.worker``
runs it in an interpreter that has a CUDA build which Flower's Python has not.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections import OrderedDict
from io import BufferedIOBase
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Iterator

from ...client import protocol
from ...client.policy import VARIABLE, guard
from ...core import code_hash, user_code
from ...core.errors import RAISED, FedpflError, in_one_line, line_of, printable
from ...core.payload import Payload
from ...core.process import spin_shortly
from ...version import __version__

if TYPE_CHECKING:
    from ...client.message_handler import Handler

logger = logging.getLogger("fedpfl.bench.device.worker")

# A ClientApp sends its request at once and reads the answer at once: one that does not has stopped.
STALLED_SECONDS = 60.0
QUEUE = 64
# How often a worker looks whether the SuperNode that it is for still runs.
ALIVE_SECONDS = 2.0
# A small board has three clients, and what a network loses is asked for again within the round.
MAX_REPLIES = 3


def serve(path: Path, until: int = 0) -> None:
    """Answer requests until the process is told to end, or another one, ``until``, has ended."""
    if guard() is None:
        logger.info("no policy: this device takes part in every run")
    else:
        logger.info("the policy is %s", os.environ[VARIABLE])
    replies = LastReplies()
    with listening(path) as listener:
        end_at_signals(path)
        code_hash.of_package()  # of what is imported now, whatever becomes of the files
        # Requests may queue from here on: importing torch takes seconds.
        from ...client.message_handler import handle

        logger.info("ready at %s, process %d", path, os.getpid())
        listener.settimeout(ALIVE_SECONDS if until else None)
        while True:
            try:
                connection, _ = listener.accept()
            except socket.timeout:
                if _is_alive(until):
                    continue
                logger.info("process %d has ended", until)
                shutil.rmtree(path.parent, ignore_errors=True)
                return
            with connection:
                try:
                    protocol.require_own_peer(connection)
                    connection.settimeout(STALLED_SECONDS)
                    with connection.makefile("rwb") as stream:
                        _serve_one(handle, stream, replies)
                except (FedpflError, OSError, EOFError) as error:
                    logger.warning("a request was dropped: %s", error)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


class LastReplies:
    """The newest replies, as frames, by the content of their requests.

    What a network has lost is asked for again. A client that trained again would come to the same bits, minutes later.
    Descriptions are not kept: a device's data may change.
    """

    def __init__(self) -> None:
        self._frames: OrderedDict[bytes, bytes] = OrderedDict()

    def get(self, request: bytes) -> bytes | None:
        """Return the reply to a request with this digest."""
        return self._frames.get(request)

    def add(self, request: bytes, frame: bytes) -> None:
        """Keep a reply; forget the oldest one if there are too many."""
        self._frames[request] = frame
        if len(self._frames) > MAX_REPLIES:
            self._frames.popitem(last=False)


class _HashedStream:
    """A stream whose bytes are hashed as they are read."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def read(self, count: int) -> bytes:
        """Read from the stream."""
        content = self._stream.read(count)
        self._hash.update(content)
        return content

    def digest(self) -> bytes:
        """Return the hash of what was read."""
        return self._hash.digest()


def _serve_one(handle: Handler, stream: BufferedIOBase, replies: LastReplies) -> None:
    digested = _HashedStream(stream)
    try:
        header, message = protocol.read(digested)
    except protocol.VersionError as error:
        # It cannot read this answer either, but then reports that. Without one it would take this worker for dead.
        protocol.write(stream, {"error": str(error)}, Payload())
        raise
    run_config, node_config = protocol.values(header, "run-config"), protocol.values(header, "node-config")
    kind, started = str(header.get("kind")), time.perf_counter()
    number = printable(str(message.config.get("round", "-")), 20)
    what = f"{printable(kind, 20)} of client {node_config.get('partition-id')}, round {number}"
    try:
        _require_same_code(header)
        frame = replies.get(digested.digest())
        if frame is None:
            app = str(header.get("app", ""))
            user_code.set_folder(Path(app) if app else None)
            frame = protocol.pack({}, handle(kind, message, run_config, node_config))
            if kind != "query":
                replies.add(digested.digest(), frame)
        else:
            what += ", its last reply once more"
    except FedpflError as error:
        logger.warning("%s: %s", what, line_of(error))
        frame = protocol.pack({"error": line_of(error)}, Payload())
    except RAISED as error:  # what goes wrong for one client must not end the worker for the others
        logger.exception("%s failed", what)
        frame = protocol.pack({"failure": in_one_line(error)}, Payload())
    stream.write(frame)
    stream.flush()
    logger.info("%s: %.2f s", what, time.perf_counter() - started)


def _require_same_code(header: protocol.Header) -> None:
    """Refuse an app of other code: this process would train with its own, unnoticed."""
    mine, theirs = code_hash.of_package(), header.get("code")
    if mine != theirs:
        raise FedpflError(
            f"this device's worker {protocol.OTHER_CODE} (fedpfl {__version__}, {mine}) than the app (fedpfl "
            f"{header.get('version')}, {theirs}): install the app's code there and start the worker again, or stop it"
        )


@contextlib.contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """Listen on a Unix socket of this user alone, one process at a time; the socket goes at the end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = path.with_name(path.name + ".lock").open("w")
    except OSError as error:
        raise FedpflError(f"the socket {path} cannot be made: {error.strerror}") from error
    with lock, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which no fork inherits
        except (BlockingIOError, PermissionError):
            raise FedpflError(f"another process listens at {path}") from None
        before = os.umask(0o177)
        try:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()  # of a worker that was killed: the lock was free
            listener.bind(str(path))
        except OSError as error:  # without strerror if the path is too long: there is room for 107 bytes
            raise FedpflError(f"the socket {path} cannot be made: {error.strerror or error}") from error
        finally:
            os.umask(before)
        listener.listen(QUEUE)
        try:
            yield listener
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()


def end_at_signals(path: Path | None = None) -> None:
    """Let SIGTERM, SIGINT and SIGHUP end this process at once.

    The process ends by ``os._exit``. An exception would be lost if the signal arrived in a destructor or in a callback
    of the garbage collector, and the interpreter's own end may wait for threads of libraries. What clients keep is
    written atomically, so nothing is lost.
    """
    owner = os.getpid()

    def end(number: int, frame: FrameType | None) -> None:
        if path is not None and os.getpid() == owner:  # and not a fork of it
            with contextlib.suppress(OSError):
                path.unlink()
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)


def main() -> None:
    """Run the worker (the console script ``fedpfl-worker``), use a model that a client has written."""
    if sys.argv[1:2] == ["predict"]:
        from .predict import main as predict  # imports torch; a worker listens before that

        predict(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        prog="fedpfl-worker",
        description="Train for this device's SuperNodes.",
        epilog="`fedpfl-worker predict` uses the model that a client has written on this device; see its `--help`.",
    )
    parser.add_argument(
        "--socket", metavar="PATH", help=f"socket to listen on; ${protocol.SOCKET_VARIABLE} gives it to the ClientApps"
    )
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help=f"policy: what this device takes part in; ${VARIABLE} gives it to the ClientApps",
    )
    parser.add_argument(
        "--until",
        metavar="PID",
        type=int,
        default=0,
        help="end, and remove the socket's folder, when this process has ended",
    )
    arguments = parser.parse_args()
    spin_shortly()
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO)
    end_at_signals()
    try:
        if arguments.socket:
            os.environ[protocol.SOCKET_VARIABLE] = arguments.socket
        if arguments.policy is not None:
            os.environ[VARIABLE] = str(Path(arguments.policy).absolute())
        serve(protocol.socket_path(), arguments.until)
    except FedpflError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
