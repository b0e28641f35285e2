"""The HTTP server for SuperNodes, on a device and before a SuperLink.

It answers with what the SuperLink answered, with 503 or 504, or it closes the connection: Flower's SuperNode takes
anything else for the SuperLink's answer, and some of it for a reason to give up. Connections, long requests at a time
and the lengths of bodies are bounded; who fills all places keeps the others out.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
import time
from http.client import responses
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from .http_bytes import MAX_BODY_BYTES, HttpRequest, Response, carried, may_pass
from .warning_limit import Complaints

logger = logging.getLogger(__name__)

# A SuperNode has up to four connections.
MAX_CONNECTIONS = 128
# Requests at a time whose bodies are longer than SHORT_BODY, and how long another one waits for its turn.
MAX_LONG_BODIES, SHORT_BODY, TURN_SECONDS = 8, 2**17, 20.0
# Between two bytes, and between two requests.
IDLE_SECONDS = 30.0
BODY_SECONDS = 120.0
_PIECE = 65_536


class Exchange(Protocol):
    """What answers a SuperNode's request: a device's side of the bridge, or a SuperLink."""

    def __call__(self, request: HttpRequest) -> Response:
        """Return the response."""


class _Handler(BaseHTTPRequestHandler):
    """One HTTP connection of a SuperNode."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    server: NodeServer

    def setup(self) -> None:
        self.request.settimeout(self.timeout)
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()
        super().setup()

    def do_POST(self) -> None:
        """Carry a request."""
        text = self.headers.get("content-length", "")
        length = int(text) if text.isdecimal() and len(text) <= 10 else -1
        if not may_pass(self.path) or not 0 <= length <= MAX_BODY_BYTES:
            self.send_error(400)
        elif length <= SHORT_BODY:
            self._answer(self._carry(length))
        elif self.server.turns.acquire(timeout=TURN_SECONDS):
            try:
                self._answer(self._carry(length))
            finally:
                self.server.turns.release()
        else:
            self._refuse("too many others are sending")

    def _carry(self, length: int) -> Response:
        body, until = bytearray(), time.monotonic() + BODY_SECONDS
        while len(body) < length:
            piece = self.rfile.read1(min(_PIECE, length - len(body)))
            if not piece or time.monotonic() > until:
                raise ConnectionAbortedError("its body did not arrive in time")
            body += piece
        return self.server.exchange(HttpRequest(self.path, carried(self.headers.items()), body))

    def _answer(self, response: Response) -> None:
        phrase = responses.get(response.status, "")
        lines = [f"HTTP/1.1 {response.status} {phrase}", *(f"{name}: {value}" for name, value in response.headers)]
        head = "\r\n".join([*lines, f"content-length: {len(response.body)}", "", ""])
        self.wfile.write(head.encode("latin-1"))
        self.wfile.write(response.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Close the connection instead: the SuperNode would take a status for the SuperLink's."""
        what = f"{self.command or '?'} {self.path if hasattr(self, 'path') else '?'}"
        self._refuse(f"it is not one to Flower's Fleet API: {what!r}")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing of connections that were idle for too long."""

    def _refuse(self, why: str) -> None:
        self.server.complain(self.client_address[0], "refused a request of %s: %s", self.client_address[0], why)
        self.close_connection = True


class NodeServer(ThreadingHTTPServer):
    """The HTTP server for SuperNodes. Flower demands ``tls`` wherever SuperNodes have keys."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], exchange: Exchange, tls: ssl.SSLContext | None = None) -> None:
        self.exchange = exchange
        self.complain = Complaints(logger)
        self.turns = threading.BoundedSemaphore(MAX_LONG_BODIES)
        self._tls = tls
        self._connections: set[Any] = set()
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind, without asking the name service who this is."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; the handshake is left to its thread."""
        connection, address = self.socket.accept()
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Admit a connection if there is a place for it."""
        if len(self._connections) >= MAX_CONNECTIONS:
            self.complain(str(client_address[0]), "refused a connection of %s: all are in use", client_address[0])
            return False
        self._connections.add(request)
        return True

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        super().close_request(request)
        self._connections.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note that a connection broke; the SuperNode comes back by itself."""
        error = sys.exc_info()[1]
        if isinstance(error, (OSError, ValueError)):
            logger.debug("a connection with %s broke: %s", client_address, error)
        else:
            self.complain(str(client_address[0]), "a request of %s failed: %r", client_address[0], error)

    def stop(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()
