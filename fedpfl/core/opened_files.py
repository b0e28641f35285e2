"""The files that code of the user's opens by itself: what it computes depends on them, and no setting names them."""

from __future__ import annotations

import os
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any, Iterator

# What is looked at: for each thread, what its code has opened to read and to write.
_watched: dict[int, list[tuple[set[str], set[str]]]] = {}
_opened: dict[str, set[str]] = {}
_PARTS_OF_PACKAGES = {"site-packages", "dist-packages"}


class _Hook:
    """Python's audit hook: it stays for the life of the process, so there is one."""

    is_set = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not _watched or get_ident() not in _watched:
            return
        place, mode, flags = arguments
        if not isinstance(place, (str, bytes)):  # the number of a file that is open already
            return
        writes = flags & (os.O_WRONLY | os.O_RDWR) if mode is None else set(mode) & set("wax+")
        for read, written in _watched[get_ident()]:
            (written if writes else read).add(str(Path.cwd() / os.fsdecode(place)))


_hook = _Hook()


@contextmanager
def noted(name: str) -> Iterator[None]:
    """Note under a name which files this thread opens to read, and which modules of the user's are new after it."""
    if not _hook.is_set:
        sys.addaudithook(_hook)
        _hook.is_set = True
    read: set[str] = set()
    written: set[str] = set()
    before, watched = set(sys.modules), _watched.setdefault(get_ident(), [])
    watched.append((read, written))
    try:
        yield
    finally:
        watched.pop()
        if not watched:
            del _watched[get_ident()]
        new = set(sys.modules) - before
        places = (getattr(sys.modules.get(module), "__file__", None) for module in new)
        read.update(str(Path.cwd() / place) for place in places if isinstance(place, str))
        if name in new:  # imported now: what an earlier one has opened does not count
            _opened.pop(name, None)
        _opened.setdefault(name, set()).update(path for path in read - written if _counts(Path(path)))


def opened_by(name: str) -> list[Path]:
    """Return the files that were noted under a name and are still there."""
    return [path for path in map(Path, sorted(_opened.get(name, ()))) if path.is_file()]


def _counts(path: Path) -> bool:
    """Tell whether a file may be the user's: no part of Python or of a package, nor hidden, nor one of the system."""
    package = Path(__file__).resolve().parents[1]
    others = (package, Path(sysconfig.get_paths()["stdlib"]).resolve(), *map(Path, ("/proc", "/sys", "/dev", "/etc")))
    resolved = path.resolve()
    if not path.is_file() or path.suffix == ".pyc" or _PARTS_OF_PACKAGES & {*resolved.parts}:
        return False
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and not any(other in resolved.parents for other in others)
