"""Requests to the SuperLink, byte for byte as the SuperNode sent them."""

from __future__ import annotations

import select
import ssl
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from ...core.errors import FedpflError
from .account import client_context
from .http_bytes import MAX_BODY_BYTES, HttpRequest, Response, carried

# As long as the SuperNode itself would wait.
TIMEOUT_SECONDS = 30.0
# A connection that was idle for less than this is used again: the SuperLink closes one after 5 s, and a new one takes a
# TLS handshake, a few milliseconds of a core at either end.
IDLE_SECONDS = 2.0
MAX_IDLE = 64


class UpstreamError(FedpflError):
    """The SuperLink gave no answer."""


class Upstream:
    """A SuperLink."""

    def __init__(self, host: str, port: int, ca: Path | None = None) -> None:
        self.host, self.port = host, port
        self._context: ssl.SSLContext | None = None if ca is None else client_context(ca)
        self._lock = threading.Lock()
        self._idle: list[tuple[float, HTTPConnection]] = []

    def connect(self) -> Connection:
        """Return a connection: one that was just used, or one that opens when it is first used."""
        with self._lock:
            while self._idle:
                since, connection = self._idle.pop()  # the latest
                # All that could be read is that the SuperLink has closed it.
                if time.monotonic() - since < IDLE_SECONDS and not select.select([connection.sock], [], [], 0)[0]:
                    return Connection(connection, self._keep)
                connection.close()
        if self._context is None:
            return Connection(HTTPConnection(self.host, self.port, timeout=TIMEOUT_SECONDS), self._keep)
        https = HTTPSConnection(self.host, self.port, timeout=TIMEOUT_SECONDS, context=self._context)
        return Connection(https, self._keep)

    def _keep(self, connection: HTTPConnection) -> None:
        with self._lock:
            if connection.sock is not None and len(self._idle) < MAX_IDLE:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()


class Connection:
    """A connection to the SuperLink, for one request after the other; a context manager."""

    def __init__(self, connection: HTTPConnection, keep: Callable[[HTTPConnection], None]) -> None:
        self._connection, self._keep = connection, keep

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Return the connection to the pool; close it after an error."""
        if kind is None:
            self._keep(self._connection)
        else:
            self._connection.close()

    def call(self, request: HttpRequest, room: Callable[[int], bool] = lambda _length: True) -> Response:
        """Send a request and return the response."""
        try:
            self._connection.putrequest("POST", request.path, skip_accept_encoding=True)
            for name, value in request.headers:
                self._connection.putheader(name, value)
            self._connection.putheader("content-length", str(len(request.body)))
            self._connection.endheaders(request.body)
            answer = self._connection.getresponse()
            length = MAX_BODY_BYTES if answer.length is None else answer.length
            body = b""
            if length <= MAX_BODY_BYTES:
                if not room(length):
                    raise UpstreamError(f"{self._where}: no room for a response of {length} bytes")
                body = answer.read(MAX_BODY_BYTES + 1)
        except (OSError, HTTPException) as error:
            raise UpstreamError(f"{self._where}: {error or type(error).__name__}") from error
        if max(length, len(body)) > MAX_BODY_BYTES:
            raise UpstreamError(f"{self._where}: the response is longer than {MAX_BODY_BYTES} bytes")
        return Response(answer.status, carried(answer.getheaders()), body)

    @property
    def _where(self) -> str:
        return f"SuperLink {self._connection.host}:{self._connection.port}"
