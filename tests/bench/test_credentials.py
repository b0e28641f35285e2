"""Certificates and keys: accepted where they should be, kept, and nobody else's to read."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shlex
import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from typer.testing import CliRunner

from fedpfl.bench import credentials
from fedpfl.cli import app, doctor
from fedpfl.core import files
from fedpfl.core.errors import ConfigError


def greet(server_keys, authority, host):
    """Let a client and a server greet each other in memory; raise what the client objects to."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_keys.certificate, server_keys.key)
    client = ssl.create_default_context(cafile=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[0].version()


def test_a_client_that_knows_the_authority_accepts_the_server_under_its_names(tmp_path):
    made = credentials.prepare(tmp_path / "keys", 0, ["192.168.1.10", "laptop.local"])
    assert greet(made, made.authority, "192.168.1.10") == "TLSv1.3"
    assert greet(made, made.authority, "laptop.local") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        greet(made, made.authority, "192.168.1.11")


def test_another_authority_s_server_is_refused(tmp_path):
    made, other = credentials.prepare(tmp_path / "a", 0), credentials.prepare(tmp_path / "b", 0)
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(other, made.authority, "127.0.0.1")


def test_a_certificate_that_ends_soon_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(credentials, "VALID_DAYS", credentials.MIN_DAYS - 1)
    first = credentials.prepare(tmp_path / "keys", 0).certificate.read_bytes()
    monkeypatch.undo()
    made = credentials.prepare(tmp_path / "keys", 0)
    assert made.certificate.read_bytes() != first
    assert greet(made, made.authority, "localhost") == "TLSv1.3"


def test_an_authority_is_renewed_without_a_new_one(tmp_path, monkeypatch):
    monkeypatch.setattr(credentials, "AUTHORITY_DAYS", credentials.AUTHORITY_MIN_DAYS - 1)
    made = credentials.prepare(tmp_path / "keys", 0)
    (tmp_path / "old.pem").write_bytes(made.authority.read_bytes())
    server = made.certificate.read_bytes()
    monkeypatch.undo()
    made = credentials.prepare(tmp_path / "keys", 0)
    assert made.authority.read_bytes() != (tmp_path / "old.pem").read_bytes()
    assert made.certificate.read_bytes() == server
    made.certificate.unlink()  # and another server's certificate of the renewed authority
    made = credentials.prepare(tmp_path / "keys", 0)
    for authority in (made.authority, tmp_path / "old.pem"):  # a device has either file
        assert greet(made, authority, "localhost") == "TLSv1.3"


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_a_key_that_a_device_makes_itself_is_as_good(tmp_path):
    """By the command of docs/devices/deployment.md, with nothing of fedpfl on the device."""
    page = (Path(__file__).parents[2] / "docs" / "devices" / "deployment.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^ssh-keygen .*? -f node-000", page, re.MULTILINE)
    subprocess.run(shlex.split(command), cwd=tmp_path, check=True)
    made = credentials.prepare(tmp_path / "keys", 1).node_keys[0]
    device, server = (load_ssh_private_key(path.read_bytes(), None) for path in (tmp_path / "node-000", made))
    assert device.curve.name == server.curve.name == "secp384r1"
    public = load_ssh_public_key((tmp_path / "node-000.pub").read_bytes())
    assert public.public_numbers() == device.public_key().public_numbers()
    assert device.private_numbers() != server.private_numbers()
    assert (tmp_path / "node-000").stat().st_mode & 0o777 == 0o600


def doctored(monkeypatch, folder):
    """Return what `fedpfl doctor` finds of certificates, and nothing else of this machine."""
    monkeypatch.setattr(doctor, "examine", lambda *_: [])
    monkeypatch.setattr(doctor, "KEYS", [folder])
    done = CliRunner().invoke(app, ["doctor", "--json"])
    (check,) = json.loads(done.stdout)
    assert check["check"] == "certificates"
    return check


@pytest.mark.parametrize(("days", "state", "message"), [
    (credentials.MIN_DAYS + 2, "ok", "valid now and in 30 days"),
    (10, "warning", "server.pem ends in 9 days; renew with"),
    (-0.5, "problem", "server.pem has ended"),
])  # fmt: skip
def test_doctor_warns_thirty_days_before_a_certificate_ends(tmp_path, monkeypatch, days, state, message):
    monkeypatch.setattr(credentials, "VALID_DAYS", days)
    credentials.prepare(tmp_path / "keys", 0)
    check = doctored(monkeypatch, tmp_path / "keys")
    assert check["state"] == state and message in check["message"]


def test_what_was_made_while_the_clock_was_ahead_is_named_and_made_anew(tmp_path, monkeypatch):
    now = credentials._now
    monkeypatch.setattr(credentials, "_now", lambda: now() + datetime.timedelta(days=400))
    made = credentials.prepare(tmp_path / "keys", 1)
    monkeypatch.setattr(credentials, "_now", now)
    assert {path.name for path, flaw in credentials.flaws(made.folder).items() if flaw.useless} == {
        "ca.pem",
        "server.pem",
    }
    with pytest.raises(ssl.SSLCertVerificationError, match="not yet valid"):
        greet(made, made.authority, "localhost")
    check = doctored(monkeypatch, made.folder)
    assert check["state"] == "problem" and "is not valid before" in check["message"]
    key = made.node_keys[0].read_bytes()
    credentials.prepare(tmp_path / "keys", 1)
    assert greet(made, made.authority, "localhost") == "TLSv1.3" and made.node_keys[0].read_bytes() == key


def test_an_address_that_the_certificate_lacks_is_named(tmp_path):
    credentials.prepare(tmp_path / "keys", 0)
    with pytest.raises(ConfigError, match=r"host = '10.0.0.1': the certificate .*server.pem does not cover it; delete"):
        credentials.prepare(tmp_path / "keys", 0, [*credentials.LOOPBACK, "10.0.0.1"])


def test_node_keys_are_what_flower_reads(tmp_path):
    (path,) = credentials.prepare(tmp_path / "keys", 1).node_keys
    private = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(private.curve, ec.SECP384R1)
    assert load_ssh_public_key(path.with_suffix(".pub").read_bytes()) == private.public_key()


def test_nobody_else_can_read_them_and_what_is_there_is_kept(tmp_path):
    made = credentials.prepare(tmp_path / "keys", 1)
    before = {path: path.read_bytes() for path in made.folder.rglob("*") if path.is_file()}
    again = credentials.prepare(tmp_path / "keys", 2)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert again.node_keys[:1] == made.node_keys and len(again.node_keys) == 2
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (made.folder, made.folder / "nodes")} == {0o700}
    secret = [made.key, made.folder / "ca.key", made.superexec_secret, *again.node_keys]
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    made.folder.chmod(0o750)
    with pytest.raises(ConfigError, match="holds private keys; remove others' access: chmod 700"):
        credentials.prepare(tmp_path / "keys", 1)


