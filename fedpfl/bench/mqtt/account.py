"""How to connect to a broker: address, name, password, certificates."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from ...core.errors import ConfigError, FedpflError
from . import topics


class LinkError(FedpflError):
    """There is no connection to the broker, or it refuses what was asked."""


@dataclass(frozen=True)
class Account:
    """Whom to log in as, and where."""

    host: str
    port: int
    username: str  # also the MQTT client id, so that nobody else can take over its session
    password: str = field(repr=False)  # empty only for a broker that asks for none
    ca: Path | None = None  # certificate of the broker's authority; None: no TLS, on loopback only

    def __post_init__(self) -> None:
        topics.checked_name("username", self.username)
        require_tls("broker", self.host, self.host, self.ca, "--ca is missing")

    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context; None without TLS."""
        return None if self.ca is None else client_context(self.ca)


def client_context(ca: Path) -> ssl.SSLContext:
    """Return a TLS context that trusts one certificate authority and nobody else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError("ca", str(ca), f"must be a certificate in PEM format ({error})") from error
    return context


def read_password(path: Path) -> str:
    """Return the first line of a password file."""
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError("password-file", str(path), "others can read it; chmod 600")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("password-file", str(path), f"cannot be read ({error})") from error
    if not lines or not lines[0]:
        raise ConfigError("password-file", str(path), "is empty")
    return lines[0]


def require_tls(option: str, value: str, host: str, tls: object, missing: str) -> None:
    """Raise ``ConfigError`` if ``tls`` is None and the host is not loopback; ``missing`` is what users have to add."""
    if tls is None and not is_loopback(host):
        raise ConfigError(option, value, f"needs TLS, because it is not loopback: {missing}")


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
