"""The server's own work: clients that return at once, and what more cores would bring to light clients.

Clients that return at once send back the arrays that they got and numbers that are right, without any work. So what
remains is choosing them, making messages, handing these to the workers, taking sums and numbers, and recording rounds.
The CPU time of the server's process, divided by the clients, bounds how many clients a second a machine can have,
however many cores it has.

The second table has the light clients of ``light_clients.py``. Its first row is measured. The others are computed, as
if cores shared neither caches nor memory: a round takes as long as the work of all processes divided by the cores, and
at least as long as the server's own work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import light_clients
import numpy as np
from common import add_data_options, cores, count, footer, main, note, table
from many_clients import synthetic

from fedpfl.client.engine import HANDLERS, Engine
from fedpfl.core.payload import Payload
from fedpfl.engine.listener import Listener
from fedpfl.engine.server_run import run_federation
from fedpfl.engine.simulation_transport import SimulationTransport
from fedpfl.setup.config import Config

GOAL_MICROSECONDS, GOAL_RATE = 30, 10_000
# Cores for which the time of a round is computed.
MORE_CORES = (4, 8, 16, 32, 64)


class Mark(NamedTuple):
    """The time, and the CPU seconds so far, when a round was over and recorded."""

    time: float
    server: float
    workers: float


class Marks(Listener):
    """Takes a mark after each round."""

    def __init__(self) -> None:
        self.found: list[Mark] = []

    def round_ended(self, rule: Any, done: Any, state: Any) -> bool:
        """Take it."""
        workers = sum(_cpu_seconds(child.pid) for child in multiprocessing.active_children())
        self.found.append(Mark(time.perf_counter(), time.process_time(), workers))
        return False

    def medians(self) -> Mark:
        """Return the medians of what rounds took, without the first."""
        return Mark(*np.median(np.diff(np.array(self.found), axis=0), axis=0).tolist())


def measure(options: argparse.Namespace) -> None:
    """Measure clients that return at once, without and with tests, and light clients."""
    with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as name:
        folder = Path(name)
        values = {
            "method": "fedavg", "model": "mlp", "dataset": "npz", "min-samples": 2, "partitioner": "natural",
            "data": synthetic(folder / "data.npz", options.clients, options.seed), "num-clients": options.clients,
            "fraction-train": 1.0, "seed": options.seed, "num-server-rounds": options.rounds + 1,
        }  # fmt: skip
        handlers = {"train": _train_at_once, "evaluate": _test_at_once}
        note("clients that return at once: training")
        training = run({**values, "evaluate-every": 0}, folder / "training", options.processes, handlers)
        note("clients that return at once: training and tests")
        both = run({**values, "evaluate-every": 1}, folder / "both", options.processes, handlers)
        note("light clients")
        light = light_clients.arguments().parse_args(["--data-dir", options.data_dir, "--seed", str(options.seed)])
        worked = run(light_clients.settings(light, options.rounds + 1), folder / "light", options.processes, {})
    rows = []
    for what, found in (("training", training), ("training and a test", both)):
        rows.append([f"clients a second, {what}", f"{options.clients / found.time:,.0f}", f"≥ {GOAL_RATE:,}"])
        rows.append([f"the server's work for a client, {what}: µs", _microseconds(found.server, options.clients),
                     f"≤ {GOAL_MICROSECONDS}" if found is training else ""])  # fmt: skip
        rows.append([f"the workers', {what}: µs", _microseconds(found.workers, options.clients), ""])
    clients = light.clients
    rows.append(["a light client with its test: the server's work, µs", _microseconds(worked.server, clients), ""])
    rows.append(["the same: the workers' work, µs", _microseconds(worked.workers, clients), ""])
    print(table(["what", "value", "goal"], rows))
    print()
    print(table(["cores", "s / round with tests", "clients a second"], scaling(worked, clients, options.processes)))
    print(f"\nMedians of {options.rounds} rounds after one that does not count; {options.processes} workers.")
    print(footer(options.seed))


def run(values: Mapping[str, Any], folder: Path, workers: int, handlers: Mapping[str, Callable[..., Payload]]) -> Mark:
    """Run a federation in this process, with other handlers of messages in its workers; return what a round took."""
    places = {"output-dir": str(folder / "runs"), "state-dir": str(folder / "state"), "run-name": "run"}
    config, marks, before = Config.parse({**values, **places}), Marks(), dict(HANDLERS)
    HANDLERS.update(handlers)
    try:
        with SimulationTransport(config, workers) as transport:
            run_federation(transport, config, [marks])
    finally:
        HANDLERS.update(before)
    return marks.medians()


def scaling(worked: Mark, clients: int, processes: int) -> list[list[str]]:
    """Return the rows of the table of cores: the first is measured, the others are computed."""
    rows = [[f"{processes}, measured", f"{worked.time:.2f}", f"{clients / worked.time:,.0f}"]]
    for number in MORE_CORES:
        share = (worked.server + worked.workers) / number
        seconds = max(share, worked.server)
        who = f"{number}, computed" + "; the server's own work" * (seconds > share)
        rows.append([who, f"{seconds:.2f}", f"{clients / seconds:,.0f}"])
    return rows


def _microseconds(seconds: float, clients: int) -> str:
    return f"{seconds / clients * 1e6:.0f}"


def _cpu_seconds(process: int | None) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _train_at_once(engine: Engine, client: int, message: Payload) -> Payload:
    samples, _ = engine.data.sizes(client)
    metrics = {"train-samples": samples, "train-loss": 1.0, "train-seconds": 0.0}
    return Payload({"layout": message.config["layout"]}, metrics, message.arrays)


def _test_at_once(engine: Engine, client: int, message: Payload) -> Payload:
    _, samples = engine.data.sizes(client)
    score = {"correct": samples, "loss-sum": 1.0, "samples": samples}
    models = ("personalised", "global")
    metrics = {f"{model}-{name}": value for model in models for name, value in score.items()}
    return Payload({}, {**metrics, "evaluate-seconds": 0.0})


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="at_once.py", description=__doc__.partition("\n")[0])
    add_data_options(parser, "mnist")  # of the light clients
    parser.add_argument("--clients", type=count, default=10_000, help="clients that return at once (%(default)s)")
    parser.add_argument("--rounds", type=count, default=6, help="rounds to measure, after one more (%(default)s)")
    parser.add_argument("--processes", type=count, default=cores(), help="worker processes; all cores (%(default)s)")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
