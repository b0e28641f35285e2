"""What `fedpfl watch` shows: devices, the run, its last rounds, the latest warnings."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.errors import printable
from . import topics
from .telemetry import possible, total_power

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from .publisher import Message

MAX_PAYLOAD = 65_536
MAX_DEPTH = 16
# So that a watcher's memory is bounded, whatever is published.
MAX_ROWS = 1000
LAST_ROUNDS = 8
# Presence is said anew every 15 s: a device of which nothing has come for so long is not there, whatever the broker has
# kept of it. Nobody says so of one that was switched off together with the broker.
SILENT_SECONDS = 90.0
LAST_LINES = 6


class EventError(ValueError):
    """A payload is not one of the events."""


def read_event(topic: str, payload: bytes) -> dict[str, Any]:
    """Return an event's values; its texts are fit for a terminal."""
    if len(payload) > MAX_PAYLOAD:
        raise EventError(f"{topic}: {len(payload)} bytes")
    try:
        values = json.loads(payload)
    except (ValueError, RecursionError):
        raise EventError(f"{topic}: not JSON") from None
    if not isinstance(values, dict):
        raise EventError(f"{topic}: not an object")
    try:
        return {printable(key): _printable(value) for key, value in values.items()}
    except EventError as error:
        raise EventError(f"{topic}: {error}") from None


def _printable(value: Any, depth: int = 1) -> Any:
    if isinstance(value, str):
        return printable(value)
    if depth > MAX_DEPTH:
        raise EventError("nested too deeply")
    if isinstance(value, int) and abs(value) >= 2**63:  # no number of ours; beyond 309 digits it cannot be formatted
        raise EventError("a number that is too large")
    if isinstance(value, dict):
        return {printable(k): _printable(v, depth + 1) for k, v in value.items()}
    return [_printable(v, depth + 1) for v in value] if isinstance(value, list) else value


class LogLine(NamedTuple):
    """A warning or an error of one process of the bridge."""

    at: float  # seconds since 1970, by this machine's clock
    name: str
    text: str


