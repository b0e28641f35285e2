"""``fedpfl keys`` and ``fedpfl broker``: certificates, node keys, passwords and the broker's files of real devices."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ..bench.mqtt.frames import DEFAULT_CHUNK, MAX_CHUNK
from ..core.errors import ConfigError, FedpflError
from .bridge import host_and_port, server_context
from .program import app


@app.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; existing files are kept.")],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Address or name under which devices reach the server; repeatable."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=0, help="Number of node keys.")] = 3,
    account: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="MQTT account that gets a password in passwords/NAME; repeatable."),
    ] = None,
) -> None:
    """Make certificates, node keys and passwords for a testbed.

    The server's certificate is for 127.0.0.1 and the given addresses.

    Example: fedpfl keys my-keys --host 192.168.1.10 --nodes 30
    """
    from ..bench.credentials import LOOPBACK, prepare, prepare_passwords

    folder = folder.expanduser()
    before = _times(folder)
    made = prepare(folder, nodes, [*LOOPBACK, *(host or ())])
    passwords = prepare_passwords(folder, account or ())
    typer.echo(f"server:  {made.authority} {made.certificate} {made.key} {made.superexec_secret}")
    if made.node_keys:
        typer.echo(f"devices: {made.authority}, and one each of {' '.join(map(str, made.node_keys))}")
    if passwords:
        typer.echo(f"broker:  {' '.join(map(str, passwords))}")
    new = sum(before.get(path) != time for path, time in _times(folder).items())
    typer.echo(f"new files: {new}")


@app.command("broker")
def broker_command(
    folder: Annotated[Path, typer.Argument(help="Folder for the files; existing passwords are kept.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address on which the broker listens.")
    ] = "127.0.0.1:1883",
    device: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Account of a device; repeatable.")] = None,
    watcher: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help='Account for one `fedpfl watch`; repeatable. "watch" by default.'),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="The broker's TLS certificate; it must name the broker's address.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the TLS certificate.")] = None,
    max_chunk: Annotated[
        int,
        typer.Option(min=4096, max=MAX_CHUNK, help="Maximum --max-chunk of `fedpfl-bridge` that the broker accepts."),
    ] = DEFAULT_CHUNK,
) -> None:
    """Write mosquitto's settings, accounts and passwords.

    Files that need no change stay as they are.

    Example: fedpfl broker my-broker --listen 192.168.1.10:8883 --device nano-1
    """
    if find_spec("paho") is None:
        raise FedpflError("fedpfl broker needs paho-mqtt: pip install 'fedpfl[mqtt]'")
    from ..bench.mqtt.broker import WATCH_ACCOUNT, BrokerTls, write_broker_files

    server_context(tls_cert, tls_key)  # mosquitto would say that something is wrong with them only when it starts
    tls = None if tls_cert is None or tls_key is None else BrokerTls(tls_cert.expanduser(), tls_key.expanduser())
    host, port = host_and_port("listen", listen)
    folder = folder.expanduser()
    try:
        files = write_broker_files(folder, host, port, device or (), tls, watcher or (WATCH_ACCOUNT,), max_chunk)
    except OSError as error:
        raise ConfigError("folder", str(folder), f"cannot be written ({error.strerror})") from error
    typer.echo(f"broker:    mosquitto -c {files.config}")
    typer.echo(f"passwords: {' '.join(map(str, files.passwords.values()))}")
    typer.echo(f"written:   {' '.join(files.changed) or 'nothing, everything is up to date'}")


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
