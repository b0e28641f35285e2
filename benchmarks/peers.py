"""The same two works by fedpfl, a straight loop (``loops.py``), apple/pfl-research (``pfl``), fluke (``fluke-fl``).

*Few heavy clients*: FedAvg's CNN, 4 of 20 clients a round, 5 epochs. *Many light clients*: an MLP, all of 1,000
clients, one epoch, so a round is 2,000 exchanges around very little work. All take turns, and test all clients after
each round. The straight loop ends with fedpfl's model, up to rounding. Training amplifies rounding, so beside the
distance of the two stands that of the loop from itself with initial weights that are moved by half a rounding.

Each peer has its own virtual environment in ``build/peers``, which the first call makes. The environment also sees
fedpfl's packages, so that all peers compute with the same PyTorch. The peer's script, ``pfl_run.py`` or
``fluke_run.py``, is plain FedAvg as the peer's documentation has it, with the same clients' data, the same model,
batches, epochs and learning rate. SGD steps are counted. Which clients train in a round, and in which order their
samples come, is up to the peer. A peer that cannot be installed or run is left out, with a line that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    BenchmarkError,
    add_json_option,
    cores,
    count,
    footer,
    main,
    make_environment,
    note,
    reason,
    simulate,
    table,
    write_json,
)
from loops import MODELS, Loop, distance, make_strategy, steps_of

from fedpfl.data.federation import FederatedData
from fedpfl.results.round_record import Round
from fedpfl.setup.config import Config

SCRIPTS = Path(__file__).parent
ENVIRONMENTS = Path(__file__).parent.parent / "build" / "peers"
LIMIT_SECONDS = 1800.0
# One rounding of a float32 changes it by at most this share.
MOVED = 2.0**-24
HEADS = (
    "training, s / round (median)", "least", "most", "of fedpfl's", "with tests of all", "SGD steps",
    "accuracy at the end, %",
)  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """Another simulator.

    Attributes
    ----------
    name : str
        What it is called in the table.
    package : str
        What pip installs.
    script : str
        Its script.
    processes, threads : int
        How it runs; a script that does not know of several processes gets one.
    """

    name: str
    package: str
    script: str
    processes: int
    threads: int

    @property
    def environment(self) -> Path:
        """Where its virtual environment is."""
        return ENVIRONMENTS / Path(self.script).stem.partition("_")[0]


@dataclass(frozen=True)
class Timing:
    """What one simulator took for a round: seconds of training and of tests, steps, accuracy at its end."""

    train: float
    test: float
    steps: int
    accuracy: float


def measure(options: argparse.Namespace) -> None:
    """Measure each work by all, by turns."""
    peers, numbers = installed(options), dict[str, dict[str, float | None]]()
    for name in options.work or WORKS:
        note(f"{name}: preparing the data")
        job = Job(name, options)
        with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as folder:
            write(Path(folder), job)
            for repeat in range(1, options.repeats + 1):
                note(f"{name}: repeat {repeat} of {options.repeats}: straight loop and fedpfl run")
                job.loop_and_fedpfl()
                for peer in list(peers):
                    note(f"{name}: repeat {repeat} of {options.repeats}: {peer.name}")
                    try:
                        job.add(title(peer), run(peer, Path(folder)))
                    except BenchmarkError as error:
                        print(f"{peer.name}: left out: {error}\n")
                        peers.remove(peer)
        of_work = medians(job)
        numbers |= {f"{name}: {who}": row for who, row in of_work.items()}
        rows = [[who, *(f"{number:.4g}" for number in row.values())] for who, row in of_work.items()]
        print(f"**{job.title}**\n\n{table(['who', *HEADS], rows)}\n")
        print(
            f"Relative distance of the final models of straight loop and fedpfl: {job.distance:.1e}; of the loop and "
            f"itself from initial weights moved by one rounding: {job.distance_of_moved:.1e}\n"
        )
    print(f"{options.repeats} times {options.rounds} rounds each, by turns, after one that does not count.")
    print(footer(options.seed))
    write_json(options.json, numbers)


def medians(job: Job) -> dict[str, dict[str, float | None]]:
    """Return the numbers of a work's table, by who did it and :data:`HEADS`."""
    base = statistics.median(took.train for who, rounds in job.measured.items() if who.startswith("fedpfl")
                             for took in rounds)  # fmt: skip
    numbers: dict[str, dict[str, float | None]] = {}
    for who, rounds in job.measured.items():
        train, whole = [took.train for took in rounds], [took.train + took.test for took in rounds]
        row = [
            statistics.median(train), min(train), max(train), statistics.median(train) / base,
            statistics.median(whole), statistics.median(took.steps for took in rounds), 100 * rounds[-1].accuracy,
        ]  # fmt: skip
        numbers[who] = dict(zip(HEADS, row, strict=True))
    return numbers


