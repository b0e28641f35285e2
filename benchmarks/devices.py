"""What a round over real SuperNodes costs outside training, with and without worker and fork server.

The clients' work is next to nothing, so that a round's time is Flower's, the transport's and ours: messages, polling,
processes that start. The same rounds simulated show what the work itself takes. A round is training and evaluation of
all clients: two messages to each. A round that only trains, as with ``evaluate-trained``, takes the first number.
The second table says whose processor time it was: where all share one machine, its cores are the limit of the sum.

``--idle`` measures three SuperNodes of one device without a run instead, with Flower's SuperExecs, which ask for tasks
every 0.2 s, and with those that the fork server starts, which ask the more rarely, the longer there was no task.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from common import BenchmarkError, ProcessTree, count, footer, main, note, simulate, table

HTTP, MQTT = ("--transport", "http"), ("--transport", "mqtt")
# What is added to `fedpfl up`; a simulation is `fedpfl run`.
KINDS = {
    "simulation": (), "HTTP": HTTP, "MQTT": MQTT, "HTTP, memory": (*HTTP, "--state", "memory"),
    "MQTT, memory": (*MQTT, "--state", "memory"), "HTTP, bare": (*HTTP, "--no-worker"),
    "MQTT, bare": (*MQTT, "--no-worker"),
}  # fmt: skip
# What a part of a testbed is called on its command line; the first that is found counts.
PARTS = {
    "SuperLink": ("flower-superlink",), "SuperNodes": ("flower-supernode",), "bridge": ("fedpfl.cli.bridge",),
    "broker": ("mosquitto",), "workers": ("fedpfl.bench.device.worker",), "fork servers": ("fedpfl.bench.forkserver",),
    "SuperExecs": ("flower-superexec",), "ServerApp": ("flwr-serverapp", "fedpfl-serverapp"),
    "ClientApps": ("flwr-clientapp",),
}  # fmt: skip
SAMPLE_SECONDS = 1.0
# After 100 s without a task a SuperExec's wait is the longest.
SETTLE_SECONDS, IDLE_SECONDS = 110.0, 60.0


def parts_of(tree: ProcessTree) -> dict[str, float]:
    """Return the processor time so far, in seconds, of each part; a process has that of its ended children."""
    tick, seconds_of = os.sysconf("SC_CLK_TCK"), dict.fromkeys([*PARTS, "all"], 0.0)
    for pid in tree.members:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it ended
            continue
        seconds = sum(map(int, fields[11:15])) / tick
        part = next((part for part, names in PARTS.items() if any(word in command for word in names)), "all")
        for name in {part, "all"}:
            seconds_of[name] += seconds
    return seconds_of


def at(samples: list[tuple[float, dict[str, float]]], moment: float) -> Mapping[str, float]:
    """Return the sample that is next to a moment."""
    return min(samples, key=lambda sample: abs(sample[0] - moment))[1]


def measure(options: argparse.Namespace) -> None:
    """Run every kind of testbed once."""
    settings = {
        "dataset": "digits", "method": "fedavg", "model": "small-cnn", "partitioner": "iid", "local-epochs": 1,
        "batch-size": 50, "threads": 1, "num-clients": options.clients, "num-server-rounds": options.rounds + 1,
        "seed": options.seed, "fraction-train": options.fraction_train,
        "evaluate-every": 0 if options.no_tests else 1,
    }  # fmt: skip
    asked = max(1, round(options.fraction_train * options.clients))
    messages = asked + (0 if options.no_tests else options.clients)
    rows, shares = [], []
    for name in options.kinds or KINDS:
        note(name)
        samples: list[tuple[float, dict[str, float]]] = []
        begun = time.time()
        command = ("run",) if name == "simulation" else ("up", "--devices", str(options.devices), *KINDS[name])
        run = simulate(
            settings, lambda tree, to=samples: to.append((time.time(), parts_of(tree))), SAMPLE_SECONDS, command
        )
        lines = run.lines[1:]
        training, seconds = ([line[key] for line in lines] for key in ("seconds_train", "seconds"))
        spread = f"{min(seconds):.2f} … {max(seconds):.2f}"
        rows.append([name, f"{statistics.median(training):.2f}", f"{statistics.median(seconds):.2f}", spread])
        if name == "simulation" or run.seconds_to_first_step is None or run.seconds_a_round is None:
            continue
        first = begun + run.seconds_to_first_step + run.lines[0]["seconds"]
        before, after = at(samples, first), at(samples, first + run.seconds_a_round * len(lines))
        spent = {part: (after[part] - before[part]) / len(lines) for part in before}
        shares.append([name, *(f"{seconds:.2f}" for seconds in spent.values()), f"{spent['all'] / messages:.2f}"])
    print(table(["how", "s to train (median)", "s / round (median)", "least … most"], rows))
    if shares:
        print("\nSeconds of one core a round:\n")
        print(table(["how", *PARTS, "all", "a message"], shares))
    print(
        f"\nWork: {options.clients} clients on {options.devices} devices, FedAvg of a small CNN on digits, one epoch; "
        f"{options.rounds} rounds each, after one that does not count."
    )
    print(footer(options.seed))


def measure_idle(options: argparse.Namespace) -> None:
    """Measure the processor time of three SuperNodes of one device that have nothing to do."""
    rows = []
    for name, more in (("every 0.2 s", ("--no-worker",)), ("0.2 … 1 s", ())):
        note(f"polls {name}")
        seconds = SETTLE_SECONDS + IDLE_SECONDS + 30
        command = ("up", "--num-supernodes", "3", "--devices", "1", *more, "--command", f"sleep {seconds}")
        process = subprocess.Popen([sys.executable, "-c", "from fedpfl.cli import main; main()", *command])
        try:
            while not _idles(process):
                time.sleep(SAMPLE_SECONDS)
            time.sleep(SETTLE_SECONDS)
            tree, spent = ProcessTree(process.pid), []
            for pause in (IDLE_SECONDS, 0.0):
                tree.look()
                spent.append(parts_of(tree))
                time.sleep(pause)
        finally:
            process.terminate()
            process.wait()
        busy = {part: (spent[1][part] - spent[0][part]) / IDLE_SECONDS for part in ("SuperNodes", "SuperExecs")}
        rows.append([name, *(f"{1000 * share:.1f}" for share in (*busy.values(), sum(busy.values())))])
    print("Milliseconds of one core a second, three SuperNodes, the server's SuperExec included:\n")
    print(table(["polls", "SuperNodes", "SuperExecs", "both"], rows))
    print(footer(options.seed))


def _idles(process: subprocess.Popen[bytes]) -> bool:
    """Return whether the testbed has started its command."""
    if process.poll() is not None:
        raise BenchmarkError(f"fedpfl up ended with exit code {process.poll()}")
    tree = ProcessTree(process.pid)
    tree.look()
    return any(name == "sleep" for name in map(_name, tree.members))


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:  # it ended
        return ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="devices.py", description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=count, default=4, help="SuperNodes (%(default)s)")
    parser.add_argument("--devices", type=count, default=4, help="devices, each with one worker (%(default)s)")
    parser.add_argument("--rounds", type=count, default=10, help="rounds that count (%(default)s)")
    parser.add_argument("--fraction-train", type=float, default=1.0, help="share that trains (%(default)s)")
    parser.add_argument("--no-tests", action="store_true", help="rounds that only train")
    parser.add_argument("--kind", dest="kinds", action="append", choices=KINDS, help="only these; all by default")
    parser.add_argument("--idle", action="store_true", help="three SuperNodes without a run instead")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    main(lambda options: (measure_idle if options.idle else measure)(options), parser)
