"""Flower's own way, beside an app that does nothing: a SuperLink with two SuperNodes, and ``flwr run .``.

The empty app sends 13,706 floats there and back and imports no torch. fedpfl's default app runs on the same plain
``flower-superlink`` and ``flower-supernode``, and on ``fedpfl node -- flower-supernode …``. A round is training and
evaluation of both nodes, from the end of the round before to its own end; the first one, in which workers start, does
not count. ``flwr run .`` is the whole command in a fresh ``FLWR_HOME``, with the start of its SuperLink and of Ray.

All processes listen on free ports of 127.0.0.1, have a ``FLWR_HOME`` of their own, and end with this program.
"""

from __future__ import annotations

import argparse
import itertools
import os
import secrets
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from common import POLL_SECONDS, BenchmarkError, add_json_option, count, footer, main, note, reason, table, write_json

from fedpfl.bench import run_guard
from fedpfl.bench.superlink import copy_app, free_port, reason_in, script, text
from fedpfl.core.checksummed_files import to_toml
from fedpfl.flower_private import HEALTH

ROOT = Path(__file__).parents[1]
NODES = 2
START_SECONDS, RUN_SECONDS, STOP_SECONDS = 120.0, 900.0, 30.0
# Ray gives its own node 30 s to start, whatever else the machine does: it is started again at most so often.
RAY_LATE, RAY_STARTS = "current node timed out during startup", 5

EMPTY = {
    "pyproject.toml": """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "empty"
version = "1.0.0"
description = "An app that does nothing"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.22", "numpy"]
[tool.hatch.build.targets.wheel]
packages = ["empty"]
[tool.flwr.app]
publisher = "me"
fab-format-version = 1
flwr-version-target = "1.42.0"
[tool.flwr.app.components]
serverapp = "empty.server:app"
clientapp = "empty.client:app"
[tool.flwr.app.config]
num-server-rounds = 3
output-dir = ""
""",
    "LICENSE": "Nobody's.\n",
    "empty/__init__.py": "",
    "empty/client.py": """\
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
    return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 0.0})}), reply_to=message)
""",
    "empty/server.py": """\
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    def note(server_round, arrays):
        if server_round:
            with Path(context.run_config["output-dir"], "rounds").open("a") as lines:
                lines.write(f"{server_round}\\n")

    arrays = ArrayRecord([np.zeros(13706, np.float32)])
    FedAvg().start(grid, arrays, num_rounds=context.run_config["num-server-rounds"], evaluate_fn=note)
""",
}
# Where an app writes a line after each round, below output-dir, and what it is told besides the rounds.
APPS = {"empty": ("rounds", {}), "fedpfl": ("run/metrics.jsonl", {"run-name": "run"})}
# What is measured: an app, and what stands before flower-supernode; None: `flwr run .`.
PLAIN, NODE = (), ("fedpfl", "node", "--")
KINDS: dict[str, tuple[str, Sequence[str] | None]] = {
    "SuperNodes, empty app": ("empty", PLAIN), "SuperNodes, fedpfl": ("fedpfl", PLAIN),
    "SuperNodes of `fedpfl node`, fedpfl": ("fedpfl", NODE),
    "`flwr run .`, empty app": ("empty", None), "`flwr run .`, fedpfl": ("fedpfl", None),
}  # fmt: skip
# At most this many times the empty app's seconds.
GOALS = {"SuperNodes, fedpfl": 1.1, "SuperNodes of `fedpfl node`, fedpfl": 0.5, "`flwr run .`, fedpfl": 1.3}


class RayLateError(BenchmarkError):
    """Ray's node has not started in the time that Ray gives it."""


@contextmanager
def place() -> Iterator[Path]:
    """Give a folder; what has its ``FLWR_HOME`` ends with the block, or with this program."""
    folder = Path(tempfile.mkdtemp(prefix="fedpfl-sn-"))
    guard = run_guard.watch(folder)
    try:
        yield folder
    finally:
        guard.communicate()  # it removes the folder


def environment(folder: Path, part: str = "") -> dict[str, str]:
    """Return the environment of one process; each SuperNode gets a separate home."""
    home, token = Path(f"{run_guard.home(folder)}{part}"), folder / "token"
    home.mkdir(exist_ok=True)
    if not token.exists():
        token.touch(0o600)
        token.write_text(secrets.token_hex(32), encoding="utf-8")
    # Python may keep compiled modules: without them each process of Ray and Flower compiles thousands again.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited, "FLWR_HOME": str(home), "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder),
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
        "NO_PROXY": "127.0.0.1,localhost", "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()), "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
    }  # fmt: skip


def write_app(name: str, folder: Path) -> Path:
    """Write an app's files; return their folder."""
    app = folder / "app"
    if name == "fedpfl":
        copy_app(ROOT, app)
        return app
    for file, content in EMPTY.items():
        (app / file).parent.mkdir(parents=True, exist_ok=True)
        (app / file).write_text(content, encoding="utf-8")
    return app


