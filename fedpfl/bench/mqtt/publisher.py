"""What the two sides of the bridge need of the connection between them, and its messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Message:
    """A message of the broker."""

    topic: str
    payload: bytes
    id: bytes | None = None  # correlation data
    retained: bool = False  # the broker had kept it: its sender may be gone


class Publisher(Protocol):
    """What the two sides of the bridge need of a connection; tests have one without a broker."""

    def publish(self, message: Message, retain: bool = False) -> None:
        """Publish something small, without waiting; without a connection it is lost."""

    def send(self, messages: Iterable[Message], deadline: float) -> None:
        """Hand frames to the broker one after the other, up to a time of ``time.monotonic``."""

    def wait_online(self, seconds: float) -> bool:
        """Wait for a connection; return whether there is one."""

    @property
    def max_payload(self) -> int:
        """Longest payload that the broker accepts and that the user allows."""
