"""The MQTT bridge beside plain HTTP, on loopback.

A SuperNode's stand-in posts a model's bytes and gets as many back: straight to an HTTP server, and through device side,
mosquitto and server side to the same one. The HTTP server is the one that Flower's SuperLink runs on (uvicorn) with an
app that does nothing. Both take turns. A proxy between device side and broker counts the bytes on the wire.

    python benchmarks/bridge.py
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import uvicorn
from common import BenchmarkError, count, footer, main, note, table
from starlette.requests import Request
from starlette.responses import Response

from fedpfl.bench.mqtt.broker import ENVIRONMENT, BrokerFiles, write_broker_files
from fedpfl.bench.superlink import script

PULL, PUSH, HEARTBEAT = (f"/v1/fleet/{name}" for name in ("pull-messages", "push-object", "send-node-heartbeat"))
# What Flower 1.41 sends along with every request of a SuperNode.
HEADERS = {"content-type": "application/x-protobuf", "accept": "application/x-protobuf", "flwr-public-key": "k" * 288,
           "flwr-timestamp": "2025-01-01T00:00:00.000000+00:00", "flwr-signature": "s" * 140,
           "flwr-runtime-version": "1.41.0", "flwr-component": "SuperNode"}  # fmt: skip
HEARTBEAT_SECONDS = 20.0
READY_SECONDS = 30.0


class Upstream:
    """An HTTP server that gives back what it gets, and messages to who pulls them."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.pulls = 0
        quiet = {"log_level": "error", "access_log": False}
        self._server = uvicorn.Server(uvicorn.Config(self._app, "127.0.0.1", 0, interface="asgi3", **quiet))
        threading.Thread(target=self._server.run, daemon=True).start()
        _wait(lambda: self._server.started, "the HTTP server")
        self.port = int(self._server.servers[0].sockets[0].getsockname()[1])

    async def _app(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        if scope["type"] != "http":
            return
        body = await Request(scope, receive).body()
        if scope["path"] == PULL:
            self.pulls += 1
            body = self.messages.pop() if self.messages else b""
        await Response(body, media_type="application/x-protobuf")(scope, receive, send)


class CountingProxy:
    """Passes TCP connections on and counts their bytes."""

    def __init__(self, port: int) -> None:
        self.up = self.down = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            far = socket.create_connection(("127.0.0.1", self._target))
            for connection in (near, far):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(near, far, "up"), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, "down"), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with source, sink, suppress(OSError):  # either end may close first
            while data := source.recv(2**18):
                sink.sendall(data)
                setattr(self, way, getattr(self, way) + len(data))


