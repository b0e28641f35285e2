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
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from ...core.errors import FedpflError
from .limits import Budget, Claim

ID_BYTES = 16
# Longest MQTT payload: --max-chunk, and the largest that it can be.
DEFAULT_CHUNK, MAX_CHUNK = 2**20, 2**26
# The largest bodies of Flower 1.41 are 10 MB; a message is a body with its headers.
MAX_MESSAGE_BYTES = 32 * 2**20
# Bytes of messages of one sender that are joined or worked on at a time: a device sends 64 MiB of bodies, with heads.
MAX_SENDER_BYTES = 68 * 2**20
MAX_PENDING_MESSAGES = 256
# Memory of a frame that waits for the others, without its piece.
FRAME_OVERHEAD = 512
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
    DELIVERED = 5  #: device → server: the response was handed over
    CANCEL = 6  #: device → server: nobody waits for this response any more


class FrameError(FedpflError):
    """Bytes that are not a frame, or a frame that does not fit to the others of its message."""


@dataclass(frozen=True)
class Frame:
    """One frame of a message."""

    kind: Kind
    id: bytes  # of the message, 16 bytes
    index: int  # which of count frames, from 0
    count: int
    size: int  # of the message in bytes
    piece: memoryview  # this frame's part of the message


def split(
    kind: Kind,
    head: bytes,
    payload_bytes: int,
    body: bytes | memoryview = b"",
    ready: Callable[[int], None] | None = None,
) -> Iterator[bytes]:
    """Yield the frames of a message, ``head`` followed by ``body``, none longer than ``payload_bytes``.

    The body is not copied as a whole, and may still be arriving: ``ready`` is called before it is read up to an index.
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
    """Read a frame from its payload and the correlation data that it came with."""
    if message_id is None or len(message_id) != ID_BYTES:
        raise FrameError(f"correlation data must be {ID_BYTES} bytes")
    if len(payload) < HEADER_BYTES:
        raise FrameError(f"a frame has at least {HEADER_BYTES} bytes, this payload has {len(payload)}")
    magic, version, number, index, count, size = _HEADER.unpack_from(payload)
    if magic != _MAGIC:
        raise FrameError("not a frame of the bridge")
    if version != _VERSION:
        words = f"a frame of version {version}, and this side reads version {_VERSION}"
        raise FrameError(f"{words}: install the same fedpfl on the server and on the device")
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
    claim: Claim
    touched: float
    pieces: dict[int, memoryview] = field(default_factory=dict)


class Assembler:
    """Joins one sender's messages from their frames, in whatever order these arrive.

    Memory is taken for what has arrived, never for what a frame announces. What a message takes is counted until
    :meth:`drop`, also after :meth:`add` has returned the message. ``budget`` counts bytes that have arrived, for each
    ``account`` and for all; ``max_bytes`` bounds this sender's messages by their announced lengths.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        account: str = "",
        max_bytes: int = MAX_SENDER_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = Budget(sys.maxsize) if budget is None else budget
        self._account = account
        self._max_bytes, self._announced = max_bytes, 0
        self._clock = clock
        # The one that has waited longest for a frame comes first.
        self._pending: OrderedDict[bytes, _Pending] = OrderedDict()
        self._joined: dict[bytes, _Pending] = {}

    def add(self, frame: Frame) -> bytes | memoryview | None:
        """Add a frame; return the message if this was the last one missing."""
        if frame.id in self._joined:
            return None
        pending = self._pending.get(frame.id) or self._open(frame)
        if (pending.count, pending.size) != (frame.count, frame.size):
            raise FrameError(f"{frame.count} frames of {frame.size} bytes, before {pending.count} of {pending.size}")
        pending.touched = self._clock()
        self._pending.move_to_end(frame.id)
        if frame.index in pending.pieces:
            return None
        if not pending.claim.take(len(frame.piece) + FRAME_OVERHEAD):
            self.drop(frame.id)
            raise FrameError(f"no room for {len(frame.piece)} bytes more of all senders")
        pending.pieces[frame.index] = frame.piece
        if len(pending.pieces) < pending.count:
            return None
        self._joined[frame.id] = self._pending.pop(frame.id)
        pieces = [pending.pieces.pop(index) for index in range(pending.count)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def drop(self, message_id: bytes) -> None:
        """Forget a message, and what it took."""
        for messages in (self._pending, self._joined):
            if found := messages.pop(message_id, None):
                self._announced -= found.size
                found.claim.release()

    def _open(self, frame: Frame) -> _Pending:
        now = self._clock()
        while self._pending and now - next(iter(self._pending.values())).touched > STALE_SECONDS:
            self.drop(next(iter(self._pending)))
        if self._announced + frame.size > self._max_bytes or len(self._pending) >= MAX_PENDING_MESSAGES:
            messages = len(self._pending) + len(self._joined)
            raise FrameError(f"no room for {frame.size} bytes more: the sender has {messages} messages here")
        self._announced += frame.size
        pending = _Pending(frame.count, frame.size, self._budget.claim(self._account), now)
        return self._pending.setdefault(frame.id, pending)


def _piece_length(size: int, count: int) -> int:
    return -(-size // count)
