"""``fedpfl watch``: a testbed, live in a terminal; or runs and a testbed, live in a browser."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import ConfigError, FedpflError
from .bridge import DEFAULT_BROKER, Ca, PasswordFile, account
from .common import output_dir, print_json, stdout
from .program import app

if TYPE_CHECKING:
    from ..bench.mqtt.account import Account
    from ..bench.mqtt.publisher import Message

REDRAW_SECONDS = 0.5
MAX_QUEUED = 1000


@app.command("watch")
def watch_command(
    broker: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help=f"Broker; {DEFAULT_BROKER} by default, none with --web.")
    ] = None,
    username: Annotated[str, typer.Option(help="Account at the broker.")] = "watch",
    password_file: PasswordFile = None,
    ca: Ca = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a JSON object on a line.")] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop after this number of seconds.")] = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a live page of runs, and of the broker's devices; prints its address.")
    ] = False,
    runs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="With --web: folder of runs; by default output-dir.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="With --web: port; by default 8078, or a free one if 8078 is in use."),
    ] = None,
) -> None:
    """Show devices and runs, here or on a live page.

    Without --web it prints what the MQTT broker reports, until Ctrl-C or for --seconds.

    Example: fedpfl watch --web
    """
    if web and as_json:
        raise ConfigError("json", "true", "prints events; leave it out with --web")
    of_web = {"runs": runs, "port": port}
    if not web and (refused := next((key for key, value in of_web.items() if value is not None), None)):
        raise ConfigError(refused, str(of_web[refused]), "is an option of --web")
    if broker is not None or not web:
        try:
            from ..bench.mqtt import topics
            from ..bench.mqtt.link import Link
        except ImportError:
            raise FedpflError("fedpfl watch needs paho-mqtt: pip install 'fedpfl[mqtt]'") from None
    if web:
        bench = None if broker is None else account(broker, username, password_file, ca)
        _serve(runs, bench, port, seconds)
        return

    arrived: queue.Queue[Message] = queue.Queue(MAX_QUEUED)

    keep = partial(_keep, arrived)
    broker_account = account(broker or DEFAULT_BROKER, username, password_file, ca)
    stopping = threading.Event()
    link = Link(broker_account, topics.WATCHED, keep, watcher=True, stopping=stopping)
    until = None if seconds is None else time.monotonic() + seconds
    try:
        link.start(timeout=seconds)
        (_lines if as_json or not sys.stdout.isatty() else _live)(arrived, until, stopping)
        if link.lost is not None:
            raise link.lost
    except KeyboardInterrupt:
        pass
    finally:
        link.stop()


def _serve(runs: Path | None, bench: Account | None, port: int | None, seconds: float | None) -> None:
    from ..study.live.page_server import LivePage, listen, serve

    folder = (runs or output_dir()).expanduser()
    if runs is not None and not folder.is_dir():
        raise ConfigError("runs", str(runs), "is not a folder")
    page = LivePage(folder, listen(port), bench)
    typer.echo(f"live page: {page.address()}")
    sys.stdout.flush()
    stopping = threading.Event()
    if seconds is not None:
        timer = threading.Timer(seconds, stopping.set)
        timer.daemon = True  # Ctrl-C may come before
        timer.start()
    with contextlib.suppress(KeyboardInterrupt):
        serve(page, stopping)


def _keep(arrived: queue.Queue[Message], message: Message) -> None:
    from ..bench.mqtt.status import MAX_PAYLOAD

    # No event of ours is this long, and a sender of so many is not waited for.
    if not arrived.full() and len(message.payload) <= MAX_PAYLOAD:
        arrived.put_nowait(message)


def _lines(arrived: queue.Queue[Message], until: float | None, stopping: threading.Event) -> None:
    from ..bench.mqtt.status import EventError, read_event
    from ..core.errors import printable

    while not stopping.is_set() and (until is None or time.monotonic() < until):
        try:
            message = arrived.get(timeout=REDRAW_SECONDS)
            print_json({**read_event(message.topic, message.payload), "topic": printable(message.topic)})
            sys.stdout.flush()
        except queue.Empty:
            continue
        except EventError as error:
            typer.echo(f"ignored: {error}", err=True)


def _live(arrived: queue.Queue[Message], until: float | None, stopping: threading.Event) -> None:
    from rich.live import Live

    from ..bench.mqtt.status import Board

    board = Board()
    with Live(board.render(), console=stdout(), auto_refresh=False, screen=True) as live:
        while not stopping.wait(REDRAW_SECONDS) and (until is None or time.monotonic() < until):
            while not arrived.empty():
                board.receive(arrived.get_nowait())
            live.update(board.render(), refresh=True)
