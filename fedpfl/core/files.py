"""Files that are written while others read them."""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .errors import DamagedFile

# Held while a file is written: a process that ends another way than by its main program waits for it.
writing = threading.RLock()

_PART = re.compile(r"\..+\.[0-9a-f]{16}\.part")
# A file that is being written is younger, whoever writes it: a process of another machine, too, in a shared folder.
LEFT_SECONDS = 3600


def is_free(folder: Path) -> bool:
    """Tell whether a new folder can be made here, or an empty one is there."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def write_atomically(
    path: Path, content: bytes, private: bool = False, durable: bool = True, executable: bool = False
) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new one and nothing between.

    ``private``: only the user may read it; otherwise the umask decides. ``durable``: wait until the disk has it;
    without, it survives the end of this process but not a loss of power. What a killed process has left in this folder
    is removed after an hour. What is no file, such as /dev/null or a pipe, is written to and stays what it is.
    """
    with writing:
        if path.is_char_device() or (path.is_fifo() and not private):  # whose pipe it is nobody knows
            with naming(path), path.open("wb") as special:
                special.write(content)
            return
        part, now = _write_part(path, content, private, durable, executable)
        try:
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        for other in path.parent.iterdir():
            if _PART.fullmatch(other.name):
                with suppress(FileNotFoundError):  # it was renamed, or removed by somebody else
                    if now - other.lstat().st_mtime > LEFT_SECONDS:
                        other.unlink()


def _write_part(
    path: Path, content: bytes, private: bool, durable: bool, executable: bool = False
) -> tuple[Path, float]:
    """Write beside a file's place, under a name that nobody else has; with the time by the clock of the folder."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    mode = (0o600 if private else 0o666) | (0o100 if executable else 0)
    try:
        with naming(path), os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
            return part, os.fstat(file.fileno()).st_mtime
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an error of a write, as on a full disk, say which file there was no room for."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def files_below(folder: Path, above: tuple[Path, ...] = ()) -> list[Path]:
    """Return the files in a folder, in order, also behind links to folders, but for what is hidden."""
    real = folder.resolve()
    if real in above:  # a link back to where it lies
        return []
    try:
        shown = [path for path in folder.iterdir() if path.name[0] != "."]
    except OSError:  # what reads it tells
        return []
    inside = [files_below(path, (*above, real)) for path in shown if path.is_dir()]
    return sorted([path for path in shown if path.is_file()] + [path for files in inside for path in files])


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return numbers that are others once a file has been written or replaced, though its own time was set back."""
    about = path.stat()
    return max(about.st_mtime_ns, about.st_ctime_ns), about.st_mtime_ns, about.st_size, about.st_ino


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read it; ``DamagedFile`` if it is no regular file: a pipe or a device may never give its end."""
    try:
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115
    except IsADirectoryError:
        raise DamagedFile(path, "it is a folder") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DamagedFile(path, "it is no regular file")
    return file


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_regular(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; ``DamagedFile`` for others."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""  # it may grow
    if max(size, len(content)) > most:
        raise DamagedFile(path, f"it has more than {most:,} bytes")
    return content


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, which only this user may enter; leave others as they are."""
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def locked(path: Path, wait: bool = True) -> IO[bytes]:
    """Open a file and lock it until it is closed; where there are no locks, only open it.

    With ``wait`` false, ``BlockingIOError`` tells that another process has the lock.
    """
    file = path.open("ab")
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    except (ImportError, OSError):  # Windows; a file system without locks
        pass
    return file


def make_password(path: Path) -> str:
    """Return the password in a file; make one of 32 random bytes, for this user only, if there is no such file."""
    if not path.exists():
        part, _ = _write_part(path, f"{secrets.token_urlsafe(32)}\n".encode(), private=True, durable=True)
        try:
            os.link(part, path)
        except FileExistsError:  # another process was first: its password counts
            pass
        finally:
            part.unlink()
    return path.read_text(encoding="ascii").strip()


class Rounds:
    """Reads the rounds that a growing ``metrics.jsonl`` gains; the file need not be there yet.

    Unless ``from_start``, what it holds at the first call is skipped: it belongs to an earlier part of the run.
    """

    def __init__(self, path: Path, from_start: bool = False) -> None:
        self._path = path
        self._position = path.stat().st_size if path.is_file() and not from_start else 0

    def new(self) -> list[dict[str, Any]]:
        """Return the rounds that were added since the last call."""
        if not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            # A resumed run first drops the rounds after its last checkpoint.
            self._position = min(self._position, size)
            file.seek(self._position)
            complete, newline, _ = file.read().rpartition(b"\n")
        self._position += len(complete) + len(newline)
        rounds = []
        for line in complete.splitlines():
            try:
                record = json.loads(line)
            # A line's end: the file was shortened and has grown past where we were.
            except (ValueError, RecursionError):
                continue
            record.pop("sha256", None)
            rounds.append(record)
        return rounds
