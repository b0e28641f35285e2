"""Frames: a message of any length as a sequence of MQTT payloads that the broker lets pass.

A frame is a header of 19 bytes, in network byte order, and a piece of the message::

    2 bytes  "fb"
    1        version, 2
    8        where the piece begins in the message
    8        length of the message in bytes, s
    …        the piece

The id of the message, 16 random bytes, is MQTT's correlation data. A broker hands on in order what one account sends to
one topic. A frame that does not follow the one before tells that something was lost, and its message is dropped.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from ...core.errors import FedpflError

ID_BYTES = 16
# Longest MQTT payload: --max-chunk, and the largest that it can be.
DEFAULT_CHUNK, MAX_CHUNK = 2**18, 2**24
# A message is a body with its head. The largest bodies of Flower 1.42 are 10 MB.
MAX_MESSAGE_BYTES = 16 * 2**20 + 2**17
MAX_MESSAGES = 1024
# A message of which nothing new arrives for so long is given up.
STALE_SECONDS = 30.0

_HEADER = struct.Struct("!2sBQQ")
_MAGIC, _VERSION = b"fb", 2
HEADER_BYTES = _HEADER.size


class FrameError(FedpflError):
    """Bytes that are not a frame, or a frame that does not fit to those before."""


@dataclass(frozen=True)
class Frame:
    """One frame of a message."""

    id: bytes  # of the message, 16 bytes
    begin: int  # of the piece in the message
    size: int  # of the message in bytes
    piece: memoryview


def split(head: bytes, payload_bytes: int, body: bytes | bytearray | memoryview = b"") -> Iterator[bytes]:
    """Yield the frames of a message, ``head`` followed by ``body``, none longer than ``payload_bytes``."""
    room, size = payload_bytes - HEADER_BYTES, len(head) + len(body)
    if room < 1:
        raise ValueError(f"{payload_bytes} bytes are too few for a frame")
    for begin in range(0, max(size, 1), room):
        end = min(begin + room, size)
        of_body = slice(max(0, begin - len(head)), max(0, end - len(head)))
        header = _HEADER.pack(_MAGIC, _VERSION, begin, size)
        yield b"".join((header, head[begin:end], memoryview(body)[of_body]))


def decode(message_id: bytes | None, payload: bytes) -> Frame:
    """Read a frame from its payload and the correlation data that it came with."""
    if message_id is None or len(message_id) != ID_BYTES:
        raise FrameError(f"correlation data must be {ID_BYTES} bytes")
    if len(payload) < HEADER_BYTES:
        raise FrameError(f"a frame has at least {HEADER_BYTES} bytes, this payload has {len(payload)}")
    magic, version, begin, size = _HEADER.unpack_from(payload)
    if magic != _MAGIC:
        raise FrameError("not a frame of the bridge")
    if version != _VERSION:
        reason = f"a frame of version {version}, and this side reads version {_VERSION}"
        raise FrameError(f"{reason}: install the same fedpfl on the server and on the device")
    piece = memoryview(payload)[HEADER_BYTES:]
    if size > MAX_MESSAGE_BYTES:
        raise FrameError(f"a message of {size} bytes; at most {MAX_MESSAGE_BYTES} are accepted")
    if begin + len(piece) > size or (size and not piece):
        raise FrameError(f"bytes {begin} to {begin + len(piece)} of a message of {size} bytes")
    return Frame(message_id, begin, size, piece)


@dataclass
class _Message:
    size: int
    touched: float
    content: bytearray = field(default_factory=bytearray)
    held: int = 0


class Assembler:
    """Joins messages from their frames.

    Memory is taken for what has arrived, never for what a frame announces. It holds at most ``max_bytes`` and
    :data:`MAX_MESSAGES` messages, those that are complete included, until :meth:`drop`. Where it is full, an incomplete
    message of the sender that has most there gives way to a sender that has less. Threads may share it.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._lock = threading.Lock()
        # The one that has waited longest for a frame comes first.
        self._pending: OrderedDict[tuple[str, bytes], _Message] = OrderedDict()
        self._complete: dict[tuple[str, bytes], _Message] = {}
        self.held = 0

    def add(self, sender: str, frame: Frame) -> bytearray | None:
        """Add a frame; return the message if this was its last one."""
        key = sender, frame.id
        with self._lock:
            self._forget_stale()
            if key in self._complete:
                raise FrameError("its message is complete")
            message = self._pending.get(key)
            if message is None and frame.begin == 0:
                full = len(self._pending) + len(self._complete) >= MAX_MESSAGES
                if full and not self._displace(sender, lambda message: 1):
                    raise FrameError(f"there are {MAX_MESSAGES} messages")
                message = self._pending[key] = _Message(frame.size, 0.0)
            if message is None or (message.size, len(message.content)) != (frame.size, frame.begin):
                self._drop(key)
                raise FrameError("a frame before it is missing")
            while self.held + len(frame.piece) > self._max_bytes:
                if not self._displace(sender, lambda message: message.held):
                    self._drop(key)
                    raise FrameError(f"no room for {len(frame.piece)} bytes more")
            self.held += len(frame.piece)
            message.held += len(frame.piece)
            message.content += frame.piece
            message.touched = self._clock()
            self._pending.move_to_end(key)
            if len(message.content) < message.size:
                return None
            self._complete[key] = self._pending.pop(key)
            content, message.content = message.content, bytearray()
            return content

    def drop(self, sender: str, message_id: bytes) -> None:
        """Forget a message, and what it took."""
        with self._lock:
            self._drop((sender, message_id))

    def _displace(self, sender: str, size: Callable[[_Message], int]) -> bool:
        """Drop the oldest incomplete message of the sender that has most; return whether one has more than this one."""
        totals = Counter[str]()
        for (owner, _), message in chain(self._pending.items(), self._complete.items()):
            totals[owner] += size(message)
        others = {owner for owner, _ in self._pending if totals[owner] > totals[sender]}
        if not others:
            return False
        greediest = max(others, key=totals.__getitem__)
        self._drop(next(key for key in self._pending if key[0] == greediest))
        return True

    def _drop(self, key: tuple[str, bytes]) -> None:
        message = self._pending.pop(key, None) or self._complete.pop(key, None)
        if message is not None:
            self.held -= message.held

    def _forget_stale(self) -> None:
        while self._pending:
            key, oldest = next(iter(self._pending.items()))
            if self._clock() - oldest.touched <= STALE_SECONDS:
                return
            self._drop(key)
