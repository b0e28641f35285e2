"""The same two works by fedpfl and by other simulators: apple/pfl-research (``pfl``) and fluke (``fluke-fl``).

*Few heavy clients* is the work of ``round.py``, *many light clients* that of ``light_clients.py``. The straight loops
are measured, too, and all take turns. Each peer gets a virtual environment of its own in ``build/peers``, made at the
first call. Behind its own packages come those of fedpfl, so that all compute with the same PyTorch. Its script in
``benchmarks/peers`` is plain FedAvg as the peer's documentation has it, with the same clients' data, the same model,
batches, epochs and learning rate, and a test of all clients after each round. SGD steps are counted. Which clients
train in a round, and in which order their samples come, is up to the peer. A peer that cannot be installed or run is
left out, with a line that says why.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import light_clients as light
import numpy as np
import round as heavy
from common import BenchmarkError, Run, cores, count, footer, main, make_environment, note, reason, simulate, table
from straight import make_strategy, steps_of

from fedpfl.data.federation import FederatedData
from fedpfl.setup.config import Config

SCRIPTS = Path(__file__).parent / "peers"
ENVIRONMENTS = Path(__file__).parent.parent / "build" / "peers"
LIMIT_SECONDS = 1800.0


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
        Its script in ``benchmarks/peers``.
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
class Found:
    """What one simulator took for a round: seconds of training and of tests (None: it has none), steps, accuracy."""

    train: float
    test: float | None
    steps: int
    accuracy: float | None


@dataclass
class Job:
    """One of the two works.

    Attributes
    ----------
    title : str
        Its title in the output.
    values : dict
        The settings of ``fedpfl run``.
    straight : callable, () → list of Found
        Measures the straight loop.
    peers : dict
        What ``work.json`` tells a peer.
    found : dict of str to list of Found
        What has been measured, by who it was.
    """

    title: str
    values: dict[str, Any]
    straight: Callable[[], list[Found]]
    peers: dict[str, Any]
    found: dict[str, list[Found]] = field(default_factory=dict)

    def add(self, who: str, rounds: Sequence[Found]) -> None:
        """Note what somebody's rounds took."""
        self.found.setdefault(who, []).extend(rounds)


def measure(options: argparse.Namespace) -> None:
    """Measure each work by all, by turns."""
    peers = installed(options)
    for name in options.work or JOBS:
        job, data = JOBS[name](options)
        with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as folder:
            write(Path(folder), job, data)
            for repeat in range(1, options.repeats + 1):
                note(f"{name}: repeat {repeat} of {options.repeats}: straight loop")
                job.found.setdefault(f"straight loop, {options.processes} processes × 1 thread", []).extend(
                    job.straight()
                )
                note(f"{name}: repeat {repeat} of {options.repeats}: fedpfl run")
                job.found.setdefault(f"fedpfl {version('fedpfl')}", []).extend(own(simulate(job.values), job, data))
                for peer in list(peers):
                    note(f"{name}: repeat {repeat} of {options.repeats}: {peer.name}")
                    try:
                        job.add(title(peer), run(peer, Path(folder)))
                    except BenchmarkError as error:
                        print(f"{peer.name}: left out: {error}\n")
                        peers.remove(peer)
        print(f"**{job.title}**\n")
        print(rows(job))
        print()
    print(f"{options.repeats} times {options.rounds} rounds each, by turns, after one that does not count.")
    print(footer(options.seed))


def rows(job: Job) -> str:
    """Return the table of a work; the fastest with tests comes first."""
    own_name = next(who for who in job.found if who.startswith("fedpfl"))
    base = statistics.median(found.train for found in job.found[own_name])

    def row(who: str, rounds: Sequence[Found]) -> list[str]:
        train = statistics.median(one.train for one in rounds)
        tests = [one.train + one.test for one in rounds if one.test is not None]
        accuracy = rounds[-1].accuracy
        return [
            who, f"{train:.2f}", f"{min(one.train for one in rounds):.2f} … {max(one.train for one in rounds):.2f}",
            f"{train / base:.2f}", f"{statistics.median(tests):.2f}" if tests else "–",
            f"{statistics.median(one.steps for one in rounds):g}",
            "–" if accuracy is None else f"{100 * accuracy:.1f} %",
        ]  # fmt: skip

    header = ["who", "training, s / round (median)", "least … most", "of fedpfl's", "with tests of all", "SGD steps"]
    return table([*header, "accuracy at the end"], [row(who, found) for who, found in job.found.items() if found])


# -- the two works ---------------------------------------------------------------------------------------------------


