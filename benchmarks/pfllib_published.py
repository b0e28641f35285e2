"""PFLlib's program on the clients of its published leaderboard, to compare its first rounds with fedpfl's.

Its rows and columns are those of the experiment ``pfllib-fashion-mnist``, which has records of fedpfl's runs. This
script runs what is missing: PFLlib itself, with the same settings, tested every fifth round as those runs are. After as
many rounds, a difference is one between the programs and not one of patience.

    python benchmarks/pfllib_published.py --row FedDBE --row GPFL --rounds 25

``build/pfllib/published/COLUMN.json`` has the accuracies in percent by row and round, and the seconds of processor time
of a round. Rows that are there with as many rounds are not run again.
"""

from __future__ import annotations

import argparse
import json
import resource
from pathlib import Path

import numpy as np
from common import BenchmarkError, count, data_dir, machine, main, make_environment, note, table
from pfllib import COMMIT, PACKAGES, PLACE, SOURCE, pfllib, source

from fedpfl.core.files import write_atomically
from fedpfl.data import federated_data
from fedpfl.setup.config import Config
from fedpfl.study.experiment import read

EXPERIMENT, SCALE, EVERY = "pfllib-fashion-mnist", "small", 5
# What the experiment says of each row, in PFLlib's words; what is not named has the same default in both.
OPTIONS = {
    "FedAvg": "-algo FedAvg", "FedProx": "-algo FedProx -mu 0.001", "Per-FedAvg": "-algo PerAvg",
    "Ditto": "-algo Ditto -mu 0.1 -pls 1", "APFL": "-algo APFL -al 1.0", "FedFomo": "-algo FedFomo -M 5",
    "FedAMP": "-algo FedAMP -alk 1.0 -lam 1.0 -sg 1.0", "FedALA": "-algo FedALA -et 1.0 -s 80 -p 2",
    "FedPer": "-algo FedPer", "FedRep": "-algo FedRep -pls 1", "FedRoD": "-algo FedROD",
    "FedProto": "-algo FedProto -lam 1.0", "GPFL": "-algo GPFL -lam 0.01 -mu 0.1", "FedCP": "-algo FedCP -lam 5.0",
    "FedDBE": "-algo FedDBE -klw 50.0 -mo 1.0", "Local": "-algo Local",
}  # fmt: skip


def measure(options: argparse.Namespace) -> None:
    """Run the rows that are missing, one after another, and print all."""
    experiment = read(EXPERIMENT).only(SCALE, options.row or (), [options.column])
    cells = {cell.row: Config.parse({**cell.settings, "seed": options.seed, "data-dir": data_dir(options.data_dir)})
             for cell in experiment.cells(SCALE) if cell.row in OPTIONS}  # fmt: skip
    if options.rounds % EVERY:
        raise BenchmarkError(f"--rounds: {options.rounds} is no multiple of {EVERY}, the rounds between two tests")
    system, commit = source(options)
    wrong = make_environment(PLACE / "environment", PACKAGES)
    if wrong:
        raise BenchmarkError(f"PFLlib's packages: {wrong}")
    folder = PLACE / "published"
    clients, file = folder / f"clients-{options.column}", folder / f"{options.column}.json"
    curves = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for row, config in cells.items():
        if str(options.rounds) in curves.get(row, {}):
            continue
        write_clients(config, clients)
        note(f"PFLlib: {row}, {options.rounds} rounds")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        accuracies = pfllib(
            system, command_line(config, row, options.rounds), options.seed, clients, options.rounds // EVERY
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        curve = {str(EVERY * number): [round(100 * value, 2)] for number, value in enumerate(accuracies, start=1)}
        curves[row] = {**curve, "s a round": [round(seconds / options.rounds, 1)]}
        write_atomically(file, json.dumps(curves, indent=1).encode())
    columns = [*(str(number) for number in range(EVERY, options.rounds + 1, EVERY)), "s a round"]
    lines = [[row, *(str(values.get(number, [""])[0]) for number in columns)] for row, values in curves.items()]
    print(table(["", *columns], lines))
    print(f"\nPFLlib: commit {commit}, seed {options.seed}\nMachine: {machine()}")


def command_line(config: Config, row: str, rounds: int) -> list[str]:
    """Return the options of PFLlib's ``main.py`` for a row."""
    shared = {
        "-data": "FashionMNIST", "-m": "CNN", "-dev": "cpu", "-ncl": 10, "-nc": config.data.num_clients, "-jr": 1,
        "-gr": rounds, "-eg": EVERY, "-ls": 1, "-lbs": config.training.batch_size, "-lr": config.training.learning_rate,
        "-go": "published",
    }  # fmt: skip
    return [*(str(word) for pair in shared.items() for word in pair), *OPTIONS[row].split()]


def write_clients(config: Config, place: Path) -> None:
    """Write each client's samples as PFLlib reads them, unless they are there."""
    done = place / "written"
    if done.exists():
        return
    data = federated_data(config.data, config.data.num_clients, config.run.seed)
    for half, samples in (("train", data.train), ("test", data.test)):
        target = place / "dataset" / "FashionMNIST" / half
        target.mkdir(parents=True, exist_ok=True)
        for client in range(data.num_clients):
            x, y = samples(client)[:2]
            content = np.array({"x": x.numpy(), "y": y.numpy()}, object)
            np.savez_compressed(target / f"{client}.npz", data=content)
    done.touch()


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="pfllib_published.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--row", action="append", choices=list(OPTIONS), help="only this one; may be repeated")
    parser.add_argument("--column", default="Dir(0.1)", help="the division (%(default)s)")
    parser.add_argument("--rounds", type=count, default=25, help="rounds; all clients train in each (%(default)s)")
    parser.add_argument("--seed", type=count, default=1, help="of PFLlib's network and order of samples (%(default)s)")
    parser.add_argument("--data-dir", default="~/.fedpfl/data", help="where Fashion-MNIST lies (%(default)s)")
    parser.add_argument("--pfllib", default=SOURCE, help="its repository, or a folder that has it (%(default)s)")
    parser.add_argument("--commit", default=COMMIT, help="what is fetched (%(default)s)")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
