"""The files and variables of the environment that code of the user's reads by itself.

What it computes depends on them, and no setting names them.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import get_ident
from typing import Any, Iterator


@dataclass
class _Inputs:
    """What code has read: paths of files, and names of variables of the environment."""

    files: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.files or self.variables)

    def add(self, others: _Inputs) -> None:
        """Add those of another call."""
        self.files |= others.files
        self.variables |= others.variables


# What is looked at: for each thread, what its code has read, and the files to which it has written.
_watched: dict[int, list[tuple[_Inputs, set[str]]]] = {}
# By the name of a module, or the text of what was called; and which of these texts only earlier runs have called.
_noted: dict[str, _Inputs] = {}
_of_earlier_runs: set[str] = set()
_PARTS_OF_PACKAGES = {"site-packages", "dist-packages"}
# Those that tell the machine, its users and its jobs, and nothing of what a run computes.
_OF_MACHINES = (
    "CUDA_", "HOME", "HOSTNAME", "LOGNAME", "LSB_", "OMP_", "PATH", "PBS_", "PWD", "SLURM_", "TMPDIR", "USER"
)  # fmt: skip
# Through which code reaches the environment.
_WAYS = ("os", "_collections_abc", "collections.abc")
# The folders of this package and of Python's library, in which no file is the user's.
OF_PACKAGE_AND_PYTHON = (Path(__file__).resolve().parents[1], Path(sysconfig.get_paths()["stdlib"]).resolve())
_OF_NOBODY = (*OF_PACKAGE_AND_PYTHON, *map(Path, ("/proc", "/sys", "/dev", "/etc")))


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
            (written if writes else read.files).add(str(Path.cwd() / os.fsdecode(place)))

    def set(self) -> None:
        """Begin to look, once."""
        if self.is_set:
            return
        self.is_set = True
        sys.addaudithook(self)
        usual = type(os.environ).__getitem__

        def getitem(environment: Any, name: Any) -> Any:
            """Note a variable that code of the user's asks for, also one that is not set."""
            if _watched and environment is os.environ and get_ident() in _watched and isinstance(name, str):
                frame = sys._getframe(1)
                while frame.f_back is not None and frame.f_globals.get("__name__") in _WAYS:
                    frame = frame.f_back
                if not name.startswith(_OF_MACHINES) and _counts(Path(frame.f_code.co_filename)):
                    for read, _ in _watched[get_ident()]:
                        read.variables.add(name)
            return usual(environment, name)

        type(os.environ).__getitem__ = getitem  # type: ignore[method-assign]


_hook = _Hook()


@contextmanager
def noted(name: str, importing: bool = False) -> Iterator[None]:
    """Note under a name which files and variables this thread reads, and which modules of the user's are new after it.

    What an earlier import has opened no longer counts, nor what a call of an earlier run has. That stays if the call
    imported a module, which is imported once, or if nothing is opened now: the code may have kept what it read.
    """
    _hook.set()
    read = _Inputs()
    written: set[str] = set()
    before, watched = [*sys.modules], _watched.setdefault(get_ident(), [])
    watched.append((read, written))
    try:
        yield
    finally:
        watched.pop()
        if not watched:
            del _watched[get_ident()]
        after = [*sys.modules]
        new = set(after) - set(before) if after != before else set()  # most calls import nothing; there are thousands
        places = (getattr(sys.modules.get(module), "__file__", None) for module in new)
        read.files.update(str(Path.cwd() / place) for place in places if isinstance(place, str))
        read.files = {path for path in read.files - written if _counts(Path(path))}
        if name in new if importing else read and name in _of_earlier_runs and not _has_module(_noted[name].files):
            _noted.pop(name, None)
        if read:
            _of_earlier_runs.discard(name)
        _noted.setdefault(name, _Inputs()).add(read)


def begin_run() -> None:
    """Note that a run begins: what is called in it opens its files again."""
    _of_earlier_runs.update(_noted)


def opened_by(name: str) -> list[Path]:
    """Return the files that were noted under a name and are still there."""
    return [Path(path) for path in sorted(_noted.get(name, _Inputs()).files) if Path(path).is_file()]


def variables_of(name: str) -> list[str]:
    """Return the variables of the environment that were noted under a name."""
    return sorted(_noted.get(name, _Inputs()).variables)


def _has_module(paths: set[str]) -> bool:
    return any(getattr(module, "__file__", None) in paths for module in [*sys.modules.values()])


def _counts(path: Path) -> bool:
    """Tell whether a file may be the user's: no part of Python or of a package, nor hidden, nor one of the system."""
    resolved = path.resolve()
    if not path.is_file() or path.suffix == ".pyc" or _PARTS_OF_PACKAGES & {*resolved.parts}:
        return False
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and not any(folder in resolved.parents for folder in _OF_NOBODY)