def heavy_job(options: argparse.Namespace) -> tuple[Job, FederatedData]:
    """Return the work of ``round.py``."""
    usual = heavy.arguments().parse_args([])
    usual.data_dir, usual.seed, usual.rounds, usual.processes = (
        options.data_dir, options.seed, options.rounds, options.processes,
    )  # fmt: skip
    values = heavy.settings(usual, evaluate_every=1)
    config = Config.parse(values)
    data = FederatedData(config.data, usual.clients, options.seed)

    def straight() -> list[Found]:
        strategy = make_strategy(config, data)
        rounds = [strategy.choose(number) for number in range(1, options.rounds + 2)]
        with heavy.BareLoop(config, data, options.processes) as loop:
            seconds, _ = loop.train(strategy, rounds)
        steps = [sum(steps_of(client, config) for client in chosen) for chosen in rounds]
        return [Found(*both, None) for both in zip(seconds, [None] * len(rounds), steps, strict=True)][1:]

    chosen = max(1, round(usual.fraction * usual.clients))
    said = (
        f"Few heavy clients: FedAvg's CNN, {usual.dataset}, {chosen} of {usual.clients} clients, {usual.epochs} epochs"
    )
    return Job(said, values, straight, told(options, "cnn", chosen, usual.epochs, usual)), data


def light_job(options: argparse.Namespace) -> tuple[Job, FederatedData]:
    """Return the work of ``light_clients.py``."""
    usual = light.arguments().parse_args([])
    usual.data_dir, usual.seed, usual.clients = options.data_dir, options.seed, options.clients
    values = light.settings(usual, options.rounds + 1)
    config = Config.parse(values)
    data = FederatedData(config.data, usual.clients, options.seed)

    def straight() -> list[Found]:
        strategy = make_strategy(config, data)
        rounds = [strategy.choose(number) for number in range(1, options.rounds + 2)]
        steps = [sum(steps_of(client, config) for client in chosen) for chosen in rounds]
        with light.StraightLoop(config, data, options.processes) as loop:
            seconds, _, score = loop.run(strategy.rule.shared, rounds, strategy.rule.participants)
        accuracy = score.correct / score.samples
        return [Found(*halves, count, accuracy) for halves, count in zip(seconds, steps, strict=True)][1:]

    said = f"Many light clients: an MLP, {usual.dataset}, all of {usual.clients} clients, one epoch"
    return Job(said, values, straight, told(options, "mlp", usual.clients, 1, usual)), data


def told(
    options: argparse.Namespace, model: str, chosen: int, epochs: int, usual: argparse.Namespace
) -> dict[str, Any]:
    """Return the content of ``work.json``, for a peer."""
    return {
        "model": model, "chosen": chosen, "epochs": epochs, "rounds": options.rounds + 1, "seed": options.seed,
        "batch-size": usual.batch_size, "learning-rate": usual.learning_rate,
    }  # fmt: skip


JOBS = {"heavy": heavy_job, "light": light_job}


def write(folder: Path, job: Job, data: FederatedData) -> None:
    """Write the work for the peers: the settings, and all clients' samples one behind the other."""
    (folder / "work.json").write_text(json.dumps(job.peers), encoding="utf-8")
    clients = [data.arrays(i) for i in range(data.num_clients)]
    arrays = {}
    for part in ("train", "test"):
        for kind in ("x", "y"):
            arrays[f"{kind}_{part}"] = np.concatenate([client[f"{kind}_{part}"] for client in clients])
        arrays[f"sizes_{part}"] = np.array([len(client[f"y_{part}"]) for client in clients])
    np.savez(folder / "work.npz", **arrays)


def own(run: Run, job: Job, data: FederatedData) -> list[Found]:
    """Return the rounds of fedpfl."""
    config = Config.parse(job.values)
    strategy = make_strategy(config, data)
    steps = [sum(steps_of(strategy.rule.clients[i], config) for i in line["clients"]) for line in run.lines]
    return [
        Found(line["seconds_train"], line["seconds_evaluate"], count, line["personalised"]["weighted"])
        for line, count in zip(run.lines, steps, strict=True)
    ][1:]


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


def run(peer: Peer, folder: Path) -> list[Found]:
    """Let a peer do the work; return what its rounds took, without the first.

    Raises
    ------
    BenchmarkError
        It failed.
    """
    addresses = ",".join(f"127.0.0.1:{port}" for port in _free_ports(peer.processes))
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
    return [Found(line["train"], line["test"], line["steps"], line["accuracy"]) for line in lines][1:]


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


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="peers.py", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--data-dir", default="~/.fedpfl/data", help="where data lie or are downloaded to (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    parser.add_argument("--work", action="append", choices=list(JOBS), help="only this one; may be repeated")
    parser.add_argument("--clients", type=count, default=1000, help="light clients (%(default)s)")
    parser.add_argument("--rounds", type=count, default=3, help="rounds to measure, after one more (%(default)s)")
    parser.add_argument("--repeats", type=count, default=2, help="how often all is measured in turn (%(default)s)")
    parser.add_argument(
        "--processes", type=count, default=cores(), help="of loop and pfl, or threads; all cores (%(default)s)"
    )
    parser.add_argument("--pfl", default="pfl[pytorch]==0.6.0", help="what pip installs; empty: none (%(default)s)")
    parser.add_argument("--fluke", default="fluke-fl==0.8.1", help="what pip installs; empty: none (%(default)s)")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
