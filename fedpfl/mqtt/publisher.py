"""What the two sides of the bridge need of the connection between them, and its messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Arrived:
    """A message that the broker delivered."""

    topic: str
    payload: bytes
    id: bytes | None = None  # correlation data
    response_topic: str | None = None  # where its sender wants the answer
    expires: int | None = None  # seconds that it may still live, as the broker counts them; None: for ever
    retained: bool = False  # published before this subscription


class Publisher(Protocol):
    """What the two sides of the bridge need of a connection; tests have one without a broker."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        message_id: bytes | None = None,
        response_topic: str | None = None,
        expires: int | None = None,
        retain: bool = False,
        qos: int = 1,
    ) -> None:
        """Publish something small, without waiting."""

    def send(
        self,
        topic: str,
        payloads: Iterable[bytes],
        *,
        message_id: bytes,
        expires: int,
        deadline: float,
        response_topic: str | None = None,
    ) -> None:
        """Publish a message's frames and wait until the broker has them all."""

    @property
    def online(self) -> bool:
        """Whether there is a connection."""

    @property
    def max_payload(self) -> int:
        """Longest payload that the broker accepts and that the user allows."""