def test_the_keys_command_says_how_many_files_are_new(tmp_path):
    arguments = ["keys", str(tmp_path / "keys"), "--nodes", "2", "--account", "server", "--account"]

    def new(*more):
        done = CliRunner().invoke(app, [*arguments, *more])
        assert done.exit_code == 0, done.stderr
        return done.stdout.splitlines()[-1]

    # Authority and certificate with their keys, a secret, two node keys and their public ones, two passwords.
    assert new("nano-1") == "new files: 11"
    assert new("nano-1") == "new files: 0"
    assert new("nano-1", "--account", "nano-2") == "new files: 1"
    passwords = sorted((tmp_path / "keys" / "passwords").iterdir())
    assert [path.name for path in passwords] == ["nano-1", "nano-2", "server"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in passwords} == {0o600}
    assert len({path.read_text() for path in passwords}) == 3
    done = CliRunner().invoke(app, [*arguments, "../nano"])
    assert (done.exit_code, done.stderr.startswith("error: account = '../nano': must be")) == (2, True)


def test_a_password_that_another_process_makes_meanwhile_counts(tmp_path, monkeypatch):
    def late(part, path):
        (tmp_path / "nano-1").write_text("first\n")
        link(part, path)

    link = os.link
    monkeypatch.setattr(os, "link", late)
    assert files.make_password(tmp_path / "nano-1") == "first"
    assert (tmp_path / "nano-1").read_text() == "first\n"
    assert [path.name for path in tmp_path.iterdir()] == ["nano-1"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"folder = '.*/file/keys': cannot be written \(Not a directory\)"):
        credentials.prepare(tmp_path / "file" / "keys", 1)


@pytest.mark.parametrize("missing", ["ca.key", "server.key"])
@pytest.mark.parametrize("last", ["ca.key", "ca.pem", "server.key"])
def test_whenever_it_ends_what_is_there_fits_together(tmp_path, monkeypatch, missing, last):
    def until_last(path, *args, **options):
        write(path, *args, **options)
        if path.name == last:
            raise KeyboardInterrupt

    write = credentials.write_atomically
    credentials.prepare(tmp_path / "keys", 0)
    (tmp_path / "keys" / missing).unlink()
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(credentials, "write_atomically", until_last)
        credentials.prepare(tmp_path / "keys", 0)
    made = credentials.prepare(tmp_path / "keys", 0)
    assert greet(made, made.authority, "localhost") == "TLSv1.3"


def test_damaged_files_and_names_that_are_none_are_told(tmp_path):
    def keys(*more):
        done = CliRunner().invoke(app, ["keys", str(tmp_path / "keys"), *more])
        return done.exit_code, done.stderr

    assert keys("--host", "bär") == (
        2,
        "error: host = 'bär': must be an address or a name in ASCII (as in DNS: xn--…)\n",
    )
    made = credentials.prepare(tmp_path / "keys", 0)
    before = made.certificate.read_bytes()
    for damaged in (made.authority, made.certificate):
        good = damaged.read_bytes()
        damaged.write_bytes(good[:100])
        code, error = keys()
        assert (code, error.count("\n"), f"folder = '{damaged}': is damaged; delete it" in error) == (2, 1, True)
        damaged.write_bytes(good)
    assert keys()[0] == 0
    assert made.certificate.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", r"ca.key': is damaged; restore it from a copy"),
        (b"$ANSIBLE_VAULT;1.1;AES256\n6164\n", r"ca.key': is encrypted; decrypt it first: ansible-vault decrypt /"),
    ],
)
def test_a_certificate_stays_while_its_authority_cannot_sign_another(tmp_path, monkeypatch, content, said):
    made = credentials.prepare(tmp_path / "keys", 0)
    monkeypatch.setattr(credentials, "_lasts", lambda path, *days: path == made.authority)
    before = made.certificate.read_bytes()
    (made.folder / "ca.key").write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        credentials.prepare(tmp_path / "keys", 0)
    assert made.certificate.read_bytes() == before
