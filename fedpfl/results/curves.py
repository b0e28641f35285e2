"""The curves of a run: for TensorBoard, which draws them from a file in its folder, and other trackers."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from ..core.files import naming
from .round_line import metric_names


class Curves:
    """Writes a run's curves for TensorBoard, not by its own writer, of which a thread would fail on a full disk."""

    def __init__(self, folder: Path) -> None:
        # Half a second to import: the first round is over by then, and reading a run needs none of it.
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._path = folder / f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        with naming(self._path):
            self._writer = RecordWriter(self._path.open("ab"))
            self._write(file_version="brain.Event:2")

    def add(self, line: dict[str, Any]) -> None:
        """Add a round."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in curves(line).items()]
        with naming(self._path):
            self._write(step=line["round"], summary=Summary(value=values))
            self._writer.flush()

    def _write(self, **what: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **what).SerializeToString())

    def close(self) -> None:
        """End the file."""
        self._writer.close()


def curves(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a round that trackers draw, by their names there, from its line of ``metrics.jsonl``."""
    parts = {part: line.get(part) or {} for part in ("personalised", "global", "validation")}
    numbers = {
        "train/loss": line.get("train_loss"),
        **{f"{part}/accuracy": scores.get("accuracy") for part, scores in parts.items()},
        **{f"{part}/{name}": scores[name] for part, scores in parts.items() for name in metric_names(scores)},
        "bytes/up": line["bytes_up"],
        "bytes/down": line["bytes_down"],
        "seconds": line["seconds"],
        "seconds-virtual": line.get("seconds_virtual"),
        "joules": line.get("joules"),
    }
    return {name: value for name, value in numbers.items() if value is not None}
