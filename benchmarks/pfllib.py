"""Five methods by fedpfl and by PFLlib on the same clients, to compare their accuracies.

PFLlib (https://github.com/TsingZ0/PFLlib) is fetched by git, unless ``--pfllib`` names a folder that has it. Its
virtual environment is in ``build/pfllib``. ``pfllib_run.py`` sets the seed; nothing else of PFLlib is changed.

For each seed some samples of a data set are divided: every class is cut among the clients in proportions drawn from
Dir(α), in the test set in the same ones as in the training set. The clients are written as an npz file whose arrays
``client_train`` and ``client_test`` name them, and as PFLlib's folder. Then both train the same network with the same
settings. Both test all clients after every round, with what the server has just sent them; the table has the share
of all test samples that is classified correctly, in the best round.

Every outcome is a file in ``build/pfllib``. What is there is not run again: the same command goes on after Ctrl-C.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import BenchmarkError, count, data_dir, machine, main, make_environment, note, reason, simulate, table

from fedpfl.core.checksummed_files import to_toml
from fedpfl.data.reading import load
from fedpfl.data.settings import DataSettings

SOURCE = "https://github.com/TsingZ0/PFLlib"
COMMIT = "d832e76f6a23b833038949ec1e4fdefe63a4d350"
# What PFLlib imports and fedpfl does not have.
PACKAGES = ("h5py", "cvxpy", "calmsize", "matplotlib")
PLACE = Path(__file__).parent.parent / "build" / "pfllib"
SCRIPT = Path(__file__).parent / "pfllib_run.py"
NAME = "FashionMNIST"  # of the data set there, from which its network follows
HEADS = ("PFLlib", "fedpfl", "difference")
ALGORITHMS = {"local": "Local", "fedper": "FedPer", "fedrod": "FedROD", "ditto": "Ditto", "fedavg": "FedAvg"}
DRAWS = 100_000


@dataclass(frozen=True)
class Work:
    """What both have to do, but for method and seed."""

    dataset: str = "fashion-mnist"
    alpha: float = 0.1  # of the division
    clients: int = 10
    samples: int = 2500  # for training, of all clients
    tests: int = 2000
    smallest: int = 20  # fewest training samples of one client
    rounds: int = 25  # in each of which all clients train
    epochs: int = 1
    batch_size: int = 10  # a smaller last one is left out
    learning_rate: float = 0.005  # of plain SGD
    pull: float = 1.0  # Ditto's λ

    def settings(self, method: str, seed: int, clients: Path) -> dict[str, Any]:
        """Return fedpfl's settings."""
        settings = {"ditto": {"ditto-pull": self.pull, "ditto-p-epochs": self.epochs}}
        return {
            "method": method, "dataset": "npz", "data": str(clients), "split": "given", "num-clients": 0,
            "min-samples": self.smallest, "model": "fedavg-cnn", "num-server-rounds": self.rounds,
            "local-epochs": self.epochs, "batch-size": self.batch_size, "last-batch": "drop",
            "learning-rate": self.learning_rate, "momentum": 0.0, "seed": seed, **settings.get(method, {}),
        }  # fmt: skip

    def options(self, method: str) -> list[str]:
        """Return the options of PFLlib's ``main.py``."""
        options = {
            "-data": NAME, "-m": "CNN", "-algo": ALGORITHMS[method], "-dev": "cpu", "-ncl": 10,
            "-nc": self.clients, "-jr": 1, "-gr": self.rounds, "-ls": self.epochs, "-lbs": self.batch_size,
            "-lr": self.learning_rate, "-mu": self.pull, "-pls": self.epochs, "-go": "compare",
        }  # fmt: skip
        return [str(word) for pair in options.items() for word in pair]


