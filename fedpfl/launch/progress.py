"""How the progress of runs is shown: in lines on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import WARNING, Handler, LogRecord, getLogger
from typing import Any

import numpy as np

from ..core.metrics import CLASSES
from ..engine.listener import Listener
from ..results.round_line import in_words
from ..results.round_record import Round
from ..results.run_folder import RunFolder
from ..rules import Rule


class Display(Listener):
    """Shows a run on standard error: stages and rounds with the seconds since the start, and lines of text."""

    _loss = CLASSES

    def __init__(self, total: int, quiet: bool = False) -> None:
        self._total, self._quiet, self._started = total, quiet, time.monotonic()

    def show_step(self, step: str) -> None:
        """Print what the run is doing, before its first round and after its last."""
        if not self._quiet:
            print(f"[{time.monotonic() - self._started:6.1f} s] {step}", file=sys.stderr, flush=True)

    def round(self, line: Mapping[str, Any]) -> None:
        """Print a finished round, given its line of ``metrics.jsonl``."""
        self.show_step(f"round {line['round']}/{self._total}: {in_words(line, loss=self._loss)}")

    def line(self, text: str) -> None:
        """Print a line of text, such as a warning, also where no progress is shown."""
        print(text, file=sys.stderr, flush=True)

    def printed(self, client: int, text: str) -> None:
        """Print each line that a client has printed, with the client's number before it."""
        for line in text.splitlines():
            self.line(f"client {client}: {line}")

    def run_started(self, folder: RunFolder, remarks: Sequence[str]) -> None:
        """Print the remarks."""
        self._loss = str(folder.config()["loss"])
        for remark in remarks:
            self.line(f"note: {remark}")
        self.show_step("first round")

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Print the round."""
        self.round(done.line)
        return False


class GridLines:
    """Plain lines for a grid of runs: one when a run starts and one when it ends."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet, self._since = quiet, time.monotonic()
        self._runs = self._done = self._left = self._passed = 0
        self._last: dict[str, str] = {}
        self._reached: dict[str, int] = {}

    def begin(self, runs: int, done: int, rounds: int) -> None:
        """Print how much there is to do."""
        self._runs, self._done, self._left, self._since = runs, done, rounds, time.monotonic()
        many, left = "s" * (runs != 1), "s" * (rounds != 1)
        self._say(f"{runs} run{many}, {done} of them done before; {rounds} round{left} to go")

    def started(self, run: Any) -> None:
        """Print which run starts."""
        self._say(f"{run.name}: starts")

    def round(self, run: Any, line: dict[str, Any]) -> None:
        """Count a round."""
        self._passed += 1
        self._last[run.name] = in_words(line, loss=str(run.settings["loss"]))
        self._reached[run.name] = line["round"]

    def ended(self, run: Any, reason: str) -> None:
        """Print how a run ended and about how long the others will take."""
        self._done += 1
        if reason:
            self._left -= run.rounds - self._reached.get(run.name, 0)
        how = f"failed: {reason}" if reason else self._last.get(run.name, "done")
        self._say(f"{run.name}: {how} ({self._done}/{self._runs}{self.remaining()})")

    def remaining(self) -> str:
        """Return the remaining time, if rounds take as long as those before."""
        left = self._left - self._passed
        if not self._passed or left <= 0:
            return ""
        minutes = (time.monotonic() - self._since) / self._passed * left / 60
        return f", about {minutes:.0f} min left" if minutes < 120 else f", about {minutes / 60:.1f} h left"

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(f"[{time.monotonic() - self._since:7.1f} s] {text}", file=sys.stderr, flush=True)


class _Warnings(Handler):
    def __init__(self, shown: Display) -> None:
        super().__init__(WARNING)
        self._shown = shown

    def emit(self, record: LogRecord) -> None:
        self._shown.line(record.getMessage())


@contextmanager
def logged(shown: Display) -> Iterator[None]:
    """Show the server's warnings among the progress; they go through Flower's logger, which has its own form."""
    logger, handler = getLogger("flwr"), _Warnings(shown)
    before, level = logger.handlers[:], logger.level
    logger.handlers[:] = [handler]
    logger.setLevel(WARNING)
    try:
        yield
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)
