"""The files in deploy/: systemd knows every word, Ubuntu 18.04's too, and the proxy passes on only what it should."""

from __future__ import annotations

import contextlib
import re
import shutil
import ssl
import subprocess
import threading
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from waiting import HANG_SECONDS, wait_until

from fedpfl.bench.credentials import prepare
from fedpfl.bench.superlink import free_port

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))

# Of the manual of systemd 237.
KNOWN = {
    "Unit": {"Description", "Documentation", "Wants", "After", "StartLimitIntervalSec"},
    "Service": {
        "EnvironmentFile", "Environment", "ExecStart", "ExecReload", "User", "Group", "WorkingDirectory",
        "StateDirectory",
        "StateDirectoryMode", "RuntimeDirectory", "RuntimeDirectoryMode", "Restart", "RestartSec", "TimeoutStopSec",
        "OOMScoreAdjust", "NoNewPrivileges", "CapabilityBoundingSet", "PrivateTmp", "PrivateDevices", "ProtectSystem",
        "ProtectHome", "ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups", "RestrictNamespaces",
        "RestrictRealtime", "RestrictAddressFamilies", "LockPersonality", "SystemCallArchitectures", "UMask",
        "ReadWritePaths", "PrivateNetwork", "IPAddressDeny", "IPAddressAllow", "SystemCallFilter",
        "SystemCallErrorNumber", "MemoryDenyWriteExecute",
    },
    "Install": {"WantedBy"},
}  # fmt: skip
# Came later: 237 gives a warning and goes on without them.
NEWER = {"ProtectClock", "ProtectHostname", "ProtectKernelLogs", "ProtectProc", "RestrictSUIDSGID"}
# 237 knows these groups of system calls, and not @system-service, without which an allow list stops the service.
DENIED = "~@clock @cpu-emulation @debug @module @mount @obsolete @privileged @raw-io @reboot @swap"
# For devices; the server has Python 3.11 or later, and with it a systemd of its time.
DEVICE = {"fedpfl-bridge-device", "fedpfl-forkserver", "fedpfl-supernode@", "fedpfl-worker"}
HARDENED = {
    "NoNewPrivileges": "yes", "CapabilityBoundingSet": "", "ProtectSystem": "strict", "ProtectHome": "yes",
    "PrivateTmp": "yes", "RestrictNamespaces": "yes", "UMask": "0077", "User": "fedpfl", "Restart": "always",
    "PrivateDevices": "yes", "RestrictRealtime": "yes", "LockPersonality": "yes", "SystemCallArchitectures": "native",
    "SystemCallErrorNumber": "EPERM", "ProtectKernelModules": "yes", "ProtectKernelTunables": "yes",
    "ProtectControlGroups": "yes", "ProtectClock": "yes", "ProtectHostname": "yes", "ProtectKernelLogs": "yes",
    "ProtectProc": "invisible", "RestrictSUIDSGID": "yes",
}  # fmt: skip
# Addresses that a unit may speak with, where it need not reach other machines.
ADDRESSES = {
    "fedpfl-worker": None,
    "fedpfl-forkserver": "localhost",
    "fedpfl-supernode@": "localhost",
    "fedpfl-superlink": "localhost",
}


def directives(path):
    section = None
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            yield section, key, value