def measure(options: argparse.Namespace) -> None:
    """Run what has not been run, print the table of what has."""
    work = Work(rounds=options.rounds)
    system, commit = source(options)
    wrong = make_environment(PLACE / "environment", PACKAGES)
    if wrong:
        raise BenchmarkError(f"PFLlib's packages: {wrong}")
    folder = PLACE / hashlib.sha256(json.dumps([asdict(work), commit]).encode()).hexdigest()[:12]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "work.json").write_text(json.dumps({**asdict(work), "commit": commit}, indent=1), encoding="utf-8")
    deadline = time.monotonic() + 60 * options.minutes
    seeds, methods = options.seeds or [1], options.method or list(ALGORITHMS)
    for seed in seeds:
        clients = divide(work, seed, folder, options)
        for method in methods:
            for program in ("fedpfl", "pfllib"):
                file = folder / f"{program}-{method}-{seed}.json"
                if file.exists() or time.monotonic() > deadline:
                    continue
                note(f"{program}: {method}, seed {seed}")
                begun = time.monotonic()
                if program == "pfllib":
                    accuracies = pfllib(system, work.options(method), seed, clients.parent, work.rounds)
                else:
                    accuracies = fedpfl(work.settings(method, seed, clients), folder / f"{method}-{seed}.toml")
                text = json.dumps({"accuracies": accuracies, "seconds": round(time.monotonic() - begun, 1)})
                file.write_text(text, encoding="utf-8")
    made = outcomes(folder, seeds, methods)
    print(f"**{work.dataset}, Dir({work.alpha:g}), {work.clients} clients, best of {work.rounds} rounds**\n")
    print(table(["method", *HEADS, "of each seed"], [row(method, values) for method, values in made.items()]))
    if options.json:
        options.json.write_text(json.dumps(made, indent=1), encoding="utf-8")
    print(f"\nPFLlib: commit {commit}\nMachine: {machine()}\nfedpfl's settings: {folder}/METHOD-SEED.toml")
    print(f"PFLlib's options: {' '.join(work.options(methods[0]))}")


def outcomes(folder: Path, seeds: Sequence[int], methods: Sequence[str]) -> dict[str, dict[str, list[float]]]:
    """Return the accuracy in percent of each method's best round by both programs, of each seed that both have run."""
    accuracies: dict[str, dict[str, list[float]]] = {}
    for method in methods:
        for seed in seeds:
            files = [folder / f"{program}-{method}-{seed}.json" for program in ("pfllib", "fedpfl")]
            if not all(file.exists() for file in files):
                continue
            theirs, ours = (100 * max(json.loads(file.read_text(encoding="utf-8"))["accuracies"]) for file in files)
            values = accuracies.setdefault(method, {head: [] for head in HEADS})
            for head, value in zip(HEADS, (theirs, ours, ours - theirs), strict=True):
                values[head].append(value)
    return accuracies


def row(method: str, values: dict[str, list[float]]) -> list[str]:
    """Return a method's row of the printed table: means over the seeds, and the difference of each seed."""
    theirs, ours, gap = (statistics.fmean(values[head]) for head in HEADS)
    gaps = ", ".join(f"{one:+.2f}" for one in values[HEADS[2]])
    return [f"`{method}`", f"{theirs:.2f}", f"{ours:.2f}", f"{gap:+.2f}", gaps]


# -- the clients -----------------------------------------------------------------------------------------------------


def divide(work: Work, seed: int, folder: Path, options: argparse.Namespace) -> Path:
    """Write the clients of a seed unless they are there; return the npz file, which lies beside PFLlib's folder."""
    place = folder / f"clients-{seed}"
    file = place / "clients.npz"
    if file.exists():
        return file
    data = load(DataSettings(dataset=work.dataset, data_dir=data_dir(options.data_dir)))
    rng = np.random.default_rng(seed)
    if data.x_test is None or data.y_test is None:
        raise BenchmarkError(f"{work.dataset} has no test set")
    train, test = rng.permutation(len(data.y_train))[: work.samples], rng.permutation(len(data.y_test))[: work.tests]
    owners = owned(data.y_train[train], data.y_test[test], work, rng)
    arrays: dict[str, np.ndarray] = {}
    halves = (("train", data.x_train[train], data.y_train[train]), ("test", data.x_test[test], data.y_test[test]))
    for (half, x, y), owner in zip(halves, owners, strict=True):
        arrays |= {f"x_{half}": x, f"y_{half}": y, f"client_{half}": owner}
        target = place / "dataset" / NAME / half
        target.mkdir(parents=True, exist_ok=True)
        # As fedpfl scales images, and PFLlib's own scripts.
        scaled = ((x.astype(np.float32) / 255 - 0.5) / 0.5).transpose(0, 3, 1, 2)
        for client in range(work.clients):
            mine = owner == client
            np.savez_compressed(target / f"{client}.npz", data=np.array({"x": scaled[mine], "y": y[mine]}, object))
    np.savez(file, **arrays)  # last: it says that the rest is there
    return file


