"""The state of a testbed, published as JSON for `fedpfl watch` and other subscribers.

No run needs it, so publishing never waits, and events are lost without a connection.
"""

from __future__ import annotations

import fcntl
import json
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...core.checksummed_files import read_toml
from ...core.errors import FedpflError, printable
from ...core.files import Rounds, open_regular
from . import telemetry, topics
from .board_record import BoardRecord
from .publisher import Message, Publisher

logger = logging.getLogger(__name__)

TELEMETRY_SECONDS = 5.0
FOLLOW_SECONDS = 1.0
MAX_LOG_LENGTH = 500


class Events:
    """Publishes events."""

    def __init__(self, link: Publisher, name: str) -> None:
        self._link = link
        self._name = name

    def run_state(self, run: str, state: str, **details: Any) -> None:
        """Publish what a run is doing: ``running``, ``finished``, ``failed`` or ``stopped``; retained."""
        self._publish(topics.RUN_STATE, {"run": run, "state": state, **details}, retain=True)

    def round_metrics(self, run: str, line: Mapping[str, Any]) -> None:
        """Publish a line of ``metrics.jsonl``: the round as a whole, and each client's accuracy (retained)."""
        whole = {key: _without_clients(value) for key, value in line.items()}
        self._publish(topics.RUN_ROUNDS, {"run": run, **whole})
        for number, accuracy in (line.get("personalised") or {}).get("each", {}).items():
            event = {"run": run, "client": int(number), "round": line["round"], "accuracy": accuracy}
            self._publish(topics.client(int(number)), event, retain=True)

    def telemetry(self) -> None:
        """Publish this machine's temperature, memory and power."""
        self._publish(topics.telemetry(self._name), telemetry.read())

    def log(self, level: str, message: str) -> None:
        """Publish a line of the log."""
        self._publish(topics.log(self._name), {"level": level, "message": message[:MAX_LOG_LENGTH]})

    def _publish(self, topic: str, values: Mapping[str, Any], retain: bool = False) -> None:
        payload = json.dumps({"time": round(time.time(), 3), **values}, separators=(",", ":")).encode()
        self._link.publish(Message(topic, payload), retain)


def _without_clients(value: Any) -> Any:
    return {k: v for k, v in value.items() if k not in ("each", "samples")} if isinstance(value, dict) else value


class LogEvents(logging.Handler):
    """Publishes warnings and errors of this process."""

    def __init__(self, events: Events) -> None:
        super().__init__(logging.WARNING)
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        """Publish one record."""
        self._events.log(record.levelname.lower(), record.getMessage())


class RunFollower:
    """Publishes the newest run below a folder: its state, its rounds and their clients.

    What ``boards`` has heard of boards in a round is written into the run's folder.
    """

    def __init__(self, events: Events, runs: Path, boards: BoardRecord | None = None) -> None:
        self._boards = boards or BoardRecord()
        self._events = events
        self._runs = runs
        self._run: Path | None = None
        self._rounds: Rounds | None = None
        self._config: dict[str, Any] = {}
        self._last: tuple[dict[str, str], int] | None = None

    def follow(self, stopping: threading.Event) -> None:
        """Publish what is new, once a second, until ``stopping`` is set."""
        while not stopping.wait(FOLLOW_SECONDS):
            try:
                self.look()
            except (FedpflError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                logger.warning("%s cannot be followed: %s", self._run or self._runs, error)
                stopping.wait(10 * FOLLOW_SECONDS)

    def look(self) -> None:
        """Publish what is new."""
        newest = max(self._runs.glob("*/config.toml"), key=lambda path: path.stat().st_mtime, default=None)
        if newest is None:
            return
        if newest.parent != self._run:
            self._config = read_toml(newest)  # first: where it is damaged, nothing is said with another run's settings
            self._run, self._last = newest.parent, None
            self._boards.forget()
            self._rounds = Rounds(self._run / "metrics.jsonl", from_start=True)
        assert self._run is not None and self._rounds is not None
        number = self._last[1] if self._last else 0
        for line in self._rounds.new():
            self._events.round_metrics(self._run.name, line)
            self._boards.round_ended(self._run, int(line["round"]))
            number = line["round"]
        state = state_of(self._run)
        if (state, number) != self._last:
            self._last = (state, number)
            event: dict[str, Any] = {key: self._config.get(key) for key in ("method", "dataset", "model")}
            total = self._config.get("num-server-rounds")
            self._events.run_state(self._run.name, round=number, rounds=total, **event, **state)


def state_of(run: Path) -> dict[str, str]:
    """Return the ``state`` of a run by its folder, of a failed one with the ``error``."""
    if (run / "summary.md").is_file():
        return {"state": "finished"}
    if _is_running(run / ".lock"):
        return {"state": "running"}
    try:
        with open_regular(run / "failed.txt") as file:
            error = file.read(4 * MAX_LOG_LENGTH).decode("utf-8", "replace").strip()
    except FileNotFoundError:  # its server was killed, or told to end
        return {"state": "stopped"}
    return {"state": "failed", "error": printable(error, MAX_LOG_LENGTH)}


def _is_running(lock: Path) -> bool:
    """Return whether a server holds the run's lock, will hold it in a moment, or may hold it."""
    try:
        with open_regular(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
