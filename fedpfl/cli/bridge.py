"""``fedpfl-bridge``: the two sides of the MQTT bridge, and both in one process without a broker."""

from __future__ import annotations

import logging
import signal
import ssl
import sys
import threading
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..bench.mqtt.frames import DEFAULT_CHUNK, MAX_CHUNK
from ..core.errors import ConfigError, FedpflError
from ..version import untested
from .program import Program

if TYPE_CHECKING:
    from ..bench.mqtt.account import Account
    from ..bench.mqtt.http_server import Exchange, NodeServer
    from ..bench.mqtt.link import Link
    from ..bench.mqtt.publisher import Message
    from ..bench.mqtt.upstream import Upstream

logger = logging.getLogger(__name__)

app = Program("Carry HTTP between Flower's SuperNodes and SuperLink over an MQTT broker.", completion=False)

DEFAULT_BROKER = "127.0.0.1:1883"

Broker = Annotated[str, typer.Option(metavar="HOST:PORT", help="The broker.")]
Username = Annotated[str | None, typer.Option(help="Account at the broker.")]
PasswordFile = Annotated[
    Path | None, typer.Option(help="File whose first line is the password; only its owner may read it.")
]
Ca = Annotated[
    Path | None,
    typer.Option(help="CA certificate that signed the broker's certificate; optional on loopback only."),
]
MaxChunk = Annotated[
    int,
    typer.Option(
        min=4096, max=MAX_CHUNK, help="Maximum MQTT payload to send, in bytes; the broker may set a lower limit."
    ),
]
SuperLink = Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink.")]
SuperLinkCa = Annotated[
    Path | None,
    typer.Option(help="CA certificate that signed the SuperLink's certificate; optional on loopback only."),
]


@app.command()
def device(
    device: Annotated[str, typer.Option(metavar="NAME", help="Name of this device.")],
    broker: Broker = DEFAULT_BROKER,
    username: Username = None,
    password_file: PasswordFile = None,
    ca: Ca = None,
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Address to which this device's SuperNodes connect (their --superlink)."
        ),
    ] = "127.0.0.1:8000",
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            help="TLS certificate for SuperNodes; optional on loopback, unless SuperNodes authenticate with keys."
        ),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the TLS certificate.")] = None,
    max_chunk: MaxChunk = DEFAULT_CHUNK,
) -> None:
    """Serve this device's SuperNodes. The MQTT account has the device's name unless --username is given."""
    _log_to_stderr()
    _require_paho()
    from ..bench.mqtt import topics
    from ..bench.mqtt.device_side import DeviceBridge
    from ..bench.mqtt.events import TELEMETRY_SECONDS, Events
    from ..bench.mqtt.link import Link

    name = topics.checked_name("device", device)
    tls = server_context(tls_cert, tls_key)
    address = _listen_address(listen, tls)
    stopping = _ending()
    link = Link(
        account(broker, username or name, password_file, ca),
        [topics.response(name), topics.BRIDGE_PRESENCE],
        lambda message: bridge.arrived(message),
        lambda: bridge.lost(),
        presence=topics.node_presence(name),
        max_chunk=max_chunk,
        stopping=stopping,
    )
    bridge = DeviceBridge(name, link, account=username)
    server = _listening(address, listen, bridge.exchange, tls)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        host, port = server.server_address[:2]
        events = _serve(link, stopping, username or name, f"{host!s}:{port}")
        if events is not None:
            _every(TELEMETRY_SECONDS, Events(link, name).telemetry, stopping)
            stopping.wait()
    finally:
        server.stop()
        link.stop()


@app.command()
def server(
    superlink: SuperLink = "127.0.0.1:8000",
    superlink_ca: SuperLinkCa = None,
    broker: Broker = DEFAULT_BROKER,
    username: Username = None,
    password_file: PasswordFile = None,
    ca: Ca = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="Publish the newest run in this folder, and write what boards needed into it (boards.csv)."),
    ] = None,
    max_chunk: MaxChunk = DEFAULT_CHUNK,
) -> None:
    """Forward the devices' requests to the SuperLink. The MQTT account is "server" unless --username is given."""
    _log_to_stderr()
    _require_paho()
    from ..bench.mqtt import topics
    from ..bench.mqtt.board_record import BoardRecord
    from ..bench.mqtt.broker import SERVER_ACCOUNT
    from ..bench.mqtt.events import RunFollower
    from ..bench.mqtt.link import Link
    from ..bench.mqtt.server_side import ServerBridge

    upstream = _upstream(superlink, superlink_ca)
    name, boards = username or SERVER_ACCOUNT, BoardRecord()

    def arrived(message: Message) -> None:
        if topics.is_telemetry(message.topic):
            boards.hear(message.topic.split("/")[2], message.topic, message.payload)
        else:
            bridge.arrived(message)

    stopping = _ending()
    link = Link(
        account(broker, name, password_file, ca),
        [topics.REQUESTS, *([topics.TELEMETRY] if runs is not None else [])],
        arrived,
        presence=topics.BRIDGE_PRESENCE,
        max_chunk=max_chunk,
        stopping=stopping,
    )
    bridge = ServerBridge(link, upstream)
    try:
        events = _serve(link, stopping, name, f"{upstream.host}:{upstream.port}")
        if events is not None:
            if runs is not None:
                follower = RunFollower(events, runs.expanduser(), boards)
                threading.Thread(target=follower.follow, args=(stopping,), daemon=True).start()
            stopping.wait()
    finally:
        bridge.stop()
        link.stop()


