"""The names that a testbed's owner has given to its boards, by the clients that run there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from ..core.errors import ConfigError, DamagedFile, printable
from ..core.files import read_regular
from ..core.name_lists import in_short

# Names a file of the server's machine: {"nano-1": [0, 1, 2]}.
VARIABLE = "FEDPFL_BOARDS"
MAX_BYTES, MAX_NAME = 1_000_000, 25

Boards = Mapping[str, Sequence[int]]


def board_names() -> dict[str, list[int]]:
    """Return the clients of each board; none where the server's environment names no file of them."""
    path = os.environ.get(VARIABLE, "")
    return _read(path) if path else {}


@cache  # what goes wrong in a run must not be hidden by a file that is gone since
def _read(path: str) -> dict[str, list[int]]:
    try:
        boards = json.loads(read_regular(Path(path), MAX_BYTES))
    except (OSError, ValueError, RecursionError, DamagedFile) as error:
        raise ConfigError(VARIABLE, path, f"cannot be read ({error})") from error
    lists = [*boards.values()] if isinstance(boards, dict) else [None]
    if not all(isinstance(clients, list) and all(type(number) is int for number in clients) for clients in lists):
        raise ConfigError(VARIABLE, path, 'must have the clients of each board, as in {"nano-1": [0, 1, 2]}')
    return {printable(name, MAX_NAME): clients for name, clients in boards.items()}


def shown_on_boards(clients: Iterable[int]) -> str:
    """Return clients with the boards on which they are now: :func:`with_boards` of :func:`board_names`."""
    return with_boards(clients, board_names())


def with_boards(clients: Iterable[int], boards: Boards) -> str:
    """Return clients in order, the first ones if there are many, and in brackets on which board those before it are.

    Examples
    --------
    >>> from fedpfl.results.board_names import with_boards
    >>> with_boards([3, 9, 10, 30], {"nano-2": [3, 4], "nano-4": [9, 10]})
    '3 (nano-2), 9, 10 (nano-4), 30'
    """
    board_of = {client: name for name, there in boards.items() for client in there}
    ordered = sorted(clients)
    names = [board_of.get(client, "") for client in ordered]
    ends = [name if name and following != name else "" for name, following in zip(names, [*names[1:], ""], strict=True)]
    return in_short([f"{client} ({end})" if end else str(client) for client, end in zip(ordered, ends, strict=True)])
