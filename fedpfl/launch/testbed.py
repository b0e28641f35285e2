"""A whole testbed on one machine: SuperLink, SuperNodes, workers and MQTT bridge, as on a laptop and its devices.

Everything listens on loopback, talks over TLS and proves who it is, as on real devices; what ends is started again, as
systemd does there. It is for trying and for tests: a simulation of the same clients is faster.
"""

from __future__ import annotations

import math
import os
import shutil
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

from ..client.protocol import SOCKET_VARIABLE
from ..core.errors import FedpflError
from ..flower_private import TASK_POLL_INTERVAL
from . import credentials
from .forks import folder_of_commands
from .superlink import START_SECONDS, SUPERLINK, SuperLink, free_port, last_line, script, text

# The bench of the paper has three clients on each of its devices.
CLIENTS_PER_DEVICE = 3
# A SuperNode that was killed is refused until the SuperLink has missed its heartbeats for a minute.
MOST_RESTARTS = 12
LONGEST_RESTART_SECONDS = 10.0
BRIDGE = (sys.executable, "-P", "-c", "from fedpfl.cli.bridge import main; main()")
# Flower's default is 1 s; it looks for a new message with a request to the SuperNode on the same machine.
TASK_POLL_SECONDS = 0.2


class Testbed(SuperLink):
    """A SuperLink with SuperNodes of its own.

    Parameters
    ----------
    keys : Path
        Folder of certificates, keys and passwords, made on first use.
    mqtt : bool
        Whether SuperNodes reach the SuperLink through an MQTT broker.

    Attributes
    ----------
    watch : list of str or None
        With MQTT, once the nodes have started: the command that shows them live.
    """

    def __init__(self, keys: Path, mqtt: bool = False) -> None:
        super().__init__()
        self._mqtt = mqtt
        self._folder_of_keys = keys
        self._database = self.folder / "superlink.db"
        self._commands: dict[str, tuple[list[str], dict[str, str]]] = {}
        self._restarts: dict[str, list[float]] = {}
        self._complete = False
        self.watch: list[str] | None = None

    def start_nodes(
        self,
        clients: int,
        devices: int | None = None,
        worker: bool = True,
        app: Path | None = None,
        runs: Path | None = None,
    ) -> None:
        """Start a SuperNode for each client, spread over devices, and wait until all have been started.

        Parameters
        ----------
        clients : int
            Number of SuperNodes.
        devices : int, optional
            Number of devices, each with one worker; one for every three clients by default.
        worker : bool
            Whether there are workers; without, every message is answered by a process that imports torch.
        app : Path, optional
            Folder of the app, whose code the workers have to run; None means the installed package.
        runs : Path, optional
            Folder of the runs, of which the newest is published over MQTT.

        Raises
        ------
        FedpflError
            Something does not start.
        """
        devices = min(devices or math.ceil(clients / CLIENTS_PER_DEVICE), clients)
        self._keys = credentials.prepare(self._folder_of_keys, clients)
        if worker:
            for device in range(devices):
                self._start_worker(device, devices, app)
                self._start_forkserver(device)
        self._await()
        self._spawn("the server's SuperExec", self._superexec(), self._environment)
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            list(pool.map(self._register, range(clients)))
        addresses = self._start_bridge(devices, runs) if self._mqtt else [self._start_direct()] * devices
        for device in range(devices if worker else 0):
            for name, path in (("worker", self._socket(device)), ("fork server", self._forkserver(device))):
                self._await_part(f"{name} {device}", path.exists)
        for client in range(clients):
            device = client * devices // clients
            self._start_node(client, clients, addresses[device], device if worker else None)
        self._complete = True

    def ended(self) -> str | None:
        """Start again what has ended; say what ended too often, or None."""
        if not self._complete:
            return super().ended()
        for name, process in self._processes.items():
            if process.poll() is None:
                continue
            now, times = time.monotonic(), self._restarts.setdefault(name, [])
            if len(times) >= MOST_RESTARTS:
                return f"{name} ended {MOST_RESTARTS + 1} times: {last_line(self._log_of(name))}"
            if not times or now - times[-1] > min(2.0 ** len(times), LONGEST_RESTART_SECONDS):
                times.append(now)
                self._spawn(name, *self._commands[name])
        return None

    def log(self, run_id: str | None) -> str:
        """Return what all parts have logged, each under its name."""
        parts = [super().log(run_id)]
        parts += [f"-- {name} --\n{text(self._log_of(name))}" for name in self._processes if name != SUPERLINK]
        return "\n".join(parts)

    def _start(self) -> None:
        self._keys = credentials.prepare(self._folder_of_keys, 0)
        super()._start()

    def _flags(self) -> list[str]:
        keys = self._keys
        return [
            "--ssl-certfile", str(keys.certificate), "--ssl-keyfile", str(keys.key),
            "--ssl-ca-certfile", str(keys.authority), "--enable-supernode-auth",
            "--isolation", "process", "--superexec-auth-secret-file", str(keys.superexec_secret),
            "--database", str(self._database),
        ]  # fmt: skip

    def _trust(self) -> str:
        return f'root-certificates = "{self._keys.authority}"'

    def _connection(self) -> HTTPConnection:
        context = ssl.create_default_context(cafile=str(self._keys.authority))
        return HTTPSConnection("127.0.0.1", self._port, timeout=2, context=context)

    def _superexec(self) -> list[str]:
        return [
            script("flower-superexec"), "--runtime-api-address", f"127.0.0.1:{self._port}",
            "--root-certificates", str(self._keys.authority),
            "--superexec-auth-secret-file", str(self._keys.superexec_secret),
        ]  # fmt: skip

    def _register(self, client: int) -> None:
        public = self._keys.node_keys[client].with_suffix(".pub")
        self._flwr("supernode", "register", str(public), "--name", f"client-{client}", "--format", "json")

    def _start_bridge(self, devices: int, runs: Path | None) -> list[str]:
        """Start broker and bridge; return where the SuperNodes of each device connect to."""
        from ..mqtt.broker import ENVIRONMENT, SERVER_ACCOUNT, WATCH_ACCOUNT, BrokerTls, write_broker_files

        keys, names = self._keys, [f"device-{device}" for device in range(devices)]
        port, ports = free_port(), [free_port() for _ in names]
        tls = BrokerTls(keys.certificate, keys.key)
        # The passwords are kept, as the keys are; all else is this run's, and another may run at the same time.
        passwords = keys.folder / "passwords"
        broker = write_broker_files(self.folder / "broker", "127.0.0.1", port, names, tls, passwords=passwords)
        self._spawn("broker", [_mosquitto(), "-c", str(broker.config)], {**self._environment, **ENVIRONMENT})
        common = ["--broker", f"127.0.0.1:{port}", "--ca", str(keys.authority)]
        self.watch = ["fedpfl", "watch", *common, "--password-file", str(broker.passwords[WATCH_ACCOUNT])]
        server = [
            *BRIDGE, "server", *common, "--password-file", str(broker.passwords[SERVER_ACCOUNT]),
            "--superlink", f"127.0.0.1:{self._port}", "--superlink-ca", str(keys.authority),
            "--state-dir", str(self._bridge_state()),
            *(["--runs", str(runs)] if runs is not None else ()),
        ]  # fmt: skip
        self._spawn("bridge server", server, self._environment)
        addresses = [f"127.0.0.1:{listen}" for listen in ports]
        for name, address in zip(names, addresses, strict=True):
            device = [
                *BRIDGE, "device", *common, "--password-file", str(broker.passwords[name]), "--device", name,
                "--listen", address, "--tls-cert", str(keys.certificate), "--tls-key", str(keys.key),
            ]  # fmt: skip
            self._spawn(f"bridge {name}", device, self._environment)
        for name in ("server", *names):
            # A SuperNode that finds nobody waits for up to 20 s before it looks again.
            self._await_part(f"bridge {name}", partial(self._says_ready, f"bridge {name}"))
        return addresses

    def _start_direct(self) -> str:
        """Start the bridge without a broker; return where the SuperNodes connect to."""
        keys, address = self._keys, f"127.0.0.1:{free_port()}"
        command = [
            *BRIDGE, "direct", "--listen", address, "--tls-cert", str(keys.certificate), "--tls-key", str(keys.key),
            "--superlink", f"127.0.0.1:{self._port}", "--superlink-ca", str(keys.authority),
            "--state-dir", str(self._bridge_state()),
        ]  # fmt: skip
        self._spawn("bridge", command, self._environment)
        self._await_part("bridge", partial(self._says_ready, "bridge"))
        return address

    def _bridge_state(self) -> Path:
        folder = self.folder / "bridge"
        folder.mkdir(mode=0o700)
        return folder

    def _start_node(self, client: int, clients: int, superlink: str, device: int | None) -> None:
        command = [
            script("flower-supernode"), "--superlink", superlink,
            "--root-certificates", str(self._keys.authority),
            "--auth-supernode-private-key", str(self._keys.node_keys[client]),
            "--host", "127.0.0.1", "--port", str(free_port()),
            "--node-config", f"partition-id={client} num-partitions={clients}",
        ]  # fmt: skip
        environment = {
            **self._environment,
            "PATH": f"{folder_of_commands(self._forkserver(device))}:{self._environment['PATH']}",
            # Each its own: ClientApps of several SuperNodes that unpack the app at the same time read half of it.
            "FLWR_HOME": f"{self._environment['FLWR_HOME']}-node-{client}",
            TASK_POLL_INTERVAL: str(TASK_POLL_SECONDS),
            SOCKET_VARIABLE: str(self._socket(device)),
        }
        self._spawn(f"SuperNode {client}", command, environment)

    def _start_worker(self, device: int, devices: int, app: Path | None) -> None:
        threads = max(1, (os.cpu_count() or 1) // devices)
        environment = {"OMP_NUM_THREADS": str(threads), **self._environment, SOCKET_VARIABLE: str(self._socket(device))}
        if app is not None and (app / "fedpfl").is_dir():
            paths = (str(app.absolute()), environment.get("PYTHONPATH", ""))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._spawn(f"worker {device}", [sys.executable, "-P", "-m", "fedpfl.client.worker"], environment)

    def _start_forkserver(self, device: int) -> None:
        command = [sys.executable, "-P", "-m", "fedpfl.launch.forkserver", "--socket", str(self._forkserver(device))]
        self._spawn(f"fork server {device}", command, self._environment)

    def _await_part(self, name: str, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not there():
            if (ended := self.ended()) or time.monotonic() > deadline:
                reason = ended or f"{name} did not start within {START_SECONDS:g} s"
                raise FedpflError(f"{reason}: {last_line(self._log_of(name))}")
            time.sleep(0.05)

    def _says_ready(self, name: str) -> bool:
        return any(line.startswith("ready ") for line in text(self._log_of(name)).splitlines())

    def _device(self, device: int | None) -> Path:
        """Return the folder of a device; one without workers is there for nobody."""
        return self.folder / ("plain" if device is None else f"device-{device}")

    def _socket(self, device: int | None) -> Path:
        return self._device(device) / "worker.sock"

    def _forkserver(self, device: int | None) -> Path:
        return self._device(device) / "forkserver.sock"

    def _log_of(self, name: str) -> Path:
        return self._log if name == SUPERLINK else self.folder / f"{name.replace(' ', '-')}.log"

    def _spawn(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._commands[name] = list(command), dict(environment)
        super()._spawn(name, command, environment)


def _mosquitto() -> str:
    # Debian puts it where only root looks.
    found = shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    if found is None:
        raise FedpflError("mosquitto is not installed; apt-get install mosquitto, or use --transport http")
    return found
