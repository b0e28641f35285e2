"""The clients that can be asked in a round: those of a file, or of a function of the user's."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from ...core import custom, own_code
from ...core.errors import ConfigError, DamagedFile
from ...core.files import open_regular
from ...core.rng import generator
from ...core.server_view import Client
from ...setup.config import Config
from ...setup.options.participation import ParticipationSettings

KEY, ENDING, COLUMNS = "available-clients", ".csv", ["client", "first", "last"]
# Of a file, and of what a function says of a round.
MAX_ROWS = 1_000_000

Available = Callable[[int, Sequence[Client]], list[Client]]


def check(config: Config) -> None:
    """Raise ``ConfigError`` for a file or a function that there is not."""
    if text := config.of(ParticipationSettings).available_clients:
        available(text, config)


def available(text: str, config: Config, number_of: Callable[[str], int] = int) -> Available:
    """Return a function that tells the clients of those that are there that can be asked in a round.

    ``number_of`` returns the number of the client that a row of a file names.
    """
    if not text.endswith(ENDING):
        if not custom.is_reference(text):
            raise ConfigError(KEY, text, f"must be a file that ends in {ENDING}, or {custom.FORM}")
        function = own_code.find(KEY, text)
        own_code.guarded(KEY, text, function)

        def named(number: int, there: Sequence[Client]) -> set[int]:
            rng = generator(config.run.seed, "available clients", number)
            said = own_code.call(KEY, text, function, {"round": number, "clients": list(there), "rng": rng})
            try:
                numbers_named = {int(client) for client in said}
            except (TypeError, ValueError):
                raise ConfigError(KEY, text, f"returns {custom.article(said)}, and must return numbers") from None
            if others := numbers_named - {client.id for client in there}:
                raise ConfigError(KEY, text, f"returns {min(others)} in round {number}, and there is no such client")
            return numbers_named
    else:
        rows, numbers = _rows(Path(text).expanduser()), dict[str, int]()

        def named(number: int, there: Sequence[Client]) -> set[int]:
            for client, *_ in rows if not numbers else ():
                numbers[client] = number_of(client)
            return {numbers[client] for client, first, last in rows if first <= number <= last}

    def available_in(number: int, there: Sequence[Client]) -> list[Client]:
        numbers_named = named(number, there)
        if not (left := [client for client in there if client.id in numbers_named]):
            raise ConfigError(KEY, text, f"leaves no client in round {number}")
        return left

    return available_in


def _rows(path: Path) -> list[tuple[str, int, int]]:
    """Return client, first and last round of each row; ``ConfigError`` for a file that is not as it must be."""
    try:
        with open_regular(path) as content, io.TextIOWrapper(content, encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            head, periods = next(lines, []), list[tuple[str, int, int]]()
            if head != COLUMNS:
                raise ConfigError(KEY, str(path), f"must begin with the line {','.join(COLUMNS)}")
            for row in lines:
                place = f"line {lines.line_num}"
                if len(row) != len(COLUMNS) or not all(cell.isdecimal() and len(cell) < 8 for cell in row[1:]):
                    raise ConfigError(KEY, str(path), f"{place}: must be a client and two rounds")
                first, last = map(int, row[1:])
                if not 1 <= first <= last or len(periods) == MAX_ROWS:
                    raise ConfigError(KEY, str(path), f"{place}: rounds count from 1; at most {MAX_ROWS} rows")
                periods.append((row[0].strip(), first, last))
    except DamagedFile as error:
        raise ConfigError(KEY, str(path), f"cannot be read ({error.more})") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(KEY, str(path), f"cannot be read ({getattr(error, 'strerror', None) or error})") from error
    return periods
