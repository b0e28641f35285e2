"""How a run's progress is shown: a bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import WARNING, Handler, LogRecord, getLogger
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..core.metrics import CLASSES
from ..engine.listener import Listener
from ..results.record import Round
from ..results.round_line import in_words
from ..results.run_folder import RunFolder
from ..rules import Rule

if TYPE_CHECKING:
    from rich.progress import Progress


class Display(Listener):
    """Shows a run on standard error: stages, rounds and lines of text. A context manager."""

    _loss = CLASSES

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Clean up the screen."""

    def show_step(self, step: str) -> None:
        """Show what the run is doing before its first round and after its last."""

    def round(self, line: Mapping[str, Any]) -> None:
        """Show a finished round, given its line of ``metrics.jsonl``."""

    def line(self, text: str) -> None:
        """Show a line of text, such as a warning, also where no progress is shown."""
        print(text, file=sys.stderr, flush=True)

    def printed(self, client: int, text: str) -> None:
        """Show each line that a client has printed, with the client's number before it."""
        for line in text.splitlines():
            self.line(f"client {client}: {line}")

    def run_started(self, folder: RunFolder, remarks: Sequence[str]) -> None:
        """Show the remarks."""
        self._loss = str(folder.config()["loss"])
        for remark in remarks:
            self.line(f"note: {remark}")
        self.show_step("first round")

    def round_ended(self, rule: Rule, done: Round, state: Mapping[str, np.ndarray]) -> bool:
        """Show the round."""
        self.round(done.line)
        return False


class LineDisplay(Display):
    """Plain lines with the seconds since the start."""

    def __init__(self, total: int, quiet: bool = False) -> None:
        self._total, self._quiet, self._started = total, quiet, time.monotonic()

    def show_step(self, step: str) -> None:
        """Print a stage."""
        if not self._quiet:
            print(f"[{time.monotonic() - self._started:6.1f} s] {step}", file=sys.stderr, flush=True)

    def round(self, line: Mapping[str, Any]) -> None:
        """Print a round."""
        self.show_step(f"round {line['round']}/{self._total}: {in_words(line, loss=self._loss)}")


class _Drawn:
    """Base of displays with a progress bar, which is there inside the ``with`` block."""

    _progress: Progress

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class BarDisplay(_Drawn, Display):
    """A run's progress on a terminal: a bar below lines of text."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

        self._moved = 0
        # Eighty columns have to do.
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=10))
        result = TextColumn("{task.fields[result]}")
        self._progress = Progress(
            *columns, result, TimeRemainingColumn(compact=True), console=Console(stderr=True), transient=True
        )
        self._total = total
        self._task = self._progress.add_task("", total=None, result="")

    def show_step(self, step: str) -> None:
        """Put the stage before the bar."""
        self._progress.update(self._task, description=step)

    def line(self, text: str) -> None:
        """Print a line above the bar, as it is."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def round(self, line: Mapping[str, Any]) -> None:
        """Move the bar."""
        self._moved += line["bytes_up"] + line["bytes_down"]
        result = in_words(line, self._moved, self._loss)
        self._progress.update(
            self._task, description=f"round {line['round']}/{self._total}", total=self._total, completed=line["round"],
            result=result,
        )  # fmt: skip


def display(total: int, quiet: bool) -> Display:
    """Return a bar if standard error is a terminal, else plain lines."""
    return BarDisplay(total) if sys.stderr.isatty() and not quiet else LineDisplay(total, quiet)


class GridLines:
    """Plain lines for a grid of runs: one when a run starts and one when it ends."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet, self._since = quiet, time.monotonic()
        self._runs = self._done = self._left = self._passed = 0
        self._last: dict[str, str] = {}
        self._reached: dict[str, int] = {}

    def __enter__(self) -> GridLines:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave everything as it is."""

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


class GridBar(_Drawn, GridLines):
    """A grid's progress on a terminal: a bar over all rounds, below the lines of what has ended."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
            TextColumn("rounds{task.fields[rest]}"), console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._task = self._progress.add_task("", total=None, rest="")

    def begin(self, runs: int, done: int, rounds: int) -> None:
        """Set the bar's length."""
        super().begin(runs, done, rounds)
        self._progress.update(self._task, total=rounds)

    def started(self, run: Any) -> None:
        """Name the run before the bar."""
        self._progress.update(self._task, description=run.name)

    def round(self, run: Any, line: dict[str, Any]) -> None:
        """Move the bar."""
        super().round(run, line)
        self._progress.update(self._task, description=run.name, advance=1, rest=self.remaining())

    def _say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)


def grid_display(quiet: bool) -> GridLines:
    """Return a bar if standard error is a terminal, else plain lines."""
    return GridBar() if sys.stderr.isatty() and not quiet else GridLines(quiet)


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
