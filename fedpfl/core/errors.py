"""Errors that a user can cause; each is one line that tells the user what to change."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Callable, Collection, Iterable, Mapping, Sequence

# Those that steer a terminal, that XML forbids, or that turn the direction in which a line is read.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Characters of a setting's value that an error shows: a path may have as many.
MAX_SHOWN = 4096
# What a user's code may raise and one line then tells; of Ctrl-C, KeyboardInterrupt, the whole program ends.
RAISED = (Exception, SystemExit, GeneratorExit)


class FedpflError(Exception):
    """Base of every error that the program explains in one line instead of a traceback.

    Examples
    --------
    >>> import fedpfl
    >>> try:
    ...     fedpfl.load("no-such-run")
    ... except fedpfl.FedpflError as error:
    ...     print(type(error).__name__)
    ConfigError
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(named(text) if isinstance(text, str) else text for text in arguments))


class ConfigError(FedpflError):
    """A setting has a value that is not allowed.

    Parameters
    ----------
    key : str
        The setting as the user writes it, for example ``dirichlet-alpha``.
    value : object
        What was given.
    message : str
        What would be right, in words: it follows the key and the value.

    Examples
    --------
    >>> import fedpfl
    >>> try:
    ...     fedpfl.run(dataset="digits", learning_rate=0.0)
    ... except fedpfl.ConfigError as error:
    ...     print(error)
    learning-rate = 0.0: must be > 0
    """

    def __init__(self, key: str, value: object, message: str) -> None:
        super().__init__(f"{key[:MAX_SHOWN]} = {_shown(value)}: {message[: 4 * MAX_SHOWN]}")
        self.key = key
        self.value = value
        self.message = message

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, object, str]]:
        # Errors are pickled between processes; Exception's own reduce would replay the message as `key`.
        return (ConfigError, (self.key, self.value, self.message))


def named(text: str) -> str:
    """Return a text with the names of the user's objects in place of the texts by which a run knows them.

    Such as ``Net`` for ``python:Net#7``.
    """
    return re.sub(r"\bpython:(\w+)#\d+", r"\1", text)


def _shown(value: object, limit: int = 300) -> str:
    """Return a value as Python writes it, in one line; of an array, or of what is longer, its type."""
    kind = type(value).__name__
    if hasattr(value, "__array__"):
        return f"({kind} of shape {tuple(getattr(value, 'shape', ()))})"
    if isinstance(value, str):  # of a path all, of what a server or client made up the beginning
        return repr(value) if len(value) <= MAX_SHOWN else f"{value[:limit]!r}… ({len(value)} characters)"
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        return f"({kind})"
    return text if len(text) <= limit and "\n" not in text else f"({kind})"


class DataError(FedpflError):
    """The data cannot feed the federation that was asked for.

    Examples
    --------
    >>> import fedpfl
    >>> try:
    ...     fedpfl.run(dataset="digits", num_clients=2000)
    ... except fedpfl.DataError as error:
    ...     print("too few samples")
    too few samples
    """


class LayoutError(FedpflError):
    """Arrays that were received are not the arrays that were expected.

    Examples
    --------
    >>> import fedpfl
    >>> import numpy as np
    >>> from torch import nn
    >>> try:
    ...     fedpfl.Sharing(nn.Linear(2, 2), lambda name: True).set_shared(np.zeros(5, np.float32))
    ... except fedpfl.LayoutError:
    ...     print("a vector of another length")
    a vector of another length
    """


class TooLong(LayoutError):
    """An update that was received is longer than is accepted."""


class TrainingDiverged(FedpflError):
    """Local training ended in values that are not finite."""


class UnusedParameter(FedpflError):
    """Parameters are to be trained on a loss that depends on none of them."""


class NoPlainModel(FedpflError):
    """The method predicts with something that no single plain model can be.

    Examples
    --------
    >>> import fedpfl
    >>> run = fedpfl.run(
    ...     method="local", dataset="digits", model="mlp", num_clients=4, num_server_rounds=1, local_epochs=1,
    ...     quiet=True,
    ... )
    >>> try:
    ...     run.model()
    ... except fedpfl.NoPlainModel:
    ...     print("nothing is shared")
    nothing is shared
    """


