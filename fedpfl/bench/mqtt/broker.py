"""The files of mosquitto for one testbed: settings, accounts, access list.

An account may do what its part needs and nothing else. Its name is also its MQTT client id, so that no other account
can take its session over.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ConfigError
from ...core.files import make_password, write_atomically
from . import topics
from .account import require_tls
from .frames import DEFAULT_CHUNK
from .link import KEEPALIVE_SECONDS, PACKET_OVERHEAD

SERVER_ACCOUNT = "server"
WATCH_ACCOUNT = "watch"
# The environment of mosquitto: glibc would clear the memory of every large message again (up to 32 MiB are kept).
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "33554432"}
# As mosquitto_passwd does it ($7$: PBKDF2 with SHA-512), which would want the password on its command line. The
# passwords are 32 random bytes, so that nothing is gained by more iterations.
_ITERATIONS = 101


@dataclass(frozen=True)
class BrokerFiles:
    """The files that :func:`write_broker_files` leaves."""

    config: Path  # for mosquitto -c
    passwords: dict[str, Path]  # the file of each account, for --password-file
    changed: tuple[str, ...]  # names of those written; a running mosquitto has to read some of them again


@dataclass(frozen=True)
class BrokerTls:
    """The broker's certificate and its key."""

    certificate: Path
    key: Path


def write_broker_files(
    folder: Path,
    host: str,
    port: int,
    devices: Sequence[str],
    tls: BrokerTls | None = None,
    watchers: Sequence[str] = (WATCH_ACCOUNT,),
    max_chunk: int = DEFAULT_CHUNK,
    passwords: Path | None = None,
) -> BrokerFiles:
    """Write ``mosquitto.conf``, accounts and access list; passwords that are there already stay.

    A file that has its content already is not written again. ``folder`` is made for this user only. Without ``tls``
    only addresses of this machine are allowed. ``watchers`` may read everything but requests and responses; each serves
    one `fedpfl watch` at a time. ``max_chunk`` is the largest ``--max-chunk`` that the two sides can use. Passwords lie
    in ``folder/passwords`` unless ``passwords`` names another folder.
    """
    accounts = [SERVER_ACCOUNT, *watchers, *devices]
    for name in accounts:
        topics.checked_name("device", name)
        if accounts.count(name) > 1:
            raise ConfigError("device", name, "is the name of another account")
    require_tls("listen", host, host, tls, "--tls-cert and --tls-key are missing")
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    passwords = (passwords or folder / "passwords").absolute()
    passwords.mkdir(exist_ok=True, mode=0o700)
    (folder / "store").mkdir(exist_ok=True, mode=0o700)
    files = {name: passwords / name for name in accounts}
    old_hashes = _hashes(folder / "accounts")
    hashes = [f"{name}:{_hash(make_password(path), old_hashes.get(name))}" for name, path in files.items()]
    contents = {
        "accounts": "".join(f"{line}\n" for line in hashes),
        "access": access_list(devices, watchers),
        "mosquitto.conf": "".join(f"{line}\n" for line in _settings(folder, host, port, tls, max_chunk)),
    }
    changed = tuple(name for name, text in contents.items() if _write(folder / name, text.encode()))
    return BrokerFiles(folder / "mosquitto.conf", files, changed)


def access_list(devices: Iterable[str], watchers: Iterable[str] = (WATCH_ACCOUNT,)) -> str:
    """Return the access list: who may read and write what; everything else is denied."""
    server = [
        f"read {topics.REQUESTS}",
        f"read {topics.TELEMETRY}",
        f"write {topics.response('+')}",
        f"write {topics.BRIDGE_PRESENCE}",
    ]
    server += [f"write {topics.ROOT}/run/#", f"write {topics.log(SERVER_ACCOUNT)}"]
    rights = {SERVER_ACCOUNT: server}
    for name in devices:
        topics_of_device = [topics.request(name), topics.node_presence(name), topics.telemetry(name), topics.log(name)]
        rights[name] = [
            f"read {topics.response(name)}",
            f"read {topics.BRIDGE_PRESENCE}",
            *(f"write {topic}" for topic in topics_of_device),
        ]
    for name in watchers:
        rights[name] = [f"read {topic}" for topic in topics.WATCHED]
    return "\n".join("\n".join([f"user {name}", *(f"topic {r}" for r in rules), ""]) for name, rules in rights.items())


def _settings(folder: Path, host: str, port: int, tls: BrokerTls | None, max_chunk: int) -> list[str]:
    lines = [
        f"listener {port} {host}",
        "allow_anonymous false",
        f"password_file {folder / 'accounts'}",
        f"acl_file {folder / 'access'}",
        # The name of the account is that of the session, so that no other account can take it over.
        "use_username_as_clientid true",
        # Each account has one connection. mosquitto has no setting for those that do not log in; they end after 90 s.
        "max_connections 512",
        f"max_keepalive {4 * KEEPALIVE_SECONDS}",
        # What is retained outlives the broker.
        "persistence true",
        f"persistence_location {folder / 'store'}/",
        "autosave_interval 30",
        # What is on its way to one account; mosquitto drops anything more silently, and a SuperNode asks again.
        "max_queued_messages 100000",
        "max_queued_bytes 536870912",
        "memory_limit 2147483648",
        f"max_packet_size {max_chunk + PACKET_OVERHEAD}",
        "set_tcp_nodelay true",
        "log_dest stderr",
        "log_type error",
        "log_type warning",
        "log_type notice",
        "log_type information",
    ]
    if tls is not None:
        lines += [f"certfile {tls.certificate.absolute()}", f"keyfile {tls.key.absolute()}"]
    if os.geteuid() == 0:
        lines.append(f"user {getpass.getuser()}")  # or it would change to a user who cannot read these files
    return lines


def _write(path: Path, content: bytes) -> bool:
    if path.is_file() and path.read_bytes() == content:
        return False
    write_atomically(path, content, private=True)
    return True


def _hashes(accounts: Path) -> dict[str, str]:
    lines = accounts.read_text(encoding="ascii", errors="replace").splitlines() if accounts.is_file() else []
    return {name: digest for name, _, digest in (line.partition(":") for line in lines)}


def _hash(password: str, stored: str | None) -> str:
    """Return the password's hash: the known one if it is the password's, or else one with a new salt."""
    parts = (stored or "").split("$")
    with suppress(ValueError):  # a damaged line is no known hash
        if len(parts) == 5 and _salted(password, base64.b64decode(parts[3])) == stored:
            return stored
    return _salted(password, secrets.token_bytes(12))


def _salted(password: str, salt: bytes) -> str:
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    return f"$7${_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
