"""Certificates, node keys and secrets of a testbed, made on first use and then kept.

A private certificate authority signs the servers' certificate; every node has an ECDSA key with which it signs its
requests (Flower's SuperNode authentication), and the SuperLink's SuperExec a shared secret. Private files have mode
0600 in a folder with mode 0700.
"""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..core.errors import ConfigError
from ..core.files import locked, make_password, write_atomically
from .mqtt.topics import checked_name

LOOPBACK = ("127.0.0.1", "localhost")
VALID_DAYS, AUTHORITY_DAYS = 825, 3650
# A certificate that ends sooner is replaced: a run may take days, and devices get a new ca.pem one by one. So is
# one that begins later: it was made while the clock was wrong.
MIN_DAYS, AUTHORITY_MIN_DAYS = 30, 365
_DAMAGED = "is damaged; delete it and repeat the command. With ca.pem, also delete every certificate that it signed"
# Not "remove it": that makes another authority, which no device knows.
_KEY_DAMAGED = "is damaged; restore it from a copy. A new authority would need its ca.pem on every device"


@dataclass(frozen=True)
class Credentials:
    """Files of a testbed."""

    folder: Path
    authority: Path  # PEM: the authority's certificate, which clients check servers against
    certificate: Path  # PEM: the server's
    key: Path
    superexec_secret: Path  # what a SuperExec proves itself with to the SuperLink
    node_keys: tuple[Path, ...]  # private, in OpenSSH's format; the public ones end in .pub


def prepare(folder: Path, nodes: int, hosts: Sequence[str] = LOOPBACK) -> Credentials:
    """Make the missing files in a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "nodes").mkdir(exist_ok=True, mode=0o700)
        if folder.stat().st_mode & 0o077:
            raise ConfigError("folder", str(folder), "holds private keys; remove others' access: chmod 700")
        with locked(folder / ".lock"):
            return _prepare(folder, nodes, hosts)
    except OSError as error:
        raise ConfigError("folder", str(folder), f"cannot be written ({error.strerror})") from error


def prepare_passwords(folder: Path, accounts: Sequence[str]) -> tuple[Path, ...]:
    """Make the passwords of accounts at the MQTT broker that are missing in a folder which :func:`prepare` made."""
    place = folder / "passwords"
    files = tuple(place / checked_name("account", name) for name in accounts)
    for path in files:
        place.mkdir(exist_ok=True, mode=0o700)
        make_password(path)
    return files


def _prepare(folder: Path, nodes: int, hosts: Sequence[str]) -> Credentials:
    node_keys = tuple(folder / "nodes" / f"node-{number:03d}" for number in range(nodes))
    made = Credentials(
        folder, folder / "ca.pem", folder / "server.pem", folder / "server.key", folder / "superexec.secret", node_keys
    )
    names = [_alternative(host) for host in hosts]
    # A certificate is removed before its key is replaced, so that the files fit together whatever interrupts this.
    if not (made.authority.is_file() and (folder / "ca.key").is_file()):
        made.certificate.unlink(missing_ok=True)
        made.authority.unlink(missing_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        _write_key(folder / "ca.key", key)
        _make_authority(made.authority, key)
    elif not _lasts(made.authority, AUTHORITY_MIN_DAYS):
        # With its key it stays the same authority: devices that still have the old file know its servers until then.
        _make_authority(made.authority, _signer(folder / "ca.key"))
    if not (_lasts(made.certificate) and made.key.is_file()):
        signer = _signer(folder / "ca.key")  # first: the old certificate is of use until there is a new one
        made.certificate.unlink(missing_ok=True)
        _make_certificate(made, signer, hosts[0], names)
    missing = {str(name.value) for name in names} - _names(made.certificate)
    if missing:
        allowed = f"the certificate {made.certificate} does not cover it; delete that file to have a new one made"
        raise ConfigError("host", ", ".join(sorted(missing)), allowed)
    if not made.superexec_secret.is_file():
        write_atomically(made.superexec_secret, secrets.token_bytes(32), private=True)
    for path in node_keys:
        if not path.is_file():
            key = ec.generate_private_key(ec.SECP384R1())
            public = path.with_suffix(".pub")
            write_atomically(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
            content = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
            write_atomically(path, content, private=True)
    return made


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    write_atomically(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), private=True)


def _certificate(path: Path) -> x509.Certificate:
    content = path.read_bytes()
    _require_plain(path, content)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise ConfigError("folder", str(path), _DAMAGED) from error


class Flaw(NamedTuple):
    """What is wrong with a certificate."""

    reason: str
    useless: bool  # now already


def flaws(folder: Path) -> dict[Path, Flaw]:
    """Return the flaws of certificates in a folder: those that end soon, have ended, or begin later."""
    flaws_by_file = {path: _flaw(path, MIN_DAYS) for path in sorted(folder.glob("*.pem"))}
    return {path: flaw for path, flaw in flaws_by_file.items() if flaw is not None}


def _flaw(path: Path, days: int) -> Flaw | None:
    certificate, now = _certificate(path), _now()
    left, begins = certificate.not_valid_after_utc - now, certificate.not_valid_before_utc
    if begins > now:
        return Flaw(f"is not valid before {begins:%Y-%m-%d}, by this clock", True)
    if left.days < 0:
        return Flaw("has ended", True)
    return Flaw(f"ends in {left.days} days", False) if left <= datetime.timedelta(days=days) else None


def _lasts(path: Path, days: int = MIN_DAYS) -> bool:
    return path.is_file() and _flaw(path, days) is None


def _names(path: Path) -> set[str]:
    names = _certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def _make_authority(certificate: Path, key: ec.EllipticCurvePrivateKey) -> None:
    name = _name("fedpfl testbed authority")
    builder = (
        _builder(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
    )
    write_atomically(certificate, builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))


def _signer(path: Path) -> ec.EllipticCurvePrivateKey:
    content = path.read_bytes()
    _require_plain(path, content)
    try:
        signer = load_pem_private_key(content, None)
    except (ValueError, TypeError) as error:  # TypeError: it has a passphrase
        raise ConfigError("folder", str(path), _KEY_DAMAGED) from error
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    return signer


def _require_plain(path: Path, content: bytes) -> None:
    if content.startswith(b"$ANSIBLE_VAULT"):
        raise ConfigError("folder", str(path), f"is encrypted; decrypt it first: ansible-vault decrypt {path}")


def _make_certificate(
    made: Credentials, signer: ec.EllipticCurvePrivateKey, name: str, names: Sequence[x509.GeneralName]
) -> None:
    issuer = _certificate(made.authority).subject
    key = ec.generate_private_key(ec.SECP256R1())
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = (
        _builder(_name(name), issuer, key, VALID_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(signed_by, critical=False)
    )
    _write_key(made.key, key)
    write_atomically(made.certificate, builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # An original Nano has no battery for its clock: let it be a day behind.
        .not_valid_before(_now() - datetime.timedelta(days=1))
        .not_valid_after(_now() + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(**used: bool) -> x509.KeyUsage:
    kinds = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{kind: used.get(kind, False) for kind in kinds})


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common[:64])])  # no longer one is allowed; not used


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or not host.isascii():
        raise ConfigError("host", host, "must be an address or a name in ASCII (as in DNS: xn--…)")
    return x509.DNSName(host)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