@app.command()
def direct(
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to which SuperNodes connect (their --superlink).")
    ] = "127.0.0.1:9092",
    tls_cert: Annotated[
        Path | None, typer.Option(help="TLS certificate for SuperNodes; optional on loopback only.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the TLS certificate.")] = None,
    superlink: SuperLink = "127.0.0.1:8000",
    superlink_ca: SuperLinkCa = None,
) -> None:
    """Forward SuperNodes' requests to the SuperLink without MQTT."""
    _log_to_stderr()
    from ..bench.mqtt.http_bytes import HttpRequest, Response
    from ..bench.mqtt.upstream import UpstreamError

    tls = server_context(tls_cert, tls_key)
    address = _listen_address(listen, tls)
    upstream = _upstream(superlink, superlink_ca)

    def exchange(request: HttpRequest) -> Response:
        try:
            return upstream.call(request)
        except UpstreamError as error:
            logger.warning("%s", error)
            return Response(503)

    stopping = _ending()
    http = _listening(address, listen, exchange, tls)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        print(f"ready {http.server_address[0]!s}:{http.server_address[1]} {upstream.host}:{upstream.port}", flush=True)
        stopping.wait()
    finally:
        http.stop()


def _listening(address: tuple[str, int], option: str, exchange: Exchange, tls: ssl.SSLContext | None) -> NodeServer:
    from ..bench.mqtt.http_server import NodeServer

    try:
        return NodeServer(address, exchange, tls)
    except OSError as error:
        raise ConfigError("listen", option, f"cannot be opened for listening ({error.strerror})") from error


def _listen_address(listen: str, tls: ssl.SSLContext | None) -> tuple[str, int]:
    from ..bench.mqtt.account import require_tls

    host, port = host_and_port("listen", listen)
    require_tls("listen", listen, host, tls, "--tls-cert and --tls-key are missing")
    return host, port


def _upstream(superlink: str, ca: Path | None) -> Upstream:
    from ..bench.mqtt.account import require_tls
    from ..bench.mqtt.upstream import Upstream

    host, port = host_and_port("superlink", superlink)
    require_tls("superlink", superlink, host, ca, "--superlink-ca is missing")
    return Upstream(host, port, ca)


def account(broker: str, username: str, password_file: Path | None, ca: Path | None) -> Account:
    """Return the account that the options name."""
    from ..bench.mqtt.account import Account, read_password

    host, port = host_and_port("broker", broker)
    password = read_password(password_file.expanduser()) if password_file is not None else ""
    return Account(host, port, username, password, ca.expanduser() if ca is not None else None)


def host_and_port(option: str, text: str) -> tuple[str, int]:
    """Return the host and the port of ``host:port``; an IPv6 address stands in brackets."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(option, text, "must be host:port")
    return host, int(port)


def main() -> None:
    """Run the command line (the console script ``fedpfl-bridge``)."""
    app()


def _require_paho() -> None:
    if find_spec("paho") is None:
        raise FedpflError("fedpfl-bridge needs paho-mqtt for a broker: pip install 'fedpfl[mqtt]'")


def _serve(link: Link, stopping: threading.Event, name: str, where: str) -> Any:
    """Connect, print that everything is ready, and return where events go; None if it is stopped before that."""
    from ..bench.mqtt.events import Events, LogEvents
    from ..bench.mqtt.link import RENEW_SECONDS

    with suppress(PackageNotFoundError):  # it needs no Flower itself
        if warning := untested(version("flwr")):
            logger.warning("%s", warning)
    link.start()
    if stopping.is_set():
        return None
    _every(RENEW_SECONDS, link.renew_presence, stopping)
    events = Events(link, name)
    logging.getLogger("fedpfl").addHandler(LogEvents(events))
    print(f"ready {where} {link.where}", flush=True)
    return events


def _every(seconds: float, do: Any, stopping: threading.Event) -> None:
    def loop() -> None:
        do()
        while not stopping.wait(seconds):
            do()

    threading.Thread(target=loop, daemon=True).start()


def _ending() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set."""
    from ..core.process import set_by_signals

    stopping = threading.Event()
    set_by_signals(stopping, signal.SIGTERM, signal.SIGINT)
    return stopping


def server_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the context for --tls-cert and --tls-key, None without them."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("tls-cert", str(certificate or key), "goes together with --tls-key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        for option, path in (("tls-cert", certificate), ("tls-key", key)):
            if not path.expanduser().is_file():
                raise ConfigError(option, str(path), "there is no such file")
        context.load_cert_chain(certificate.expanduser(), key.expanduser())
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "tls-cert", str(certificate), f"is not a certificate with a matching key ({error})"
        ) from error
    return context


def _log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("fedpfl").setLevel(logging.INFO)
