"""Errors that a user can cause; each is one line that says what to change."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Iterable


class FedpflError(Exception):
    """Base of every error that the program explains in one line instead of a traceback."""


class ConfigError(FedpflError):
    """A setting has a value that is not allowed.

    Parameters
    ----------
    key : str
        The setting as the user writes it, for example ``dirichlet-alpha``.
    value : object
        What was given.
    allowed : str
        What is allowed, in words.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key} = {value!r}: {allowed}")
        self.key = key
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        # Errors are pickled between processes; Exception's own reduce would replay the message as `key`.
        return (ConfigError, (self.key, self.value, self.allowed))


class DataError(FedpflError):
    """The data cannot feed the federation that was asked for."""


class LayoutError(FedpflError):
    """Arrays that were received are not the arrays that were expected."""


class TrainingDiverged(FedpflError):
    """Local training ended in values that are not finite."""


class NoPlainModel(FedpflError):
    """The method predicts with something that no single plain model can be."""


class StateError(FedpflError):
    """A stored file (personal state, checkpoint, result) is missing or damaged."""


class DamagedFile(StateError):
    """A stored file does not hold what was written to it.

    Parameters
    ----------
    path : Path
        The file.
    more : str
        What else there is to know.
    """

    def __init__(self, path: Path, more: str = "") -> None:
        super().__init__(f"{path}: is damaged or was changed: it does not hold what was written{more and f' ({more})'}")
        self.path = path
        self.more = more

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[Path, str]]:
        return (DamagedFile, (self.path, self.more))


def meant(word: object, known: Iterable[str]) -> str:
    """Ask for the known words that are nearly ``word``: ``; did you mean fedavg?``, or nothing."""
    # Imported here: only the error needs it.
    from difflib import get_close_matches

    near = get_close_matches(str(word).lower(), known, 3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def in_one_line(error: Exception) -> str:
    """Return what an exception says, and where it was raised: ``ValueError: no such shape (parts.py, line 12)``."""
    words = " ".join(str(error).split())[:500]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)
    return f"{type(error).__name__}{': ' * bool(words)}{words}{where}"
