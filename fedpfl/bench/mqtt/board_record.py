"""What boards needed in each round of a run: a line for each board and round in ``RUN/boards.csv``."""

from __future__ import annotations

import csv
import io
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import DamagedFile, printable
from ...core.files import read_regular
from .status import EventError, read_event
from .telemetry import POSSIBLE, possible, total_power
from .warning_limit import MAX_SENDERS

FILE = "boards.csv"
COLUMNS = (
    "round", "board", "seconds", "joules", "mean_watts", "highest_celsius", "cpu_share", "least_free_mib", "bytes_in",
    "bytes_out", "reports",
)  # fmt: skip
MAX_BYTES = 100_000_000
# Between two reports that are further apart, as after a break of the network, nothing is known of the board.
LONGEST_GAP = 30.0


class BoardTotals(NamedTuple):
    """What a board needed in all recorded rounds of a run; None where it measured it in none."""

    name: str
    rounds: int  # of which there are reports
    seconds: float
    joules: float | None
    mean_watts: float | None
    highest_celsius: float | None
    cpu_share: float | None
    least_free_mib: float | None
    bytes_in: float | None
    bytes_out: float | None


def boards(run: Path) -> list[BoardTotals]:
    """Return the needs of each board of a run, by name; nothing of a run without ``boards.csv``.

    A round that was repeated after a resume counts as often as it was carried out. Raise :class:`DamagedFile` for a
    file that is none of this program's.
    """
    path = run / FILE
    try:
        text = read_regular(path, MAX_BYTES).decode()
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as error:
        raise DamagedFile(path, "it is not text") from error
    lines: dict[str, list[dict[str, float]]] = {}
    for number, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
        try:
            name = printable(row["board"])
            values = {key: float(row[key]) for key in COLUMNS if key != "board" and row[key]}
            if not all(map(math.isfinite, values.values())):
                raise ValueError("no number")
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFile(path, f"line {number}") from error
        lines.setdefault(name, []).append(values)
    return [_totals(name, reports) for name, reports in sorted(lines.items())]


def _totals(name: str, lines: Sequence[Mapping[str, float]]) -> BoardTotals:
    def each(key: str) -> list[float]:
        return [line[key] for line in lines if key in line]

    def total(key: str) -> float | None:
        return sum(each(key)) if each(key) else None

    # A round's means hold for as long as it took.
    timed = {key: [(line[key], line["seconds"]) for line in lines if key in line and line.get("seconds")]
             for key in ("mean_watts", "cpu_share")}  # fmt: skip
    mean = {
        key: sum(value * seconds for value, seconds in pairs) / sum(seconds for _, seconds in pairs) if pairs else None
        for key, pairs in timed.items()
    }
    return BoardTotals(
        name, len({line.get("round") for line in lines}), sum(each("seconds")), total("joules"), mean["mean_watts"],
        max(each("highest_celsius"), default=None), mean["cpu_share"], min(each("least_free_mib"), default=None),
        total("bytes_in"), total("bytes_out"),
    )  # fmt: skip


class _Round:
    """What a board has reported since the last round ended."""

    def __init__(self) -> None:
        self.reports, self.seconds, self.powered, self.joules, self.busy, self.all = 0, 0.0, 0.0, 0.0, 0.0, 0.0
        self.bytes = {"in": 0.0, "out": 0.0}
        self.celsius: float | None = None
        self.free: float | None = None

    def row(self, number: int, board: str) -> list[object]:
        """Return a line of the file; what was not measured is empty."""

        def rounded(value: float | None, digits: int = 1) -> object:
            return "" if value is None else round(value, digits or None)

        powered = self.powered > 0
        return [
            number, board, rounded(self.seconds), rounded(self.joules if powered else None),
            rounded(self.joules / self.powered if powered else None, 3), rounded(self.celsius),
            rounded(min(1.0, self.busy / self.all) if self.all else None, 3), rounded(self.free, 0),
            *(rounded(self.bytes[way] if self.all else None, 0) for way in ("in", "out")), self.reports,
        ]  # fmt: skip


class BoardRecord:
    """Joins boards' telemetry to rounds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, dict[str, Any]] = {}
        self._rounds: dict[str, _Round] = {}

    def hear(self, board: str, topic: str, payload: bytes) -> None:
        """Add a report; times and counts are the board's own. One that is none changes nothing."""
        try:
            values = _checked(read_event(topic, payload))
        except EventError:
            return
        with self._lock:
            if board not in self._last and len(self._last) >= MAX_SENDERS:
                return
            before = self._last.get(board)
            self._last[board] = values
            here = self._rounds.setdefault(board, _Round())
            here.reports += 1
            for degrees in values["temperature_c"].values():
                here.celsius = degrees if here.celsius is None else max(here.celsius, degrees)
            if "available" in values["memory_mib"]:
                free = values["memory_mib"]["available"]
                here.free = free if here.free is None else min(here.free, free)
            seconds = values["time"] - before["time"] if before else 0.0
            if before is None or not 0 < seconds <= LONGEST_GAP:
                return
            here.seconds += seconds
            powers = [total_power(one["power_mw"]) for one in (before, values)]
            if None not in powers:
                here.powered += seconds
                here.joules += seconds * sum(power or 0.0 for power in powers) / 2000
            # A board that was started again counts from 0.
            for name, kind in (("busy", "cpu_s"), ("all", "cpu_s")):
                grown = values[kind].get(name, 0.0) - before[kind].get(name, 0.0)
                setattr(here, name, getattr(here, name) + max(0.0, grown))
            for way in here.bytes:
                grown = values["network_bytes"].get(way, 0.0) - before["network_bytes"].get(way, 0.0)
                here.bytes[way] += max(0.0, grown)

    def round_ended(self, run: Path, number: int) -> None:
        """Write a line for each board that was heard of since the last round ended."""
        with self._lock:
            rounds, self._rounds = self._rounds, {}
        text, path = io.StringIO(), run / FILE
        writer = csv.writer(text, lineterminator="\n")
        if not path.is_file():
            writer.writerow(COLUMNS)
        writer.writerows(rounds[board].row(number, board) for board in sorted(rounds))
        with path.open("a", encoding="utf-8") as file:
            file.write(text.getvalue())

    def forget(self) -> None:
        """Begin anew: what was reported before a run belongs to none."""
        with self._lock:
            self._rounds = {}


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a report, which must have a time."""
    if type(values.get("time")) not in (int, float) or not math.isfinite(values["time"]):
        raise EventError("no time")
    return {"time": float(values["time"]), **{kind: possible(values, kind) for kind in POSSIBLE}}
