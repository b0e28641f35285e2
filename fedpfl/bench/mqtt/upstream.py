"""Requests to the SuperLink, byte for byte as the SuperNode sent them."""

from __future__ import annotations

import select
import ssl
import threading
import time
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
MAX_IDLE = 16


class UpstreamError(FedpflError):
    """The SuperLink gave no answer."""


class Upstream:
    """A SuperLink."""

    def __init__(self, host: str, port: int, ca: Path | None = None) -> None:
        self.host, self.port = host, port
        self._context: ssl.SSLContext | None = None if ca is None else client_context(ca)
        self._lock = threading.Lock()
        self._idle: list[tuple[float, HTTPConnection]] = []

    def call(self, request: HttpRequest) -> Response:
        """Send a request and return the response."""
        connection = self._connect()
        try:
            connection.putrequest("POST", request.path, skip_accept_encoding=True)
            for name, value in request.headers:
                connection.putheader(name, value)
            connection.putheader("content-length", str(len(request.body)))
            connection.endheaders(request.body)
            answer = connection.getresponse()
            length = answer.length or 0
            body = answer.read(MAX_BODY_BYTES + 1) if length <= MAX_BODY_BYTES else b""
        except (OSError, HTTPException) as error:
            connection.close()
            raise UpstreamError(f"{self._where}: {error or type(error).__name__}") from error
        if max(length, len(body)) > MAX_BODY_BYTES:
            connection.close()
            raise UpstreamError(f"{self._where}: the response is longer than {MAX_BODY_BYTES} bytes")
        self._keep(connection)
        return Response(answer.status, carried(answer.getheaders()), body)

    def _connect(self) -> HTTPConnection:
        """Return a connection: one that was just used, or one that opens when it is first used."""
        with self._lock:
            while self._idle:
                since, connection = self._idle.pop()  # the latest
                # All that could be read is that the SuperLink has closed it.
                if time.monotonic() - since < IDLE_SECONDS and not select.select([connection.sock], [], [], 0)[0]:
                    return connection
                connection.close()
        if self._context is None:
            return HTTPConnection(self.host, self.port, timeout=TIMEOUT_SECONDS)
        return HTTPSConnection(self.host, self.port, timeout=TIMEOUT_SECONDS, context=self._context)

    def _keep(self, connection: HTTPConnection) -> None:
        with self._lock:
            if connection.sock is not None and len(self._idle) < MAX_IDLE:
                self._idle.append((time.monotonic(), connection))
                return
        connection.close()

    @property
    def _where(self) -> str:
        return f"SuperLink {self.host}:{self.port}"
