"""A whole testbed on one machine: SuperLink, SuperNodes, workers and MQTT bridge, as on a laptop and its devices.

Everything listens on loopback, talks over TLS and proves who it is, as on real devices; what ends is started again, as
systemd does there. It is for trying and for tests: a simulation of the same clients is faster.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ..client.protocol import SOCKET_VARIABLE
from ..core.errors import FedpflError
from ..results.board_names import VARIABLE as BOARD_NAMES
from . import credentials, run_guard
from .boards import BOARDS, BoardLimits, join_command, make_groups
from .device.forward import worker_command
from .flower_command import supernode_command
from .inventory import Bench
from .mqtt.account import Account, read_password
from .node import AT_ONCE, environment_of, forkserver_command
from .superlink import START_SECONDS, SUPERLINK, SuperLink, free_port, last_line, script, shorten, text

# The bench of the paper has three clients on each of its devices.
CLIENTS_PER_DEVICE = 3
# A SuperNode that was killed is refused until the SuperLink has missed its heartbeats for a minute.
MAX_RESTARTS = 12
MAX_RESTART_SECONDS = 10.0
# What then runs for so long is whole again: a testbed may run for weeks, and parts may end more than once.
WHOLE_SECONDS = 60.0
# How often it is looked for what has ended.
RESTART_SECONDS = 0.2
BRIDGE = (sys.executable, "-P", "-c", "from fedpfl.cli.bridge import main; main()")
# As many as a client of `fedpfl run` has unless the setting `threads` is set: the bits depend on it.
THREADS = {"OMP_NUM_THREADS": "1"}


class Testbed(SuperLink):
    """A SuperLink with its own SuperNodes.

    Over MQTT, once they run, ``watch`` is the command that shows them live, and ``watcher`` the account that it uses.
    """

    def __init__(self, keys: Path, mqtt: bool = False, database: bool = True) -> None:
        super().__init__(keys, database)
        self._mqtt = mqtt
        self._restarts: dict[str, list[float]] = {}
        self._complete = False
        self._limits: dict[str, list[Path]] = {}
        self._numbers: dict[str, int] = {}
        self.watch: list[str] | None = None
        self.watcher: Account | None = None

    def start_nodes(
        self,
        clients: int,
        devices: int | None = None,
        worker: bool = True,
        app: Path | None = None,
        runs: Path | None = None,
        bench: Bench | None = None,
        board: BoardLimits | None = None,
        network: str | None = None,
    ) -> None:
        """Start a SuperNode for each client, spread over devices, and wait until all have been started.

        Each device has one worker, unless ``worker`` is false: then every message is answered by a process that imports
        torch. ``devices`` is by default one for every three clients; ``bench``, which tells who has which clients and
        data, replaces it. The workers run the code of ``app``; None means the installed package. The newest of ``runs``
        is published over MQTT. ``board`` limits each device, and ``network`` its way to the server, as
        :meth:`fedpfl.bench.relay.Network.parse` reads it, unless ``bench`` has another one for the device.
        """
        if bench is None:
            devices = min(devices or math.ceil(clients / CLIENTS_PER_DEVICE), clients)
            place = [client * devices // clients for client in range(clients)]
            numbers = (tuple(c for c in range(clients) if place[c] == device) for device in range(devices))
            bench = Bench({f"device-{device}": clients_there for device, clients_there in enumerate(numbers)})
        names = list(bench.devices)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._keys = credentials.prepare(self._folder_of_keys, clients)
        limits = {name: BOARDS[bench.boards[name]] if name in bench.boards else board for name in names}
        self._limits = {name: self._make_groups(limit, self._numbers[name]) for name, limit in limits.items() if limit}
        if worker:
            for device in names:
                self._start_worker(device, app)
                self._start_forkserver(device)
        self._wait_until_ready()
        names_of_boards = self.folder / "boards.json"
        names_of_boards.write_text(json.dumps({**bench.devices, **bench.absent}), encoding="utf-8")
        server = {**self._environment, BOARD_NAMES: str(names_of_boards)}
        self._spawn("the server's SuperExec", self._superexec(), server)
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            list(pool.map(self._register, bench.present))

        def way(device: str, port: int) -> int:
            chosen = bench.networks.get(device, network)
            return self._start_relay(chosen, device, port) if chosen else port

        if self._mqtt:
            addresses = self._start_bridge(names, runs, way)
        else:
            addresses = {name: f"127.0.0.1:{way(name, self._port)}" for name in names}
        for device in names if worker else ():
            for part, path in (("worker", self._socket(device)), ("fork server", self._forkserver(device))):
                self._wait_for(f"{part} {_label(device)}", path.exists)
        for device, numbers_of in bench.devices.items():
            for client in numbers_of:
                self._start_node(client, clients, addresses[device], device, worker, bench.node_settings(client))
        self._complete = True

    def ended(self) -> str | None:
        """Restart what has ended and shorten long logs; return what ended too often, or None."""
        if not self._complete:
            return super().ended()
        for name, process in self._processes.items():
            shorten(self._log_of(name))
            if process.poll() is None:
                continue
            if name == SUPERLINK and self._database is None:
                return f"{name} ended, and with it the run: its state was in memory (--state)"
            now, times = time.monotonic(), self._restarts.setdefault(name, [])
            if times and now - times[-1] > WHOLE_SECONDS:
                times.clear()
            if len(times) >= MAX_RESTARTS:
                return f"{name} ended {MAX_RESTARTS + 1} times: {last_line(self._log_of(name))}"
            if not times or now - times[-1] > min(2.0 ** len(times), MAX_RESTART_SECONDS):
                times.append(now)
                self._spawn(name, *self._commands[name])
        return None

    def submit(self, app: Path | None, run_config: Mapping[str, Any]) -> str:
        """Submit a run; how often a part has ended counts from here on, as the run before went on with it."""
        self._restarts.clear()
        return super().submit(app, run_config)

    def carry_out(self, command: Sequence[str], clients: int) -> int:
        """Run a command once the SuperNodes of all clients are online; return its exit code.

        In its Flower configuration this SuperLink is called ``fedpfl``.
        """
        self._wait_for("the SuperNodes", lambda: self.online() >= clients)
        try:
            # Not in this program's group, so that it ends with the testbed when this program is killed.
            process = subprocess.Popen(command, env=self._environment, start_new_session=True)
        except OSError as error:
            raise FedpflError(f"{command[0]}: {error.strerror}") from error
        try:
            while process.poll() is None:
                if ended := self.ended():
                    raise FedpflError(ended)
                time.sleep(RESTART_SECONDS)
        finally:
            process.terminate()
            process.wait()
        return process.returncode

    def _superexec(self) -> list[str]:
        return [
            script("flower-superexec"), "--runtime-api-address", f"127.0.0.1:{self._port}",
            "--root-certificates", str(self._keys.authority),
            "--superexec-auth-secret-file", str(self._keys.superexec_secret),
        ]  # fmt: skip

    def _register(self, client: int) -> None:
        public = self._keys.node_keys[client].with_suffix(".pub")
        self._flwr("supernode", "register", str(public), "--name", f"client-{client}", "--format", "json")

    def online(self) -> int:
        """Return how many SuperNodes are there, in the SuperLink's word."""
        nodes = self._flwr("supernode", "list", "--format", "json")["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    def _start_bridge(self, names: Sequence[str], runs: Path | None, way: Callable[[str, int], int]) -> dict[str, str]:
        """Start broker and bridge; return where the SuperNodes of each device connect to."""
        from .mqtt.broker import ENVIRONMENT, SERVER_ACCOUNT, WATCH_ACCOUNT, BrokerTls, write_broker_files

        keys = self._keys
        port, ports = free_port(), [free_port() for _ in names]
        tls = BrokerTls(keys.certificate, keys.key)
        # The passwords are kept, as the keys are; all else is this run's, and another may run at the same time.
        passwords = keys.folder / "passwords"
        broker = write_broker_files(self.folder / "broker", "127.0.0.1", port, names, tls, passwords=passwords)
        self._spawn("broker", [_mosquitto(), "-c", str(broker.config)], {**self._environment, **ENVIRONMENT})
        common = ["--broker", f"127.0.0.1:{port}", "--ca", str(keys.authority)]
        self._wait_for("broker", partial(_is_listened_on, port))
        password = broker.passwords[WATCH_ACCOUNT]
        self.watch = ["fedpfl", "watch", *common, "--password-file", str(password)]
        self.watcher = Account("127.0.0.1", port, WATCH_ACCOUNT, read_password(password), keys.authority)
        server = [
            *BRIDGE, "server", *common, "--password-file", str(broker.passwords[SERVER_ACCOUNT]),
            "--superlink", f"127.0.0.1:{self._port}", "--superlink-ca", str(keys.authority),
            *(["--runs", str(runs)] if runs is not None else ()),
        ]  # fmt: skip
        self._spawn("bridge server", server, self._environment)
        addresses = {name: f"127.0.0.1:{listen}" for name, listen in zip(names, ports, strict=True)}
        for name, address in addresses.items():
            device = [
                *BRIDGE, "device", "--broker", f"127.0.0.1:{way(name, port)}", "--ca", str(keys.authority),
                "--password-file", str(broker.passwords[name]), "--device", name,
                "--listen", address, "--tls-cert", str(keys.certificate), "--tls-key", str(keys.key),
            ]  # fmt: skip
            self._spawn(f"bridge {name}", self._limited(name, device), self._environment)
        for name in ("server", *names):
            # A SuperNode that finds no server waits for up to 20 s before it tries again.
            self._wait_for(f"bridge {name}", partial(self._is_ready, f"bridge {name}"))
        return addresses

    def _start_relay(self, network: str, device: str, port: int) -> int:
        """Start a relay that simulates the network before a port of the server; return the device's port."""
        relay_port, name = free_port(), f"network {_label(device)}"
        addresses = ["--listen", f"127.0.0.1:{relay_port}", "--to", f"127.0.0.1:{port}"]
        command = [sys.executable, "-P", "-m", "fedpfl.bench.relay", *addresses, "--network", network]
        self._spawn(name, command, self._environment)
        self._wait_for(name, partial(self._is_ready, name))
        return relay_port

    def _make_groups(self, board: BoardLimits, number: int) -> list[Path]:
        groups = make_groups(board, f"{self.folder.name}-{number}")
        # The guard removes them when everything has ended.
        with (self.folder / run_guard.GROUPS).open("a", encoding="utf-8") as list_of_groups:
            list_of_groups.writelines(f"{group}\n" for group in groups)
        return groups

    def _limited(self, device: str, command: Sequence[str]) -> list[str]:
        return [*join_command(self._limits.get(device, [])), *command]

    def _start_node(
        self, client: int, clients: int, superlink: str, device: str, worker: bool, node_config: str
    ) -> None:
        place = device if worker else None
        command = [
            *supernode_command(), "--superlink", superlink,
            "--root-certificates", str(self._keys.authority),
            "--auth-supernode-private-key", str(self._keys.node_keys[client]),
            "--host", "127.0.0.1", "--port", str(free_port()),
            "--node-config", f"partition-id={client} num-partitions={clients}{node_config}",
        ]  # fmt: skip
        home = Path(f"{self._environment['FLWR_HOME']}-node-{client}")
        environment = environment_of(
            {**self._environment, **THREADS}, self._socket(place), self._forkserver(place), home
        )
        self._spawn(f"SuperNode {client}", self._limited(device, command), environment)

    def _start_worker(self, device: str, app: Path | None) -> None:
        environment = {**self._environment, **THREADS, SOCKET_VARIABLE: str(self._socket(device))}
        if app is not None and (app / "fedpfl").is_dir():
            paths = (str(app.absolute()), environment.get("PYTHONPATH", ""))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self._spawn(f"worker {_label(device)}", self._limited(device, worker_command()), environment)

    def _start_forkserver(self, device: str) -> None:
        command = forkserver_command(self._forkserver(device))
        environment = {**self._environment, **THREADS, **AT_ONCE}
        self._spawn(f"fork server {_label(device)}", self._limited(device, command), environment)

    def _wait_for(self, name: str, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not there():
            if (ended := self.ended()) or time.monotonic() > deadline:
                reason = ended or f"{name} did not start within {START_SECONDS:g} s"
                raise FedpflError(f"{reason}: {last_line(self._log_of(name))}")
            time.sleep(0.05)

    def _is_ready(self, name: str) -> bool:
        return any(line.startswith("ready ") for line in text(self._log_of(name)).splitlines())

    def _device(self, device: str | None) -> Path:
        """Return the folder of a device, ``plain`` without a worker. Paths of sockets must be short."""
        return self.folder / ("plain" if device is None else f"device-{self._numbers[device]}")

    def _socket(self, device: str | None) -> Path:
        return self._device(device) / "worker.sock"

    def _forkserver(self, device: str | None) -> Path:
        return self._device(device) / "forkserver.sock"


def _label(device: str) -> str:
    """Return how the processes of a device are labelled: by its name, or by its number if it has none."""
    return device.removeprefix("device-")


def _is_listened_on(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _mosquitto() -> str:
    # Debian puts it where only root looks.
    path = shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    if path is None:
        raise FedpflError("mosquitto is not installed; apt-get install mosquitto, or use --transport http")
    return path
