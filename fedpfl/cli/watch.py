"""``fedpfl watch``: a testbed, live in a terminal."""

from __future__ import annotations

import queue
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import FedpflError
from .app import app
from .bridge import DEFAULT_BROKER, Broker, Ca, PasswordFile, account
from .common import print_json, stdout

if TYPE_CHECKING:
    from ..mqtt.publisher import Message

REDRAW_SECONDS = 0.5
MAX_QUEUED = 1000


@app.command("watch")
def watch_command(
    broker: Broker = DEFAULT_BROKER,
    username: Annotated[str, typer.Option(help="Account at the broker.")] = "watch",
    password_file: PasswordFile = None,
    ca: Ca = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a JSON object on a line.")] = False,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop after so many seconds.")] = None,
) -> None:
    """Show devices, the run and its rounds as the MQTT broker reports them, until Ctrl-C."""
    try:
        from ..mqtt import topics
        from ..mqtt.link import Link
    except ImportError:
        raise FedpflError("fedpfl watch needs paho-mqtt: pip install paho-mqtt") from None

    arrived: queue.Queue[Message] = queue.Queue(MAX_QUEUED)

    keep = partial(_keep, arrived)
    link = Link(account(broker, username, password_file, ca), topics.WATCHED, keep, persistent=False)
    until = None if seconds is None else time.monotonic() + seconds
    try:
        link.start(timeout=seconds)
        (_lines if as_json or not sys.stdout.isatty() else _live)(arrived, until)
    except KeyboardInterrupt:
        pass
    finally:
        link.stop()


def _keep(arrived: queue.Queue[Message], message: Message) -> None:
    from ..mqtt.watch import MAX_PAYLOAD

    # No event of ours is this long, and a sender of so many is not waited for.
    if not arrived.full() and len(message.payload) <= MAX_PAYLOAD:
        arrived.put_nowait(message)


def _lines(arrived: queue.Queue[Message], until: float | None) -> None:
    from ..mqtt.watch import EventError, printable, read_event

    while until is None or time.monotonic() < until:
        try:
            message = arrived.get(timeout=REDRAW_SECONDS)
            print_json({**read_event(message.topic, message.payload), "topic": printable(message.topic)})
            sys.stdout.flush()
        except queue.Empty:
            continue
        except EventError as error:
            typer.echo(f"ignored: {error}", err=True)


def _live(arrived: queue.Queue[Message], until: float | None) -> None:
    from rich.live import Live

    from ..mqtt.watch import Board, EventError, read_event

    board = Board()
    with Live(board.render(), console=stdout(), auto_refresh=False, screen=True) as live:
        while until is None or time.monotonic() < until:
            time.sleep(REDRAW_SECONDS)
            while not arrived.empty():
                message = arrived.get_nowait()
                try:
                    board.add(message.topic, read_event(message.topic, message.payload))
                except EventError as error:
                    board.log.append(str(error))
            live.update(board.render(), refresh=True)
