"""Frames: a message of any length as a sequence of MQTT payloads that the broker lets pass.

A frame is a header of 20 bytes, in network byte order, and a piece of the message::

    2 bytes  "fb"
    1        version, 1
    1        kind (:class:`Kind`)
    4        index of this frame, from 0
    4        number of frames, n
    8        length of the message in bytes, s
    …        the piece: bytes index · ⌈s / n⌉ up to the next piece's first, or the end

The id of the message, 16 random bytes, is MQTT's correlation data. Every field is checked against every other before
anything is stored, and what is stored is bounded: the bytes come from the network.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from ..core.errors import FedpflError

ID_BYTES = 16
# Longest MQTT payload: --max-chunk, and the largest that it can be.
DEFAULT_CHUNK, MAX_CHUNK = 2**20, 2**26
# The largest bodies of Flower 1.41 are 10 MB; a message is a body with its headers.
MAX_MESSAGE_BYTES = 32 * 2**20
# Bytes of unfinished messages that are kept at a time, of one sender.
MAX_PENDING_BYTES = 2 * MAX_MESSAGE_BYTES
MAX_PENDING_MESSAGES = 256
# Smaller pieces would cost more memory in bookkeeping than they carry.
MIN_PIECE_BYTES = 1024
# A message of which nothing new arrives for so long is given up.
STALE_SECONDS = 60.0

_HEADER = struct.Struct("!2sBBIIQ")
_MAGIC = b"fb"
_VERSION = 1
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    """What a frame is for."""

    REQUEST = 1  #: device → server: part of a request
    RESPONSE = 2  #: server → device: part of the response
    PROBE = 3  #: device → server: what about this request? Also keeps a held request alive
    AGAIN = 4  #: server → device: that request is unknown here, send it again
    DELIVERED = 5  #: device → server: the response was handed over; the piece is its receipt, if it had one
    CANCEL = 6  #: device → server: nobody waits for this response any more


class FrameError(FedpflError):
    """Bytes that are not a frame, or a frame that does not fit to the others of its message."""


@dataclass(frozen=True)
class Frame:
    """One frame.

    Attributes
    ----------
    kind : Kind
        What it is for.
    id : bytes
        Id of the message, 16 bytes.
    index, count : int
        Which of how many frames of the message.
    size : int
        Length of the message in bytes.
    piece : memoryview
        This frame's part of the message.
    """

    kind: Kind
    id: bytes
    index: int
    count: int
    size: int
    piece: memoryview


def split(
    kind: Kind,
    head: bytes,
    payload_bytes: int,
    body: bytes | memoryview = b"",
    ready: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """Yield a message's frames.

    Parameters
    ----------
    kind : Kind
        What they are for.
    head, body : bytes, bytes or memoryview
        The message is one behind the other. The body is not copied as a whole.
    payload_bytes : int
        Length that no frame exceeds.
    ready : callable, optional
        Called before the body is read up to the index that it gets: the body may still be arriving.
    """
    room = payload_bytes - HEADER_BYTES
    if room < MIN_PIECE_BYTES:
        raise ValueError(f"{payload_bytes} bytes are too few for a frame")
    size = len(head) + len(body)
    count = max(1, -(-size // room))
    length = _piece_length(size, count)
    for index in range(count):
        begin, end = index * length, min(size, (index + 1) * length)
        of_body = slice(max(0, begin - len(head)), max(0, end - len(head)))
        if ready is not None:
            ready(of_body.stop)
        header = _HEADER.pack(_MAGIC, _VERSION, kind, index, count, size)
        yield b"".join((header, head[begin:end], memoryview(body)[of_body]))


def single(kind: Kind, content: bytes = b"") -> bytes:
    """Return a frame that is a message of its own."""
    return _HEADER.pack(_MAGIC, _VERSION, kind, 0, 1, len(content)) + content


def decode(message_id: bytes | None, payload: bytes) -> Frame:
    """Read a frame.

    Parameters
    ----------
    message_id : bytes or None
        The correlation data it came with.
    payload : bytes
        What it came as.

    Raises
    ------
    FrameError
        It is not a frame, or belongs to too long a message.
    """
    if message_id is None or len(message_id) != ID_BYTES:
        raise FrameError(f"correlation data must be {ID_BYTES} bytes")
    if len(payload) < HEADER_BYTES:
        raise FrameError(f"a frame has at least {HEADER_BYTES} bytes, this payload has {len(payload)}")
    magic, version, number, index, count, size = _HEADER.unpack_from(payload)
    if magic != _MAGIC or version != _VERSION:
        raise FrameError(f"not a frame of version {_VERSION}")
    try:
        kind = Kind(number)
    except ValueError:
        raise FrameError(f"unknown kind of frame {number}") from None
    if size > MAX_MESSAGE_BYTES:
        raise FrameError(f"a message of {size} bytes; at most {MAX_MESSAGE_BYTES} are accepted")
    if not 0 <= index < count or count > size // MIN_PIECE_BYTES + 1:
        raise FrameError(f"frame {index} of {count} for {size} bytes")
    length = _piece_length(size, count)
    expected = max(0, min(size, (index + 1) * length) - index * length)
    if len(payload) - HEADER_BYTES != expected:
        raise FrameError(f"frame {index} of {count} carries {len(payload) - HEADER_BYTES} bytes instead of {expected}")
    return Frame(kind, message_id, index, count, size, memoryview(payload)[HEADER_BYTES:])


@dataclass
class _Pending:
    count: int
    size: int
    touched: float
    arrived: set[int] = field(default_factory=set)
    message: bytearray = field(init=False)

    def __post_init__(self) -> None:
        self.message = bytearray(self.size)  # of which the system gives no page before it is written to


class Assembler:
    """Puts one sender's messages together again, in whatever order their frames arrive.

    Parameters
    ----------
    max_bytes : int
        Bytes of unfinished messages, by their declared lengths, that are kept at a time.
    clock : callable
        Returns seconds.
    """

    def __init__(self, max_bytes: int = MAX_PENDING_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._pending: dict[bytes, _Pending] = {}

    def add(self, frame: Frame) -> memoryview | None:
        """Add a frame; return the message if this was the last one missing.

        Raises
        ------
        FrameError
            It contradicts earlier frames of its message, or there is no room for another message.
        """
        pending = self._pending.get(frame.id)
        if pending is None:
            if frame.count == 1:
                return frame.piece
            pending = self._open(frame)
        if (pending.count, pending.size) != (frame.count, frame.size):
            raise FrameError(f"{frame.count} frames of {frame.size} bytes, before {pending.count} of {pending.size}")
        pending.touched = self._clock()
        begin = frame.index * _piece_length(frame.size, frame.count)
        pending.message[begin : begin + len(frame.piece)] = frame.piece
        pending.arrived.add(frame.index)
        if len(pending.arrived) < pending.count:
            return None
        del self._pending[frame.id]
        return memoryview(pending.message)

    def drop(self, message_id: bytes) -> None:
        """Forget what has arrived of a message."""
        self._pending.pop(message_id, None)

    def _open(self, frame: Frame) -> _Pending:
        now = self._clock()
        for old in [i for i, p in self._pending.items() if now - p.touched > STALE_SECONDS]:
            del self._pending[old]
        waiting = sum(p.size for p in self._pending.values())
        if waiting + frame.size > self._max_bytes or len(self._pending) >= MAX_PENDING_MESSAGES:
            raise FrameError(f"no room for {frame.size} bytes beside {len(self._pending)} unfinished messages")
        return self._pending.setdefault(frame.id, _Pending(frame.count, frame.size, now))


def _piece_length(size: int, count: int) -> int:
    return -(-size // count)
