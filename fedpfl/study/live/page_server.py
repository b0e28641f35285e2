"""Serves the live page and what it shows, as JSON, to browsers of whoever has its address.

The page itself holds nothing. Every answer with content needs the token, which is in the part of the address that
browsers do not send; the page sends it in a header, which no page of another origin can do. Names in ``Host`` are
refused unless they are known, so that no other name can be made to point here.

It runs in a separate process next to a run (``served_in_background``), of which it reads the files and takes nothing.
"""

from __future__ import annotations

import logging
import math
import multiprocessing
import os
import secrets
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...bench.mqtt import topics
from ...bench.mqtt.account import Account
from ...bench.mqtt.status import Board
from ...core.errors import ConfigError, FedpflError
from ...core.process import set_by_signals
from .run_data import Pages, list_runs

if TYPE_CHECKING:
    from ...bench.mqtt.link import Link

LOOPBACK, PORT = "127.0.0.1", 8078
# Of warnings and errors of a bench, the last ones are shown.
LOG_LINES = 200
MAX_CONNECTIONS = 64
# A connection that has sent no whole request for so long is closed.
REQUEST_SECONDS = 10.0
# The run and the clients come first.
NICENESS = 10
# The page asks every two seconds: so long a browser that looks on may take to see how a run has ended.
LAST_LOOK_SECONDS = 15.0

# On, without a second to linger.
_RESET = struct.pack("ii", 1, 0)

FOLDER = Path(__file__).parents[1] / "report"
FILES = {
    "/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css"), "/page.js": ("page.js", "text/javascript"),
}  # fmt: skip
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "style-src-attr 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True)
class LivePage:
    """A live page that can be served.

    Parameters
    ----------
    runs : Path
        Folder of runs.
    listening : socket.socket
        Where browsers connect to; see :func:`listen`.
    account : Account, optional
        Of a bench's broker.
    """

    runs: Path
    listening: socket.socket
    account: Account | None = None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def address(self, run: str = "") -> str:
        """Return the page's address, with the token and the run that it shows."""
        where = f"http://{LOOPBACK}:{self.listening.getsockname()[1]}"
        return f"{where}/#token={self.token}" + (f"&run={quote(run)}" if run else "")


def listen(port: int | None = None) -> socket.socket:
    """Return a listening socket on loopback; without a port the usual one, or any free one if that is taken.

    Raises :class:`ConfigError` if the port is taken.
    """
    for tried in (PORT, 0) if port is None else (port,):
        try:
            return socket.create_server((LOOPBACK, tried), backlog=MAX_CONNECTIONS)
        except OSError as error:
            last = error
    raise ConfigError("port", port, f"cannot be used ({last.strerror}); choose another, or give none")


