"""Requests to the SuperLink, byte for byte what the SuperNode sent."""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from ..core.errors import FedpflError
from .account import client_context
from .exchange import Request, Response, carried
from .frames import MAX_MESSAGE_BYTES

# As long as the SuperNode itself would wait.
TIMEOUT_SECONDS = 30.0
_MAX_BODY = MAX_MESSAGE_BYTES - 2**17  # the head needs room, too


class UpstreamError(FedpflError):
    """The SuperLink gave no answer."""


class Upstream:
    """A SuperLink.

    Parameters
    ----------
    host, port : str, int
        Its address.
    ca : Path or None
        Certificate of the authority that signed the SuperLink's; None means plain HTTP.
    """

    def __init__(self, host: str, port: int, ca: Path | None = None) -> None:
        self.host, self.port = host, port
        self._context: ssl.SSLContext | None = None if ca is None else client_context(ca)

    def connect(self) -> Connection:
        """Return a connection, which opens when it is first used."""
        if self._context is None:
            return Connection(HTTPConnection(self.host, self.port, timeout=TIMEOUT_SECONDS))
        return Connection(HTTPSConnection(self.host, self.port, timeout=TIMEOUT_SECONDS, context=self._context))


class Connection:
    """A connection to the SuperLink, for one request after the other; a context manager.

    Parameters
    ----------
    connection : HTTPConnection
        The connection.
    """

    def __init__(self, connection: HTTPConnection) -> None:
        self._connection = connection

    def __enter__(self) -> Connection:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._connection.close()

    def call(self, request: Request) -> Response:
        """Send a request and return the response.

        Raises
        ------
        UpstreamError
            There is no complete response.
        """
        try:
            self._connection.putrequest("POST", request.path, skip_accept_encoding=True)
            for name, value in request.headers:
                self._connection.putheader(name, value)
            self._connection.putheader("content-length", str(len(request.body)))
            self._connection.endheaders(request.body)
            answer = self._connection.getresponse()
            body = answer.read(_MAX_BODY + 1)
        except (OSError, HTTPException) as error:
            self._connection.close()
            raise UpstreamError(f"{self._where}: {error or type(error).__name__}") from error
        if len(body) > _MAX_BODY:
            self._connection.close()
            raise UpstreamError(f"{self._where}: the response is longer than {_MAX_BODY} bytes")
        return Response(answer.status, carried(answer.getheaders()), body)

    @property
    def _where(self) -> str:
        return f"SuperLink {self._connection.host}:{self._connection.port}"
