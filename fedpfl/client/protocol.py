"""A message as bytes: to the worker and back on a local socket, and between server and ClientApp in one of Flower's.

A frame is a prefix (magic, length of the header, length of the arrays), a header in JSON and the arrays as safetensors.
Both are bounded and neither can carry code; numbers come back as they went, to the bit.
"""

from __future__ import annotations

import io
import json
import os
import socket
import struct
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Dict, Mapping, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ..core.errors import ConfigError, FedpflError
from ..core.payload import Payload
from ..core.settings import Value

MAGIC = b"fedpfl1\n"
# What a worker says that has other code than the app, and by which a server knows it.
OTHER_CODE = "runs other code"
# What all versions begin with; lengths follow in each.
FAMILY = b"fedpfl"
MAX_HEADER_BYTES = 4_000_000
MAX_ARRAYS_BYTES = 2**30
# Larger ones make no float.
MAX_INTEGER = 2**63
SOCKET_VARIABLE = "FEDPFL_WORKER_SOCKET"
# sockaddr_un holds 108 bytes on Linux, 104 elsewhere, with a zero at the end.
MAX_SOCKET_PATH = 103

_PREFIX = struct.Struct(">8sIQ")
_CREDENTIALS = struct.Struct("3i")

Header = Dict[str, Any]


class Readable(Protocol):
    """What a frame is read from."""

    def read(self, count: int) -> bytes:
        """Read so many bytes, or fewer at the end."""


class ProtocolError(FedpflError):
    """Bytes that are not a frame arrived, or a frame that is too large."""


class VersionError(ProtocolError):
    """A frame of another version of this protocol arrived; it was read to its end."""


def socket_path() -> Path:
    """Return where the worker of this device listens.

    ``$FEDPFL_WORKER_SOCKET``, else ``fedpfl/worker.sock`` in ``$XDG_RUNTIME_DIR``, else ``~/.fedpfl/worker.sock``.
    """
    named, runtime = os.environ.get(SOCKET_VARIABLE), os.environ.get("XDG_RUNTIME_DIR")
    if named:
        path = Path(named).expanduser().absolute()
    else:
        path = Path(runtime, "fedpfl", "worker.sock") if runtime else Path("~/.fedpfl/worker.sock").expanduser()
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ConfigError(SOCKET_VARIABLE, str(path), f"a socket's path has at most {MAX_SOCKET_PATH} bytes")
    return path


def require_own_peer(connection: socket.socket) -> None:
    """Check that the other end of a Unix socket runs as the same user as this process."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return
    _, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size))
    if user != os.geteuid():
        raise ProtocolError(f"the other end belongs to user {user}, and this process to user {os.geteuid()}")


def write(stream: BufferedIOBase, header: Mapping[str, Any], payload: Payload) -> None:
    """Write one frame."""
    for part in _parts(header, payload):
        stream.write(part)
    stream.flush()


def pack(header: Mapping[str, Any], payload: Payload) -> bytes:
    """Return one frame as :func:`write` writes it."""
    return b"".join(_parts(header, payload))


def unpack(content: bytes) -> tuple[Header, Payload]:
    """Return the content of bytes that are one frame and nothing else, as :func:`read` does."""
    stream = io.BytesIO(content)
    try:
        message = read(stream)
    except EOFError:
        raise ProtocolError("an incomplete frame arrived") from None
    if stream.tell() < len(content):
        raise ProtocolError(f"a frame with {len(content) - stream.tell()} extra bytes arrived")
    return message


def read(stream: Readable) -> tuple[Header, Payload]:
    """Read one frame; return the header without the payload's part, and the payload."""
    magic, header_bytes, arrays_bytes = _PREFIX.unpack(_exactly(stream, _PREFIX.size))
    if not magic.startswith(FAMILY):
        raise ProtocolError("something that does not speak this protocol is at the other end")
    _require_lengths(header_bytes, arrays_bytes)
    text, content = _exactly(stream, header_bytes), _exactly(stream, arrays_bytes)
    if magic != MAGIC:
        raise VersionError(
            f"app and worker are of different versions of fedpfl: one uses {magic.decode('ascii', 'replace').strip()}, "
            f"the other {MAGIC.decode().strip()}; install the app's version on this device and start the worker again"
        )
    header, arrays = _header(text), _arrays(content)
    return header, Payload(values(header, "config"), _numbers(header), arrays)


def _parts(header: Mapping[str, Any], payload: Payload) -> list[bytes]:
    content = {**header, "config": payload.config, "metrics": payload.metrics}
    text = json.dumps(content, separators=(",", ":")).encode()
    # Not ascontiguousarray, which turns a number into a vector.
    arrays = save({name: np.asarray(array, order="C") for name, array in payload.arrays.items()})
    _require_lengths(len(text), len(arrays))
    return [_PREFIX.pack(MAGIC, len(text), len(arrays)), text, arrays]


def _exactly(stream: Readable, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError("the connection ended within a frame")
    return data


def _require_lengths(header_bytes: int, arrays_bytes: int) -> None:
    for what, count, most in (("header", header_bytes, MAX_HEADER_BYTES), ("arrays", arrays_bytes, MAX_ARRAYS_BYTES)):
        if count > most:
            raise ProtocolError(f"a frame whose {what} take {count} bytes; at most {most} are allowed")


def _header(text: bytes) -> Header:
    try:
        header = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a header that is not JSON arrived: {error}") from error
    if not isinstance(header, dict):
        raise ProtocolError("a header that is not a JSON object arrived")
    return header


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    try:
        return dict(load(content))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:  # the last three: types that NumPy lacks
        raise ProtocolError(f"arrays that cannot be read arrived: {error}") from error


def values(header: Header, key: str) -> dict[str, Value]:
    """Take a mapping of settings out of a header."""
    entries = header.pop(key, None)
    if not isinstance(entries, dict) or not all(isinstance(v, (bool, int, float, str)) for v in entries.values()):
        raise ProtocolError(f"a header arrived whose {key} is not a mapping of settings")
    if any(isinstance(value, int) and abs(value) > MAX_INTEGER for value in entries.values()):
        raise ProtocolError(f"a header arrived whose {key} has an integer of more than 64 bits")
    return entries


def _numbers(header: Header) -> dict[str, Any]:
    metrics = values(header, "metrics")
    if any(isinstance(value, (bool, str)) for value in metrics.values()):
        raise ProtocolError("a header arrived whose metrics are not all numbers")
    return metrics