class Board:
    """The latest events of each kind, and the last ``log_lines`` warnings."""

    def __init__(self, clock: Callable[[], float] = time.time, log_lines: int = LAST_LINES) -> None:
        self._clock, self._since = clock, clock()
        self.nodes: dict[str, dict[str, Any]] = {}
        self.bridge: dict[str, Any] = {}
        self.run: dict[str, Any] = {}
        self._bridge_heard = self._since
        self._clients: dict[str, dict[str, Any]] = {}
        self._rounds: deque[dict[str, Any]] = deque(maxlen=LAST_ROUNDS)
        self.log: deque[LogLine] = deque(maxlen=log_lines)

    def receive(self, message: Message) -> None:
        """Add what a message says; one that is no event becomes a line of the log."""
        try:
            self.add(message.topic, read_event(message.topic, message.payload), message.retained)
        except EventError as error:
            self.log.append(LogLine(self._clock(), "", printable(str(error))))

    @property
    def clients(self) -> dict[str, dict[str, Any]]:
        """The last event of each client of the run that is shown: the broker keeps those of earlier runs, too."""
        return {name: values for name, values in self._clients.items() if values.get("run") == self.run.get("run")}

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The last rounds of the run that is shown."""
        return [values for values in self._rounds if values.get("run") == self.run.get("run")]

    def add(self, topic: str, values: Mapping[str, Any], retained: bool = False) -> None:
        """Add an event; one that the broker had retained may be old."""
        parts = printable(topic).split("/")
        kind, name = "/".join(parts[1:2]), parts[2] if len(parts) > 2 else ""
        if kind == "node" and (name in self.nodes or len(self.nodes) < MAX_ROWS):
            node = self.nodes.setdefault(name, {})
            node[parts[-1]] = dict(values)
            if not retained:
                node["heard"] = self._clock()
        elif kind == "log":
            text = f"{values.get('level', '')} {values.get('message', '')}"
            self.log.append(LogLine(self._clock(), name, printable(text, 400)))
        elif topic == topics.BRIDGE_PRESENCE:
            self.bridge = dict(values)
            self._bridge_heard = self._since if retained else self._clock()
        elif topic == topics.RUN_STATE:
            self.run = dict(values)
        elif topic == topics.RUN_ROUNDS:
            self._rounds.append(dict(values))
        elif kind == "run" and (parts[-1] in self._clients or len(self._clients) < MAX_ROWS):
            self._clients[parts[-1]] = dict(values)

    def render(self) -> RenderableType:
        """Return the terminal's content."""
        from rich.console import Group
        from rich.text import Text

        log = "\n".join(f"{line.name}: {line.text}" if line.name else line.text for line in self.log)
        return Group(Text(self.headline()), self._draw_nodes(), self._draw_rounds(), self._draw_clients(), Text(log))

    def headline(self) -> str:
        """Return the state of the run and of the bridge."""
        run = self.run
        text = f"run {run.get('run', '–')}: {run.get('state', 'none seen')}"
        if run.get("round") is not None:
            text += f", round {run['round']} of {run.get('rounds')}, {run.get('method')} on {run.get('dataset')}"
        if run.get("error"):
            text += f" ({run['error']})"
        return f"{text}   bridge: {self._state(self.bridge, self._bridge_heard, 'not seen')}"

    def _state(self, presence: Mapping[str, Any], heard: float, otherwise: str) -> str:
        state = printable(str(presence.get("state", otherwise)))
        return "silent" if state == "online" and self._clock() - heard > SILENT_SECONDS else state

    def devices(self) -> list[dict[str, Any]]:
        """Return the state of each device, by its name.

        That is ``state``, the highest ``temperature`` (°C), free ``memory`` (MiB), ``power`` (mW), and how many seconds
        ago the device was ``heard``; None where it is not reported, or was not heard yet.
        """
        devices = []
        for name, node in sorted(self.nodes.items()):
            report = node.get("telemetry", {})
            devices.append({
                "name": name,
                "state": self._state(node.get("presence", {}), node.get("heard", self._since), "?"),
                "temperature": max(possible(report, "temperature_c").values(), default=None),
                "memory": possible(report, "memory_mib").get("available"),
                "power": total_power(possible(report, "power_mw")),
                "heard": self._clock() - node["heard"] if "heard" in node else None,
            })  # fmt: skip
        return devices

    def _draw_nodes(self) -> RenderableType:
        table = _table("device", "state", "temperature", "memory free", "power", "heard")
        for device in self.devices():
            table.add_row(
                _text(device["name"]), _text(device["state"]), _unit(device["temperature"], "°C"),
                _unit(device["memory"], "MiB"), _unit(device["power"], "mW"), _unit(device["heard"], "s ago"),
            )  # fmt: skip
        return table

    def _draw_rounds(self) -> RenderableType:
        table = _table("round", "personalised", "global", "loss", "seconds", "MB")
        for line in self.rounds:
            moved = sum(_numbers(line.get(key) for key in ("bytes_up", "bytes_down")))
            table.add_row(
                _text(line.get("round")), _accuracy(line.get("personalised")), _accuracy(line.get("global")),
                _unit(line.get("train_loss"), "", 3), _unit(line.get("seconds"), "", 1), f"{moved / 1e6:.1f}",
            )  # fmt: skip
        return table

    def _draw_clients(self) -> RenderableType:
        clients = sorted(self.clients.items(), key=lambda item: (len(item[0]), item[0]))
        return _text(
            "clients: " + "  ".join(f"{name} {_accuracy(values)}" for name, values in clients) if clients else ""
        )


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right")
    return table


def _text(value: object) -> Text:
    from rich.text import Text

    return Text(str(value))  # a text from the network must not be taken for markup


def _numbers(values: Iterable[object]) -> list[float]:
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    return [value for value in numbers if math.isfinite(value)]


def _unit(value: object, unit: str, digits: int = 0) -> str:
    return f"{value:.{digits}f} {unit}".strip() if isinstance(value, (int, float)) else "–"


def _accuracy(values: object) -> str:
    share = values.get("accuracy") if isinstance(values, dict) else None
    return f"{100 * share:.1f} %" if isinstance(share, (int, float)) else "–"
