"""The curves of a run for TensorBoard, which draws them from a file in its folder."""

from __future__ import annotations

import os
import socket
import struct
import time
from functools import reduce
from pathlib import Path
from typing import Any

from ..core.files import naming
from .round_line import metric_names

_CRC = [reduce(lambda crc, _: crc >> 1 ^ 0x82F63B78 * (crc & 1), range(8), byte) for byte in range(256)]


class Curves:
    """Writes a run's curves for TensorBoard.

    Not by its own writers: they take half a second to import, and a thread of one would fail on a full disk.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        with naming(self._path):
            self._file = self._path.open("ab")
            self._write(file_version="brain.Event:2")

    def add(self, line: dict[str, Any]) -> None:
        """Add a round."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in curves(line).items()]
        with naming(self._path):
            self._write(step=line["round"], summary=Summary(value=values))
            self._file.flush()

    def _write(self, **what: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        content = Event(wall_time=time.time(), **what).SerializeToString()
        length = struct.pack("<Q", len(content))
        self._file.write(length + checksum(length) + content + checksum(content))

    def close(self) -> None:
        """End the file."""
        self._file.close()


def checksum(content: bytes) -> bytes:
    """Return the checksum of a part of a record: a CRC-32C, rotated and shifted, as TensorFlow's files have it."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def curves(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a round that TensorBoard draws, by their names, from its line of ``metrics.jsonl``."""
    parts = {part: line.get(part) or {} for part in ("personalised", "global", "validation")}
    numbers = {
        "train/loss": line.get("train_loss"),
        **{f"{part}/accuracy": scores.get("accuracy") for part, scores in parts.items()},
        **{f"{part}/{name}": scores[name] for part, scores in parts.items() for name in metric_names(scores)},
        "bytes/up": line["bytes_up"],
        "bytes/down": line["bytes_down"],
        "seconds": line["seconds"],
    }
    return {name: value for name, value in numbers.items() if value is not None}