def start(command: Sequence[str], log: Path, environment: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """Start a program in a new process group; its output goes to a log."""
    with log.open("wb") as out:
        return subprocess.Popen(command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                start_new_session=True)  # fmt: skip


def wait_for_superlink(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until the SuperLink answers."""
    opener, deadline = urllib.request.build_opener(urllib.request.ProxyHandler({})), time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            opener.open(f"http://127.0.0.1:{port}{HEALTH}", timeout=2)
            return
        except OSError:
            time.sleep(POLL_SECONDS)
    raise BenchmarkError(f"the SuperLink did not start: {reason(text(log))}")


def run(folder: Path, name: str, where: Sequence[str], rounds: int) -> list[float]:
    """Run an app to its end by ``flwr run``; return when each of its rounds ended."""
    file, settings = APPS[name]
    output, log = folder / "runs", folder / "run.log"
    output.mkdir()
    config = folder / "settings.toml"
    config.write_text(to_toml({"num-server-rounds": rounds, "output-dir": str(output), **settings}), encoding="utf-8")
    command = [script("flwr"), "run", ".", *where, "--stream", "--run-config", str(config)]
    process = start(command, log, environment(folder), write_app(name, folder))
    ends: list[float] = []
    deadline = time.monotonic() + RUN_SECONDS
    while time.monotonic() < deadline:
        running = process.poll() is None
        lines = text(output / file).count("\n")
        ends += [time.monotonic()] * (lines - len(ends))
        if not running:
            break
        time.sleep(POLL_SECONDS)
    if len(ends) != rounds:
        said = text(log)
        if RAY_LATE in said:
            raise RayLateError(f"{name}: Ray's node did not start within 30 s: this machine does other work")
        raise BenchmarkError(f"{name}: {len(ends)} of {rounds} rounds: {reason_in(said) or reason(said)}")
    return ends


def on_supernodes(name: str, before: Sequence[str], rounds: int) -> list[float]:
    """Return the seconds of each round but the first, on a SuperLink and SuperNodes as their pages start them."""
    with place() as folder:
        port, logs = free_port(), [folder / f"node-{node}.log" for node in range(NODES)]
        link = [script("flower-superlink"), "--insecure", "--port", str(port)]
        superlink = start(link, folder / "superlink.log", environment(folder), folder)
        wait_for_superlink(superlink, port, folder / "superlink.log")
        (run_guard.home(folder) / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n',
            encoding="utf-8",
        )
        nodes = []
        for node, log in enumerate(logs):
            command = [*before, script("flower-supernode"), "--insecure", "--superlink", f"127.0.0.1:{port}"]
            command += ["--port", str(free_port()), "--node-config", f"partition-id={node} num-partitions={NODES}"]
            command[0] = script(command[0])
            nodes.append(start(command, log, environment(folder, f"-{node}"), folder))
        try:
            ends = run(folder, name, ("here",), rounds + 1)
            ended = [reason(text(log)) for process, log in zip(nodes, logs, strict=True) if process.poll() is not None]
            if ended:
                raise BenchmarkError(f"a SuperNode ended: {ended[0]}")
        finally:
            for process in nodes:
                process.send_signal(signal.SIGTERM)
            for process in nodes:
                process.wait(STOP_SECONDS)
        return [end - begun for begun, end in itertools.pairwise(ends)]


def flwr_run(name: str, rounds: int) -> float:
    """Return the seconds of ``flwr run .`` with two virtual nodes, and of the SuperLink and Ray that it starts."""
    where = ("--federation-config", f"num-supernodes={NODES} client-resources-num-cpus=1")
    for left in reversed(range(RAY_STARTS)):
        with place() as folder:
            begun = time.monotonic()
            try:
                run(folder, name, where, rounds + 1)
            except RayLateError as error:
                if not left:
                    raise
                note(f"{error}; it is started again")
            else:
                return time.monotonic() - begun
    raise AssertionError


def measure(options: argparse.Namespace) -> None:
    """Measure everything in turn, and again."""
    seconds: dict[str, list[float]] = {kind: [] for kind in options.kinds or KINDS}
    for repeat in range(1, options.repeats + 1):
        for kind, taken in seconds.items():
            note(f"repeat {repeat} of {options.repeats}: {kind}")
            name, before = KINDS[kind]
            if before is None:
                taken.append(flwr_run(name, options.rounds))
            else:
                taken += on_supernodes(name, before, options.rounds)
    medians = {kind: statistics.median(taken) for kind, taken in seconds.items()}
    record: dict[str, dict[str, float | None]] = {}
    rows = []
    for kind, taken in seconds.items():
        base = medians.get("`flwr run .`, empty app" if KINDS[kind][1] is None else "SuperNodes, empty app")
        record[kind] = {
            "s (median)": medians[kind],
            "least": min(taken),
            "most": max(taken),
            "of the empty app": medians[kind] / base if base else None,
        }
        cells = ["" if value is None else f"{value:.2f}" for value in record[kind].values()]
        rows.append([kind, *cells, f"≤ {GOALS[kind]}" if kind in GOALS else ""])
    print(table(["a round, or `flwr run .`", "s (median)", "least", "most", "of the empty app", "goal"], rows))
    print(f"\nWork: {NODES} nodes, {options.rounds} rounds after one that does not count, {options.repeats} times.")
    print(footer(1))
    write_json(options.json, record)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="supernodes.py", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=count, default=3, help="rounds that count (%(default)s)")
    parser.add_argument("--repeats", type=count, default=3, help="how often all is measured in turn (%(default)s)")
    parser.add_argument("--kind", dest="kinds", action="append", choices=KINDS, help="only these; all by default")
    add_json_option(parser)
    # So that everything ends as at Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    main(measure, parser)
