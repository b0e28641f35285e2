"""Where the memory of a round is: runs of a large and of a small model, in copies of the large one.

Both runs are watched from outside. The small model takes next to nothing, so its run shows the memory of programs,
libraries and data. What the large model's run takes beyond it is divided by the size of that model. It includes what
training itself needs in each worker: parameters, gradients, momentum, activations.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from typing import Any

import psutil
from common import MIB, BenchmarkError, add_json_option, count, footer, main, note, simulate, table, write_json

from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

SAMPLE_SECONDS = 0.02
# Input shape and classes of digits: with its small images a model's activations take little memory.
DIGITS = (1, 8, 8), 10
SMALL = "mlp"


def measure(options: argparse.Namespace) -> None:
    """Watch both runs and print the table."""
    values = settings(options, options.model)
    _, sharing = assemble(Config.parse(values), *DIGITS, "cpu", 0)
    size = 4 * sharing.layout.size
    note(f"the run of {SMALL}")
    small = peak(settings(options, SMALL))
    note(f"the run of {options.model}")
    large = peak(values)
    if len(small) != len(large):
        raise BenchmarkError(f"{len(small)} and {len(large)} processes were seen at the peaks")
    names = ["server", *(f"worker {number}" for number in range(1, len(large)))]
    rows = [[a / MIB, b / MIB, (b - a) / size] for a, b in zip([*small, sum(small)], [*large, sum(large)], strict=True)]
    heads = [f"{SMALL}, MiB", f"{options.model}, MiB", f"copies of {size / MIB:.1f} MiB"]
    named = dict(zip([*names, "all"], rows, strict=True))
    print(table(["process", *heads], [[name, f"{a:.0f}", f"{b:.0f}", f"{n:.1f}"] for name, (a, b, n) in named.items()]))
    write_json(options.json, {name: dict(zip(heads, row, strict=True)) for name, row in named.items()})
    print(
        f"\nPeak of all processes together, PSS. FedAvg, digits, {options.clients} clients of 16 samples, batch 8, "
        f"momentum {options.momentum:g}, {options.rounds} rounds with tests."
    )
    print(footer(options.seed))


def settings(options: argparse.Namespace, model: str) -> dict[str, Any]:
    """Return the settings of a run."""
    return {
        "method": "fedavg", "model": model, "dataset": "digits", "num-clients": options.clients,
        "num-server-rounds": options.rounds, "evaluate-every": 1, "seed": options.seed, "fraction-train": 1.0,
        "partitioner": "dirichlet-client", "train-samples": 16, "test-samples": 8, "local-epochs": 1, "batch-size": 8,
        "momentum": options.momentum,
    }  # fmt: skip


def peak(values: dict[str, Any]) -> list[int]:
    """Return the memory of each process of a run, the server's first, when all were there and took the most."""
    largest: list[int] = []

    def sample(pid: int) -> None:
        nonlocal largest
        with suppress(psutil.Error):  # one has ended meanwhile
            run = psutil.Process(pid)
            now = [one.memory_full_info().pss for one in (run, *run.children(recursive=True))]
            if (len(now), sum(now)) > (len(largest), sum(largest)):
                largest = now

    simulate(values, sample, SAMPLE_SECONDS)
    return largest


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="the large model (%(default)s)")
    parser.add_argument("--clients", type=count, default=4, help="clients, all of a round (%(default)s)")
    parser.add_argument("--rounds", type=count, default=3, help="rounds (%(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="of SGD; 0 saves a copy a worker (%(default)s)")
    add_json_option(parser)
    parser.add_argument("--seed", type=int, default=1, help="every random choice follows from it (%(default)s)")
    main(measure, parser)