def serve(page: LivePage, stopping: threading.Event, last_look: float = 0.0) -> None:
    """Serve a page until ``stopping`` is set; raise ``LinkError`` if the broker refuses the account.

    Then it goes on for up to ``last_look`` seconds if a browser has asked in as many before, until one has seen the
    end.
    """
    board = None if page.account is None else LiveBoard()
    app = application(page, board)
    config = uvicorn.Config(
        app, http=_TimedProtocol, log_level="warning", access_log=False, lifespan="off", server_header=False, ws="none",
        limit_concurrency=MAX_CONNECTIONS, timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    # Outside the main thread uvicorn leaves the signals alone.
    thread = threading.Thread(target=server.run, kwargs={"sockets": [page.listening]}, daemon=True)
    thread.start()
    try:
        if page.account is not None and board is not None:
            from ...bench.mqtt.link import Link  # and with it paho, which only a bench needs

            link = board.link = Link(page.account, topics.WATCHED, board.receive, watcher=True, stopping=stopping)
            try:
                link.start()
                stopping.wait()
            finally:
                link.stop()
            if link.lost is not None:
                raise link.lost
        stopping.wait()
        ended, app.pages.is_last = time.monotonic(), True
        if ended - app.asked < last_look:
            while app.pages.current < ended and time.monotonic() < ended + last_look:
                time.sleep(0.1)
            time.sleep(1.0)  # the answer is on its way
    finally:
        server.should_exit = True
        thread.join()


class _TimedProtocol(H11Protocol):
    """Closes connections that hold a place and send no request or take no answer, which uvicorn would keep."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.loop.call_later(REQUEST_SECONDS, self._close_unless_after, self.cycle, 0)

    def _close_unless_after(self, last: Any, untaken: int) -> None:
        connection = self.transport.get_extra_info("socket")
        if connection.fileno() < 0:  # the browser has left
            return
        left = self.transport.get_write_buffer_size()
        silent = self.cycle is last and (last is None or last.response_complete or 0 < left == untaken)
        if silent:  # close() would wait for the answer to be taken, and so would the system without a reset
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()
        elif not self.transport.is_closing():
            self.loop.call_later(REQUEST_SECONDS, self._close_unless_after, self.cycle, left)


@contextmanager
def served_in_background(page: LivePage, last_look: float = LAST_LOOK_SECONDS) -> Iterator[None]:
    """Serve a page from a separate process, which ends with this block, or with this process if that is killed."""
    # Not forked: a run's process has threads, and memory that only its clients' workers need.
    process = multiprocessing.get_context("spawn").Process(target=_serve_beside, args=(page, last_look), daemon=True)
    process.start()
    page.listening.close()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _serve_beside(page: LivePage, last_look: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, and its end is this process's
    os.nice(NICENESS)
    stopping = threading.Event()
    set_by_signals(stopping, signal.SIGTERM)
    # The page, not the run's terminal, shows whether the broker is there; the broker may end before the page.
    logging.getLogger("fedpfl").addHandler(logging.NullHandler())
    threading.Thread(target=_set_at_the_end_of_the_parent, args=(stopping,), daemon=True).start()
    try:
        serve(page, stopping, last_look)
    except FedpflError as error:
        print(f"note: the live page has ended: {error}", file=sys.stderr, flush=True)


def _set_at_the_end_of_the_parent(stopping: threading.Event) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    stopping.set()


class LiveBoard:
    """A bench's board that one thread fills and others read."""

    def __init__(self) -> None:
        self._board, self._lock = Board(log_lines=LOG_LINES), threading.Lock()
        self.link: Link | None = None

    def receive(self, message: Any) -> None:
        """Add what a message says."""
        with self._lock:
            self._board.receive(message)

    def payload(self) -> dict[str, Any]:
        """Return the part of the page about the bench."""
        with self._lock:
            devices, log = self._board.devices(), list(self._board.log)
            headline = self._board.headline()
        if self.link is not None and not self.link.online:
            headline += "   broker: not connected"
        return {"headline": headline, "devices": devices, "log": [line._asdict() for line in log]}


def application(page: LivePage, board: LiveBoard | None = None) -> Guard:
    """Return the web application of a page."""

    def file(request: Request) -> Response:
        name, kind = FILES[request.url.path]
        return Response((FOLDER / name).read_bytes(), media_type=kind)

    def runs(request: Request) -> Response:
        return JSONResponse({"folder": str(page.runs), "runs": list_runs(page.runs), "bench": board is not None})

    pages = Pages(page.runs)

    def shown(request: Request) -> Response:
        return JSONResponse(pages.tell(request.query_params.getlist("run"), request.query_params.get("since", "")))

    def bench(request: Request) -> Response:
        return JSONResponse(board.payload() if board is not None else {"devices": [], "log": []})

    routes = [Route(path, file) for path in FILES]
    routes += [Route("/api/runs", runs), Route("/api/page", shown), Route("/api/bench", bench)]
    errors: dict[Any, Callable[[Request, Exception], Response]] = {
        ConfigError: _missing,
        FedpflError: _unreadable,
        OSError: _unreadable,
    }
    return Guard(Starlette(routes=routes, exception_handlers=errors), page, pages)


def _missing(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 404)


def _unreadable(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 422)


class Guard:
    """Refuses requests of other origins, for other hosts or without the token, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, page: LivePage, pages: Pages) -> None:
        self._app, self._page, self.pages = app, page, pages
        self.asked = -math.inf  # when it last told somebody something, by time.monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refusal = self._refusal(Request(scope))
        if refusal is None:
            self.asked = time.monotonic()
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if reason := _why_refused(host, origin):
            return PlainTextResponse(reason, 403)
        header = request.headers.get("authorization", "").encode()
        if request.url.path not in FILES and not secrets.compare_digest(header, f"Bearer {self._page.token}".encode()):
            return PlainTextResponse("open the address that the command has printed: it has the token", 401)
        return None


def _why_refused(host: str, origin: str | None) -> str:
    """Return why a request with these headers is refused; an empty text if it is not.

    ``Host`` has to be an address or localhost: no other name can then be made to point here.
    ``Origin``, which browsers add, has to be the server's own.
    """
    port = host.rpartition(":")[2]
    asked = host.rpartition(":")[0] if port.isdecimal() else host
    asked = (asked[1:-1] if asked.startswith("[") and asked.endswith("]") else asked).lower()
    try:
        ip_address(asked)
    except ValueError:
        if asked != "localhost":
            return "this name is not known here"
    return "" if origin in (None, f"http://{host}") else "a page of another origin gets nothing"
