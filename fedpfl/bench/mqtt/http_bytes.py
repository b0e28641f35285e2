"""HTTP requests and responses as bytes, and which of their headers are carried.

The bytes are the length of the head (4 bytes, network byte order), the head as JSON, and the body as it is.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...flower_private import FLEET_API
from .frames import MAX_MESSAGE_BYTES, FrameError

# The SuperLink serves its other interfaces, with which one can run code, on the same port: only this one is carried.
_PATH = re.compile(re.escape(FLEET_API) + r"[A-Za-z0-9_-]{1,100}")
MAX_HEAD_BYTES = 65_536
MAX_HEADERS = 100
MAX_BODY_BYTES = MAX_MESSAGE_BYTES - 2 * MAX_HEAD_BYTES
_LENGTH = struct.Struct("!I")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,16384}")

# They describe one connection and not the message (RFC 9110, 7.6.1), or each sender sets them, or servers believe them
# when they come from a proxy.
_NOT_CARRIED = frozenset({
    "connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer",
    "transfer-encoding", "upgrade", "expect", "host", "content-length", "date", "server", "forwarded", "via",
})  # fmt: skip

Headers = tuple[tuple[str, str], ...]
# A view avoids copying megabytes.
Body = bytes | bytearray | memoryview


@dataclass(frozen=True)
class HttpRequest:
    """An HTTP POST to Flower's Fleet API."""

    path: str  # without a query
    headers: Headers  # those that are carried, in their order
    body: Body

    @property
    def head(self) -> bytes:
        """The bytes before the body."""
        return _head({"path": self.path, "headers": self.headers})

    def encode(self) -> bytes:
        """Return it as bytes."""
        return self.head + self.body

    @classmethod
    def decode(cls, message: Body) -> HttpRequest:
        """Read a request."""
        head, body = _decode(message)
        path = head.get("path")
        if not isinstance(path, str) or not may_pass(path):
            raise FrameError("the path is not one of the Fleet API")
        if len(body) > MAX_BODY_BYTES:
            raise FrameError(f"a body of {len(body)} bytes; at most {MAX_BODY_BYTES} are carried")
        return cls(path, _headers(head.get("headers")), body)


@dataclass(frozen=True)
class Response:
    """An HTTP response."""

    status: int
    headers: Headers = ()  # those that are carried, in their order
    body: Body = b""

    @property
    def head(self) -> bytes:
        """The bytes before the body."""
        return _head({"status": self.status, "headers": self.headers})

    def encode(self) -> bytes:
        """Return it as bytes."""
        return self.head + self.body

    @classmethod
    def decode(cls, message: Body) -> Response:
        """Read a response."""
        head, body = _decode(message)
        status = head.get("status")
        if type(status) is not int or not 200 <= status <= 599:
            raise FrameError("the status is not that of a response")
        return cls(status, _headers(head.get("headers")), body)


def may_pass(path: str) -> bool:
    """Return whether requests to this path are carried."""
    return _PATH.fullmatch(path) is not None


def carried(headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers that belong to the message itself, unchanged and in order."""
    pairs = list(headers)
    named = {name.strip().lower() for key, value in pairs if key.lower() == "connection" for name in value.split(",")}
    left_out = _NOT_CARRIED | named
    return tuple((k, v) for k, v in pairs if k.lower() not in left_out and not k.lower().startswith("x-forwarded-"))


def _head(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, separators=(",", ":")).encode()
    if len(text) > MAX_HEAD_BYTES:
        raise FrameError(f"headers of {len(text)} bytes; at most {MAX_HEAD_BYTES} are carried")
    return _LENGTH.pack(len(text)) + text


def _decode(message: Body) -> tuple[dict[str, Any], memoryview]:
    if len(message) < _LENGTH.size:
        raise FrameError("the message has no head")
    (length,) = _LENGTH.unpack_from(message)
    end = _LENGTH.size + length
    if length > MAX_HEAD_BYTES or end > len(message):
        raise FrameError(f"a head of {length} bytes in a message of {len(message)}")
    try:
        head = json.loads(bytes(message[_LENGTH.size : end]))
    except (ValueError, RecursionError):
        raise FrameError("the head is not JSON") from None
    if not isinstance(head, dict):
        raise FrameError("the head is not an object")
    return head, memoryview(message)[end:]


def _headers(value: object) -> Headers:
    if not isinstance(value, list) or len(value) > MAX_HEADERS:
        raise FrameError(f"the headers are not a list of at most {MAX_HEADERS}")
    pairs = []
    for pair in value:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise FrameError("a header is not a name and a value")
        name, text = pair
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(text):
            raise FrameError("a header has characters that headers may not have")
        pairs.append((name, text))
    return carried(pairs)