class Bridge:
    """Broker and both sides, as processes; a context manager."""

    def __init__(self, folder: Path, upstream_port: int, counted: bool) -> None:
        mosquitto = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
        if mosquitto is None:
            raise BenchmarkError("mosquitto is not installed (Debian: apt-get install mosquitto)")
        port = _free_port()
        files = write_broker_files(folder, "127.0.0.1", port, ["device"])
        self._processes = [
            subprocess.Popen(
                [mosquitto, "-c", str(files.config)], stderr=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT}
            )
        ]
        try:
            _wait(lambda: _listens(port), "mosquitto")
            self.proxy = CountingProxy(port) if counted else None
            upstream_options = ["--superlink", f"127.0.0.1:{upstream_port}"]
            self._start("server", files, port, *upstream_options)
            listen = _free_port()
            near = self.proxy.port if self.proxy else port
            self._start("device", files, near, "--device", "device", "--listen", f"127.0.0.1:{listen}")
            self.url = f"http://127.0.0.1:{listen}"
        except BaseException:
            self.__exit__()
            raise

    def _start(self, side: str, files: BrokerFiles, port: int, *options: str) -> None:
        login = ["--broker", f"127.0.0.1:{port}", "--password-file", str(files.passwords[side])]
        command = [script("fedpfl-bridge"), side, *login, *options, "--log-level", "warning"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._processes.append(process)
        assert process.stdout is not None
        if not process.stdout.readline().startswith(b"ready"):
            raise BenchmarkError(f"the {side}'s side did not start")

    def cpu_seconds(self) -> float:
        """Return the processor time of broker and both sides."""
        total = 0.0
        for process in self._processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def __enter__(self) -> Bridge:
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(15)


def measure(args: argparse.Namespace) -> None:
    """Measure and print."""
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as name, ExitStack() as stack:
        upstream = Upstream()
        plain = stack.enter_context(Bridge(Path(name, "plain"), upstream.port, counted=False))
        counted = stack.enter_context(Bridge(Path(name, "counted"), upstream.port, counted=True))
        direct = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{upstream.port}", timeout=60))
        through = stack.enter_context(httpx.Client(base_url=plain.url, timeout=60, headers=HEADERS))
        body = rng.randbytes(args.megabytes * 10**6)
        note(f"{args.repeats} round trips of {args.megabytes} MB each way")
        spent = plain.cpu_seconds()
        times = _round_trips(direct, through, body, args.repeats)
        spent = (plain.cpu_seconds() - spent) / len(times[1])
        note("bytes on the wire")
        wire = _wire(counted, body)
        note(f"start of a held pull, {args.starts} times")
        starts = _starts(through, upstream, rng, args.starts)
        note(f"an idle device, {args.idle} s")
        idle, cpu, pulls = _idle(counted, upstream, args.idle)
    medians = [statistics.median(t) for t in times]
    best = [min(t) for t in times]
    size = f"{args.megabytes} MB up and down"
    rows = [
        [f"direct HTTP, {size}: median (least), ms", f"{1e3 * medians[0]:.0f} ({1e3 * best[0]:.0f})", ""],
        [f"bridge, {size}: median (least), ms", f"{1e3 * medians[1]:.0f} ({1e3 * best[1]:.0f})", ""],
        ["bridge / direct: median (least)", f"{medians[1] / medians[0]:.2f} ({best[1] / best[0]:.2f})", "≤ 1.5"],
        ["processor time of broker and both sides for it, ms", f"{1e3 * spent:.0f}", ""],
        ["bytes on the wire / payload", f"{wire:.4f}", "≤ 1.05"],
        ["start of a held pull: median, ms", f"{1e3 * statistics.median(starts):.0f}", "≤ 300"],
        ["start of a held pull: longest, ms", f"{1e3 * max(starts):.0f}", "≤ 300"],
        ["idle device with one SuperNode, both ways, bytes/s", f"{idle:.0f}", "< 1000"],
        ["meanwhile: processor of broker and both sides", f"{100 * cpu:.1f} %", ""],
        ["meanwhile: looks at the SuperLink a second", f"{pulls:.1f}", ""],
    ]
    print(table(["what", "value", "goal"], rows))
    print(footer(args.seed))


def _round_trips(direct: httpx.Client, through: httpx.Client, body: bytes, repeats: int) -> tuple[list[float], ...]:
    times: tuple[list[float], ...] = ([], [])
    for _ in range(repeats):
        for client, taken in zip((direct, through), times, strict=True):
            started = time.perf_counter()
            response = client.post(PUSH, content=body)
            seconds = time.perf_counter() - started
            if response.content != body:
                raise BenchmarkError(f"the answer is not the question (status {response.status_code})")
            taken.append(seconds)
    return times


def _wire(bridge: Bridge, body: bytes) -> float:
    assert bridge.proxy is not None
    before = bridge.proxy.up + bridge.proxy.down
    with httpx.Client(base_url=bridge.url, timeout=60, headers=HEADERS) as client:
        client.post(PUSH, content=body)
    time.sleep(0.5)
    return (bridge.proxy.up + bridge.proxy.down - before) / (2 * len(body))


def _starts(client: httpx.Client, upstream: Upstream, rng: random.Random, number: int) -> list[float]:
    """Return the seconds from a message's arrival at the SuperLink to its arrival at the SuperNode."""
    delays = []
    for _ in range(number):
        given = [0.0]

        def give(given: list[float] = given) -> None:
            given[0] = time.perf_counter()
            upstream.messages.append(b"message")

        timer = threading.Timer(2.0 + rng.random(), give)  # by then it looks as rarely as it ever does
        timer.start()
        client.post(PULL, content=b"node")
        delays.append(time.perf_counter() - given[0])
    return delays


def _idle(bridge: Bridge, upstream: Upstream, seconds: float) -> tuple[float, float, float]:
    """Return bytes a second, processor share and pulls a second of a device that only waits."""
    assert bridge.proxy is not None
    stop = threading.Event()

    def pull() -> None:
        # It ends with the bridge, unanswered.
        with httpx.Client(base_url=bridge.url, timeout=30, headers=HEADERS) as client, suppress(httpx.TransportError):
            client.post(PULL, content=b"idle")

    def heartbeats() -> None:
        with httpx.Client(base_url=bridge.url, timeout=30, headers=HEADERS) as client:
            while not stop.wait(HEARTBEAT_SECONDS):
                client.post(HEARTBEAT, content=b"heartbeat")

    for function in (pull, heartbeats):
        threading.Thread(target=function, daemon=True).start()
    time.sleep(1.0)
    before, cpu, pulls, started = bridge.proxy.up + bridge.proxy.down, bridge.cpu_seconds(), upstream.pulls, time.time()
    time.sleep(seconds)
    passed = time.time() - started
    stop.set()
    moved = bridge.proxy.up + bridge.proxy.down - before
    return moved / passed, (bridge.cpu_seconds() - cpu) / passed, (upstream.pulls - pulls) / passed


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def _wait(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise BenchmarkError(f"{what} did not start")
        time.sleep(0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="bridge.py", description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=count, default=5, help="size of the model (%(default)s)")
    parser.add_argument("--repeats", type=count, default=30, help="round trips of each kind (%(default)s)")
    parser.add_argument("--starts", type=count, default=20, help="held pulls (%(default)s)")
    parser.add_argument("--idle", type=count, default=65, help="seconds of the idle device (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the payload and the pauses follow from it (%(default)s)")
    sys.path.insert(0, str(Path(__file__).parent))
    main(measure, parser)