def owned(
    y_train: np.ndarray, y_test: np.ndarray, work: Work, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw whom each sample belongs to, until every client has enough for training and something to be tested with."""
    for _ in range(DRAWS):
        owners = np.empty(len(y_train), np.int64), np.empty(len(y_test), np.int64)
        for label in np.unique(y_train):
            ends = np.cumsum(rng.dirichlet([work.alpha] * work.clients))
            for y, owner in zip((y_train, y_test), owners, strict=True):
                mine = np.flatnonzero(y == label)
                owner[mine] = np.minimum(np.searchsorted(ends * len(mine), np.arange(len(mine)) + 0.5), len(ends) - 1)
        sizes = [np.bincount(owner, minlength=work.clients) for owner in owners]
        if sizes[0].min() >= work.smallest and sizes[1].min() > 0:
            return owners
    raise BenchmarkError(f"{DRAWS} draws left a client with less than {work.smallest} samples")


# -- the two programs ------------------------------------------------------------------------------------------------


def fedpfl(settings: dict[str, Any], file: Path) -> list[float]:
    """Let fedpfl do it in one process; return the accuracy after each round."""
    file.write_text(to_toml(settings), encoding="utf-8")
    run = simulate(settings, command=("run", "--workers", "1"))
    return [line["personalised"]["weighted"] for line in run.lines]


def pfllib(system: Path, arguments: Sequence[str], seed: int, clients: Path, rounds: int) -> list[float]:
    """Let PFLlib do it in one thread; return the accuracy after each round, without the one before the first."""
    with tempfile.TemporaryDirectory(prefix="fedpfl-pfllib-") as name:
        place = Path(name)
        (place / "system").mkdir()
        (place / "dataset").symlink_to((clients / "dataset").resolve())
        python = PLACE.resolve() / "environment" / "bin" / "python"
        command = [python, SCRIPT.resolve(), system.resolve(), str(seed), place / "accuracies.json", *arguments]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=place / "system", env=env, capture_output=True, text=True)
        if done.returncode:
            raise BenchmarkError(f"PFLlib failed: {reason(done.stderr)}")
        values = json.loads((place / "accuracies.json").read_text(encoding="utf-8"))
    # Ditto records two numbers a round, of the global model and of the clients' own.
    each = len(values) // (rounds + 1)
    return values[each - 1 :: each][1:]


def source(options: argparse.Namespace) -> tuple[Path, str]:
    """Return PFLlib's folder ``system`` and its commit; fetch it if need be."""
    git = shutil.which("git")
    if git is None:
        raise BenchmarkError("git is not there")

    def run(*arguments: str, folder: Path) -> str:
        done = subprocess.run([git, "-C", str(folder), *arguments], capture_output=True, text=True)
        if done.returncode:
            raise BenchmarkError(f"git {arguments[0]}: {reason(done.stderr)}")
        return done.stdout.strip()

    place = Path(options.pfllib).expanduser()
    if "://" in options.pfllib:
        place = PLACE / "source"
        if not (place / "system" / "main.py").is_file():
            note(f"fetching {options.pfllib}")
            place.mkdir(parents=True, exist_ok=True)
            run("init", "--quiet", folder=place)
            run("sparse-checkout", "set", "system", folder=place)
            shallow = ("--depth", "1", "--filter", "blob:none")
            run("fetch", "--quiet", *shallow, options.pfllib, options.commit, folder=place)
            run("checkout", "--quiet", "FETCH_HEAD", folder=place)
    if not (place / "system" / "main.py").is_file():
        raise BenchmarkError(f"{place} is not PFLlib's folder: it has no system/main.py")
    commit = run("rev-parse", "HEAD", folder=place)
    if commit != options.commit:
        print(f"PFLlib is at {commit}, not at {options.commit}", file=sys.stderr)
    return place / "system", commit


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="pfllib.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", default="~/.fedpfl/data", help="where it lies or is downloaded to (%(default)s)")
    parser.add_argument("--seeds", type=count, nargs="+", help="of division, network and order of samples (1)")
    parser.add_argument("--method", action="append", choices=list(ALGORITHMS), help="only this one; may be repeated")
    parser.add_argument("--rounds", type=count, default=Work.rounds, help="all clients train in each (%(default)s)")
    parser.add_argument("--pfllib", default=SOURCE, help="its repository, or a folder that has it (%(default)s)")
    parser.add_argument("--commit", default=COMMIT, help="what is fetched (%(default)s)")
    parser.add_argument("--json", type=Path, help="the JSON file of accuracies to write")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after that (no limit)")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
