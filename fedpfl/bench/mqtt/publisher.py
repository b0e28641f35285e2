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
    response_topic: str | None = None  # where its sender wants the answer
    expires: int | None = None  # seconds that it may still live, as the broker counts them; None: for ever
    retained: bool = False  # the broker had kept it: its sender may be gone


class Publisher(Protocol):
    """What the two sides of the bridge need of a connection; tests have one without a broker."""

    def publish(self, message: Message, retain: bool = False, qos: int = 1) -> None:
        """Publish something small, without waiting."""

    def send(self, messages: Iterable[Message], deadline: float) -> None:
        """Publish frames and wait until the broker has them all, up to a time of ``time.monotonic``."""

    @property
    def online(self) -> bool:
        """Whether there is a connection."""

    @property
    def max_payload(self) -> int:
        """Longest payload that the broker accepts and that the user allows."""