# -- the two works ---------------------------------------------------------------------------------------------------

WORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "heavy": ("Few heavy clients: FedAvg's CNN, 4 of 20 clients, 5 epochs", {
        "model": "fedavg-cnn", "dataset": "fashion-mnist", "num-clients": 20, "fraction-train": 0.2, "local-epochs": 5,
        "split": "mixed", "test-fraction": 13 / 70,
    }),
    "light": ("Many light clients: an MLP, all of them, one epoch", {
        "model": "mlp", "dataset": "mnist", "num-clients": 1000, "fraction-train": 1.0, "local-epochs": 1,
    }),
}  # fmt: skip
ALIKE = {
    "method": "fedavg", "evaluate-every": 1, "partitioner": "iid", "batch-size": 20, "last-batch": "keep",
    "optimizer": "sgd", "learning-rate": 0.05, "momentum": 0.0, "weight-decay": 0.0,
}  # fmt: skip


def settings(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of ``fedpfl run`` for a work; its first round does not count."""
    values = {**ALIKE, **WORKS[name][1], "num-server-rounds": options.rounds + 1, "seed": options.seed}
    if options.data_dir:
        values["data-dir"] = str(Path(options.data_dir).expanduser().absolute())
    if options.data:
        values.update({"dataset": "npz", "data": str(Path(options.data).expanduser().absolute())})
    if options.num_clients:
        values["num-clients"] = options.num_clients
    return values


class Job:
    """One of the two works, by everybody.

    Attributes
    ----------
    measured : dict of str to list of Found
        What the rounds took that count, by who did them.
    """

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.title, self.values, self._processes = WORKS[name][0], settings(name, options), options.processes
        self.config = Config.parse(self.values)
        self.data = FederatedData(self.config.data, self.config.data.num_clients, options.seed)
        self.strategy = make_strategy(self.config, self.data)
        loop, numbers = self.strategy, range(1, options.rounds + 2)
        self.rounds = [loop.sampling.choose(loop.rule, Round(number)) for number in numbers]
        self.steps = [sum(steps_of(client, self.config) for client in chosen) for chosen in self.rounds]
        self.measured: dict[str, list[Timing]] = {}
        self.distance = self.distance_of_moved = float("nan")

    def add(self, who: str, rounds: Sequence[Timing]) -> None:
        """Note what somebody's rounds took, without the first."""
        self.measured.setdefault(who, []).extend(rounds[1:])

    def loop_and_fedpfl(self) -> None:
        """Measure the straight loop, then fedpfl, and compare their models."""
        rule = self.strategy.rule
        with Loop(self.config, self.data, self._processes) as loop:
            seconds, vector, accuracy = loop.run(rule.shared, self.rounds, rule.participants)
            if np.isnan(self.distance_of_moved):  # once, as it is the same each time
                moves = np.random.default_rng(0).choice([1 - MOVED, 1 + MOVED], rule.shared.shape)
                moved = loop.run((rule.shared * moves).astype(np.float32), self.rounds, rule.participants[:1])[1]
                self.distance_of_moved = float((moved - vector).norm() / vector.norm())
        rounds = [Timing(*halves, steps, accuracy) for halves, steps in zip(seconds, self.steps, strict=True)]
        self.add(f"straight loop, {self._processes} processes × 1 thread", rounds)
        run = simulate(self.values)
        if [line["clients"] for line in run.lines] != [[client.id for client in chosen] for chosen in self.rounds]:
            raise BenchmarkError(
                "fedpfl trained other clients than the straight loop; the comparison would not be fair"
            )
        rounds = [
            Timing(line["seconds_train"], line["seconds_evaluate"], steps, line["personalised"]["weighted"])
            for line, steps in zip(run.lines, self.steps, strict=True)
        ]
        self.add(f"fedpfl {version('fedpfl')}", rounds)
        self.distance = distance(vector, run, rule.layout.names)


def write(folder: Path, job: Job) -> None:
    """Write the work for the peers: the settings, and all clients' samples one behind the other."""
    training, data = job.config.training, job.data
    work = {
        "model": MODELS[job.config.run.model], "chosen": len(job.rounds[0]), "epochs": training.local_epochs,
        "rounds": len(job.rounds), "seed": job.config.run.seed, "batch-size": training.batch_size,
        "learning-rate": training.learning_rate,
    }  # fmt: skip
    (folder / "work.json").write_text(json.dumps(work), encoding="utf-8")
    clients = [data.arrays(i) for i in range(data.num_clients)]
    arrays = {}
    for part in ("train", "test"):
        for kind in ("x", "y"):
            arrays[f"{kind}_{part}"] = np.concatenate([client[f"{kind}_{part}"] for client in clients])
        arrays[f"sizes_{part}"] = np.array([len(client[f"y_{part}"]) for client in clients])
    np.savez(folder / "work.npz", **arrays)


# -- the peers -------------------------------------------------------------------------------------------------------


def title(peer: Peer) -> str:
    """Return a peer's name in the table, with its version and how it ran."""
    ask = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
    package = re.split(r"[^\w.-]", peer.package)[0]
    command = [peer.environment / "bin" / "python", "-c", ask, package]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    how = f"{peer.processes} process{'es' * (peer.processes > 1)} × {peer.threads} thread{'s' * (peer.threads > 1)}"
    return f"{peer.name} {shown.stdout.strip()}, {how}"


def installed(options: argparse.Namespace) -> list[Peer]:
    """Install the peers that are not there yet; say in one line why one is left out."""
    pfl, fluke = options.pfl, options.fluke
    peers = [
        Peer("pfl-research", pfl, "pfl_run.py", options.processes, 1),
        *(Peer("fluke", fluke, "fluke_run.py", 1, threads) for threads in sorted({1, options.processes})),
    ]
    reasons = {peer.environment: make_environment(peer.environment, [peer.package]) for peer in peers if peer.package}
    for environment, why in reasons.items():
        if why:
            print(f"{environment.name}: left out: {why}\n")
    return [peer for peer in peers if reasons.get(peer.environment) == ""]


def run(peer: Peer, folder: Path) -> list[Timing]:
    """Let a peer do the work; return what its rounds took, without the first.

    Raises
    ------
    BenchmarkError
        It failed.
    """
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(peer.processes))
    processes: list[subprocess.Popen[bytes]] = []
    with (folder / "out").open("w+") as out, (folder / "err").open("w+") as err:
        for rank in range(peer.processes):
            env = {**os.environ, "OMP_NUM_THREADS": str(peer.threads), "MKL_NUM_THREADS": str(peer.threads)}
            if peer.processes > 1:
                env |= {"PFL_WORKER_RANK": str(rank), "PFL_WORKER_ADDRESSES": addresses, "GLOO_SOCKET_IFNAME": "lo"}
            env |= {"PFL_PYTORCH_DEVICE": "cpu", "WANDB_MODE": "disabled"}
            command = [peer.environment / "bin" / "python", SCRIPTS / peer.script, folder]
            processes.append(
                subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            )
        failed = _wait(processes)
        out.seek(0)
        err.seek(0)
        if failed:
            raise BenchmarkError(reason(err.read()) if failed == "exit" else failed)
        lines = [json.loads(line.removeprefix("round ")) for line in out if line.startswith("round ")]
    if len(lines) < 2:
        raise BenchmarkError("it told of no round")
    return [Timing(line["train"], line["test"], line["steps"], line["accuracy"]) for line in lines]


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> str:
    """Wait for the end of all; return what went wrong, if something did: the others are ended then."""
    deadline = time.monotonic() + LIMIT_SECONDS
    wrong = ""
    try:
        while not wrong and any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                wrong = "exit"
            elif time.monotonic() > deadline:
                wrong = f"not finished after {LIMIT_SECONDS:g} s"
            time.sleep(0.1)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    return wrong or ("exit" if any(process.returncode for process in processes) else "")


def free_ports(number: int) -> list[int]:
    """Return ports that no process listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="peers.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", help="where data lie or are downloaded to")
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    parser.add_argument("--work", action="append", choices=list(WORKS), help="only this one; may be repeated")
    parser.add_argument("--data", help="an npz file of images of 28x28 pixels instead of the work's data set")
    parser.add_argument("--num-clients", type=count, help="other clients than the work's")
    parser.add_argument("--rounds", type=count, default=3, help="rounds to measure, after one more (%(default)s)")
    parser.add_argument("--repeats", type=count, default=2, help="how often all is measured in turn (%(default)s)")
    parser.add_argument(
        "--processes", type=count, default=cores(), help="of loop and pfl, or threads; all cores (%(default)s)"
    )
    parser.add_argument("--pfl", default="pfl[pytorch]==0.6.0", help="what pip installs; empty: none (%(default)s)")
    add_json_option(parser)
    parser.add_argument("--fluke", default="fluke-fl==0.8.1", help="what pip installs; empty: none (%(default)s)")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