def test_the_page_copies_and_starts_each_unit_and_makes_the_files_that_they_name():
    page = (ROOT / "deploy" / "systemd" / "README.md").read_text().replace("\\\n", " ").splitlines()
    copied, started = (
        "".join(line for line in page if line.startswith(word)) for word in ("install -m", "systemctl en")
    )
    begin = ("install", "[ -e", "as_fedpfl", "echo", "printf", "    ")
    commands = "".join(line for line in page if line.startswith(begin))
    made = {f"/etc/fedpfl/keys/{name}": name for name in ("ca.pem", "server.pem", "server.key", "superexec.secret")}
    made |= {
        "/etc/fedpfl/local/server.pem": "keys /etc/fedpfl/local",
        "/etc/fedpfl/local/server.key": "/etc/fedpfl/local",
    }
    made |= {"/etc/fedpfl/keys/node-%i": "keys/node-$client", "/etc/fedpfl/supernode-%i.env": "supernode-$client.env"}
    for path in UNITS:
        assert path.name in copied
        assert path.stem in started
        for name in re.findall(r"/etc/fedpfl/[\w./%-]+", path.read_text()):
            assert made.get(name, name) in commands, name


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_uses_what_ubuntu_18_04_knows_and_is_hardened(path):
    lines = list(directives(path))
    newer = NEWER if path.stem in DEVICE else NEWER | {"ProcSubset"}
    assert [(section, key) for section, key, _ in lines if key not in KNOWN[section] | newer] == []
    values = {key: value for _, key, value in lines}
    assert {key: values.get(key) for key in HARDENED} == HARDENED
    filters = [value for _, key, value in lines if key == "SystemCallFilter"]
    if path.stem in DEVICE:
        assert filters == [DENIED]
    else:
        assert filters[0] == "@system-service" and all(value[0] == "~" for value in filters[1:])
    if path.stem in ADDRESSES:
        assert (values["IPAddressDeny"], values.get("IPAddressAllow")) == ("any", ADDRESSES[path.stem])


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian: systemd)"
)
def test_systemd_accepts_the_units_without_a_word_and_finds_them_little_exposed(tmp_path):
    # It checks that commands exist, and gives a warning, with exit code 0, for words that it does not know.
    for unit in UNITS:
        text = unit.read_text().replace("/usr/sbin/mosquitto", "/opt/fedpfl/venv/bin/mosquitto")
        for command in re.findall(r"/opt/fedpfl/venv/bin/[\w-]+", text):
            fake = tmp_path / "bin" / Path(command).name
            fake.parent.mkdir(exist_ok=True)
            fake.write_text("#!/bin/sh\n")
            fake.chmod(0o755)
        (tmp_path / unit.name.replace("@", "@0")).write_text(text.replace("/opt/fedpfl/venv", str(tmp_path)))
    units = sorted(map(str, tmp_path.glob("*.service")))

    def analyze(*arguments):
        return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60)

    done = analyze("verify", *units)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "fedpfl" in line]
    assert (done.returncode, ours) == (0, [])
    for unit in units:
        done = analyze("security", "--offline=true", unit)
        if "unrecognized option" in done.stderr:
            pytest.skip("this systemd-analyze cannot look at files (systemd 250 can)")
        exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
        assert exposure and float(exposure[1]) < 2.5, done.stdout + done.stderr


class Upstream(BaseHTTPRequestHandler):
    """Stands for the SuperLink: answers with what it was sent."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.path.encode() + self.headers["flwr-signature"].encode()
        body += self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def proxy(tmp_path):
    """Run nginx with the file in deploy/ in front of an upstream; return what opens a connection to it."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed (Debian: apt-get install nginx-light)")
    keys = prepare(tmp_path / "keys", 0)
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.certificate, keys.key)
    upstream.socket = context.wrap_socket(upstream.socket, server_side=True)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    port = free_port()
    site = (ROOT / "deploy" / "nginx" / "fedpfl-fleet.conf").read_text().replace("/etc/fedpfl", str(tmp_path))
    site = site.replace("192.168.1.10:9092", f"127.0.0.1:{port}").replace(":8000", f":{upstream.server_port}")
    folders = "".join(f"{kind}_temp_path {tmp_path};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    top = f"daemon off; error_log stderr; pid {tmp_path}/pid; events {{}}"
    (tmp_path / "nginx.conf").write_text(f"{top} http {{ access_log off; {folders} {site} }}")
    process = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")])
    trust = ssl.create_default_context(cafile=keys.authority)

    def connect():
        return HTTPSConnection("127.0.0.1", port, timeout=HANG_SECONDS, context=trust)

    def answers():
        with contextlib.suppress(OSError):
            connect().connect()
            return True

    wait_until(answers, lambda: process.poll() is None)
    yield connect
    process.terminate()
    process.wait(HANG_SECONDS)
    upstream.shutdown()
    upstream.server_close()


def test_the_proxy_passes_on_what_supernodes_say_and_nothing_else(proxy):
    piece = bytes(range(256)) * 20_480  # 5 MiB, as Flower cuts arrays
    for path, status in (("/v1/fleet/push-object", 200), ("/v1/control/start-run", 404), ("/health", 404)):
        connection = proxy()
        connection.request("POST", path, piece, {"flwr-signature": "signed"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == status, path
        assert status != 200 or body == path.encode() + b"signed" + piece
    for path in ("/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run", "//v1/control/start-run"):
        connection = proxy()
        connection.request("POST", path, b"", {"flwr-signature": "signed"})
        assert connection.getresponse().status in (400, 404), path


def test_no_unit_keeps_its_output_from_the_journal_which_rotates_on_a_device():
    keys = {"StandardOutput", "StandardError", "LogNamespace"}
    assert not [(path.name, key) for path in UNITS for _, key, _ in directives(path) if key in keys]
    limits = {key: value for _, key, value in directives(UNITS[0].with_name("fedpfl-journal.conf"))}
    assert limits == {"SystemMaxUse": "200M", "RuntimeMaxUse": "50M"}  # systemd 237 knows both
    target, playbooks = "/etc/systemd/journald.conf.d/fedpfl.conf", ROOT / "deploy" / "ansible"
    assert f"dest: {target}" in (playbooks / "roles" / "device" / "tasks" / "main.yml").read_text()
    assert f"path: {target}\n        state: absent" in (playbooks / "teardown.yml").read_text()
    assert f"fedpfl-journal.conf {target}" in (ROOT / "deploy" / "systemd" / "README.md").read_text()
