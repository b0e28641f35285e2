"""How a run is shown while it goes on: a bar on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Protocol


class Display(Protocol):
    """Shows stages and rounds; a context manager."""

    def __enter__(self) -> Display:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clean up the screen."""

    def stage(self, words: str) -> None:
        """Say what the run is doing before its first round and after its last."""

    def round(self, line: dict[str, Any]) -> None:
        """Show a finished round, given its line of ``metrics.jsonl``."""


class Lines:
    """Plain lines with the seconds since the start.

    Parameters
    ----------
    total : int
        Rounds of the run.
    quiet : bool
        Print nothing.
    """

    def __init__(self, total: int, quiet: bool = False) -> None:
        self._total, self._quiet, self._started = total, quiet, time.monotonic()

    def __enter__(self) -> Lines:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave everything as it is."""

    def stage(self, words: str) -> None:
        """Print a stage."""
        if not self._quiet:
            print(f"[{time.monotonic() - self._started:6.1f} s] {words}", file=sys.stderr, flush=True)

    def round(self, line: dict[str, Any]) -> None:
        """Print a round."""
        self.stage(f"round {line['round']}/{self._total}: {describe(line)}")


class Bar:
    """A progress bar.

    Parameters
    ----------
    total : int
        Rounds of the run.
    """

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

    def __enter__(self) -> Bar:
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        self._progress.stop()

    def stage(self, words: str) -> None:
        """Put the stage before the bar."""
        self._progress.update(self._task, description=words)

    def round(self, line: dict[str, Any]) -> None:
        """Move the bar."""
        self._moved += line["bytes_up"] + line["bytes_down"]
        result = describe(line, self._moved)
        self._progress.update(
            self._task, description=f"round {line['round']}/{self._total}", total=self._total, completed=line["round"],
            result=result,
        )  # fmt: skip


def display(total: int, quiet: bool) -> Display:
    """Choose the display that fits where standard error goes."""
    return Bar(total) if sys.stderr.isatty() and not quiet else Lines(total, quiet)


def describe(line: dict[str, Any], moved: int | None = None) -> str:
    """Describe a round in a few words."""
    parts = []
    for name in ("personalised", "global"):
        if line.get(name):
            parts.append(f"{name} {100 * line[name]['accuracy']:.1f} %")
    moved = line["bytes_up"] + line["bytes_down"] if moved is None else moved
    parts.append(f"{moved / 1e6:.1f} MB")
    if line.get("failed"):
        parts.append(f"{len(line['failed'])} clients failed")
    return ", ".join(parts)