class StateError(FedpflError):
    """A stored file (personal state, checkpoint, result) is missing or damaged."""


class DamagedFile(StateError):
    """A stored file does not hold what was written to it."""

    def __init__(self, path: Path, more: str = "") -> None:
        super().__init__(
            f"{path}: is damaged or was changed: its content is not what was written{more and f' ({more})'}"
        )
        self.path = path
        self.more = more

    def __reduce__(self) -> tuple[type[DamagedFile], tuple[Path, str]]:
        return (DamagedFile, (self.path, self.more))


def did_you_mean(word: object, candidates: Iterable[str]) -> str:
    """Return a hint at known words like ``word``: ``; did you mean fedavg?``, or nothing."""
    # Imported here: only the error needs it.
    from difflib import get_close_matches

    names, wanted = list(candidates), str(word)[:100].lower()
    # Users shorten a name to its last part: rounds for num-server-rounds.
    near = get_close_matches(wanted, names, 3) or [name for name in names if name.endswith(f"-{wanted}")][:3]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def one_of(word: object, choices: Collection[str], *more: str) -> str:
    """Name the choices in place of ``word``: all, or of more than 20 only those that are like it."""
    hint = did_you_mean(word, choices)
    names = f"{len(choices)} names" if hint and len(choices) > 20 else ", ".join(choices)
    return f"must be one of {', or '.join([names, *more])}{hint}"


def printable(text: str, limit: int = 200) -> str:
    """Return a text from the network as one line of printable characters, cut to ``limit``."""
    # Cut first: it may be as long as a message.
    line = "".join(char if char.isprintable() else " " for char in text[: limit + 1])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def line_of(error: Exception) -> str:
    """Return an error's text in one line to send or log: a text of the server's in it may be as long as a message."""
    return printable(str(error), MAX_SHOWN)


def uncontrolled(text: str) -> str:
    """Return a text with a space in place of each control character; tabs and ends of lines stay."""
    return _CONTROL.sub(" ", text)


def in_a_row(numbers: Sequence[int]) -> str:
    """Return numbers between commas."""
    return ", ".join(map(str, numbers))


def reasons(
    failed: Mapping[int, str], who: str, limit: int = 3, shown: Callable[[Sequence[int]], str] = in_a_row
) -> str:
    """Tell why clients or nodes failed: those with the same reason together, at most ``limit`` reasons.

    ``shown`` makes a text of numbers in order.
    """
    same: dict[str, list[int]] = {}
    for number, reason in failed.items():
        same.setdefault(reason, []).append(number)
    lines = [f"{_numbered(numbers, who, shown)}: {reason}" for reason, numbers in list(same.items())[:limit]]
    more = len(same) - len(lines)
    return "; ".join([*lines, *([f"and {more} other reasons"] if more else [])])


def _numbered(numbers: Sequence[int], who: str, shown: Callable[[Sequence[int]], str]) -> str:
    first = shown(sorted(numbers)[:5])
    return f"{who}{'s' * (len(numbers) > 1)} {first}{f' and {len(numbers) - 5} more' * (len(numbers) > 5)}"


def words_of(error: BaseException, most: int = 160) -> str:
    """Return the text of an exception, on one line of at most ``most`` characters."""
    return " ".join(str(error).split())[:most]


def in_one_line(error: BaseException) -> str:
    """Return the text of an exception and its place: ``ValueError: no such shape (parts.py, line 12)``."""
    try:
        text = printable(" ".join(str(error).split()), 500)
    except RAISED as other:
        text = f"its text cannot be made ({type(other).__name__})"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({Path(error.filename).name}, line {error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({Path(frame.filename).name}, line {frame.lineno})" for frame in last)
    return f"{type(error).__name__}{': ' * bool(text)}{text}{where}"
