"""What the bridge's tests start: a broker, a SuperLink's stand-in, the two sides; each is ended by its own handle."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import paho.mqtt.client as paho
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from waiting import HANG_SECONDS, wait_until

from fedpfl.bench.mqtt.broker import BrokerTls, write_broker_files

MOSQUITTO = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
DEVICES = ("nano-1", "nano-2")
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/fleet/push-object"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


PEM = serialization.Encoding.PEM


def _signed(name, key, issuer, issuer_key, authority, days=1):
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=3))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(authority, None), critical=True)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def certificates(folder):
    """Write ca.pem, server.pem, and their keys for this machine's loopback address."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = _signed("test authority", ca_key, None, ca_key, True)
    server = _signed("127.0.0.1", key, ca.subject, ca_key, False)
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    for name, made in (("ca", ca), ("server", server)):
        (folder / f"{name}.pem").write_bytes(made.public_bytes(PEM))
    for name, made in (("ca", ca_key), ("server", key)):
        (folder / f"{name}.key").write_bytes(made.private_bytes(PEM, form, plain))
    return folder


def end_certificate(folder):
    """Put one that ended yesterday in the place of server.pem."""
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    ca_key, key = (
        serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), None) for name in ("ca", "server")
    )
    (folder / "server.pem").write_bytes(_signed("127.0.0.1", key, ca.subject, ca_key, False, -1).public_bytes(PEM))


class Process:
    """A program whose log is a file."""

    def __init__(self, command, log, ready=None):
        self.command, self.log, self.ready = [str(part) for part in command], log, ready
        self.process = None
        self.start()

    def start(self):
        start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if self.ready:
            self.wait_for(self.ready, start)

    def wait_for(self, text, start=0):
        """Wait until its log says something, after its first ``start`` bytes."""
        wait_until(lambda: text in self.text(start), lambda: self.process.poll() is None, lambda: self.text(start))

    def text(self, start=0):
        return self.log.read_bytes()[start:].decode(errors="replace")

    def end(self, number=signal.SIGTERM):
        """End it; return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(HANG_SECONDS)

    def restart(self, number=signal.SIGKILL):
        self.end(number)
        self.start()


class Broker(Process):
    """A real one; ``limit`` takes the place of its line that limits the size of packets."""

    def __init__(self, folder, tls=False, max_chunk=2**20, limit=None):
        self.port = free_port()
        self.certificates = certificates(folder / "certificates") if tls else None
        pair = BrokerTls(self.certificates / "server.pem", self.certificates / "server.key") if tls else None
        self.files = write_broker_files(folder / "broker", "127.0.0.1", self.port, DEVICES, pair, max_chunk=max_chunk)
        if limit is not None:
            config = self.files.config
            config.write_text(re.sub(r"max_packet_size \d+", limit, config.read_text()))
        super().__init__([MOSQUITTO, "-c", self.files.config], folder / "broker.log", " running")

    def start(self):
        super().start()
        # mosquitto 2.0.11 says that it runs before it does, and forgets a SIGTERM that comes in between.
        with socket.create_connection(("127.0.0.1", self.port), HANG_SECONDS) as connection:
            connection.sendall(bytes(64))  # neither MQTT nor TLS: it hangs up
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""

    def options(self, account):
        """Options of `fedpfl-bridge` and `fedpfl watch` for this broker."""
        options = ["--broker", f"127.0.0.1:{self.port}", "--username", account]
        options += ["--password-file", self.files.passwords[account]]
        return options + (["--ca", self.certificates / "ca.pem"] if self.certificates else [])

    def client(self, account, password=None):
        """Return a connected paho client, for things the bridge would never do."""
        client = paho.Client(CallbackAPIVersion.VERSION2, client_id=account, protocol=paho.MQTTv5)
        client.username_pw_set(account, password or self.files.passwords[account].read_text().strip())
        if self.certificates:
            client.tls_set(str(self.certificates / "ca.pem"))
        client.received, client.reasons = queue.Queue(), queue.Queue()
        client.on_message = lambda c, d, m: client.received.put(m)
        client.on_publish = lambda c, d, mid, reason, p: client.reasons.put(reason)
        client.reconnect_delay_set(0.05, 0.1)  # mosquitto 2.0.11 answers what the access list forbids, then hangs up
        client.connect("127.0.0.1", self.port)
        client.loop_start()
        wait_until(client.is_connected)
        return client


def publish(client, topic, payload, retain=False, **properties):
    """Publish and return the broker's reason."""
    p = Properties(PacketTypes.PUBLISH)
    for name, value in properties.items():
        setattr(p, name, value)
    client.publish(topic, payload, 1, retain, p)
    return client.reasons.get(timeout=HANG_SECONDS)


def fedpfl_bridge(*arguments):
    return [sys.executable, "-c", "from fedpfl.cli.bridge import main; main()", *arguments]


class Side(Process):
    """One side of the bridge as a process of its own."""

    @classmethod
    def device(cls, broker, folder, name="nano-1", *more):
        side = cls(
            fedpfl_bridge(
                "device", "--device", name, *broker.options(name), "--listen", f"127.0.0.1:{free_port()}", *more
            ),
            folder / f"{name}.log",
            "ready",
        )
        side.address = side.command[side.command.index("--listen") + 1]
        return side

    @classmethod
    def server(cls, broker, folder, upstream, *more):
        state = ["--superlink", f"127.0.0.1:{upstream.port}"]
        return cls(fedpfl_bridge("server", *broker.options("server"), *state, *more), folder / "server.log", "ready")


class SuperLink:
    """Stands for a SuperLink: hands out each message once, echoes everything else, and remembers what it was asked."""

    def __init__(self, tls=None):
        self.messages: dict[bytes, list[bytes]] = {}
        self.seen, self.pulls, self.statuses = [], Counter(), {}
        self.lengths: dict[str, int] = {}  # that the head of an answer gives, in place of its own
        self.goes_on = threading.Event()  # while it is not set, nothing but pull-messages is answered
        self.goes_on.set()
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                status, answer = outer.answer(self.path, list(self.headers.items()), body)
                self.wfile.write(
                    f"HTTP/1.1 {status} X\r\ncontent-type: application/protobuf\r\nflwr-answer: yes\r\n"
                    f"content-length: {outer.lengths.get(self.path, len(answer))}\r\n\r\n".encode()
                    + answer
                )

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path, headers, body):
        if path == PULL:
            with self.lock:
                self.pulls[body] += 1
                waiting = self.messages.get(body)
                return 200, waiting.pop(0) if waiting else b""
        with self.lock:
            self.seen.append((path, headers, body))
        self.goes_on.wait(HANG_SECONDS)
        return self.statuses.get(path, 200), body[::-1]

    def wait_for_pull(self, node):
        """Wait until a node has asked for its messages."""
        wait_until(lambda: self.pulls[node])

    def give(self, node, message):
        """Have a message for a node, which names itself by the body of its pull-messages."""
        with self.lock:
            self.messages.setdefault(node, []).append(message)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def folder_text(path: Path):
    """Return the text of every file below a folder."""
    return "".join(p.read_text(errors="replace") for p in path.rglob("*") if p.is_file())
