"""A federation of 10,000 clients, of which a hundredth trains in a round: its memory, and what a round costs.

The data set is divided evenly among the clients; nothing is tested before the end, when all of them are. Memory is
that of every process of the run together, sampled in a run of its own. A round should cost what those clients cost that
train in it, however many others there are: so it is set beside the straight loop of ``light_clients.py``, which trains
the same clients and does nothing else. That loop has an MLP; with another model the run is measured alone.

``--dataset synthetic`` makes eight samples of 20 features for each client, for more clients than MNIST has samples.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    BenchmarkError,
    Run,
    add_data_options,
    cores,
    count,
    data_dir,
    footer,
    main,
    note,
    simulate,
    table,
)
from light_clients import Halves, StraightLoop, memory_row, peak_memory
from straight import make_strategy, same_clients

from fedpfl.data.federation import FederatedData
from fedpfl.setup.config import Config

GOAL_GIB = 2.0
# The model that the straight loop has.
MLP = "mlp"
SYNTHETIC, SAMPLES, FEATURES, CLASSES = "synthetic", 8, 20, 10


def measure(options: argparse.Namespace) -> None:
    """Measure, with data that are made here or those of ``data-dir``."""
    if options.dataset != SYNTHETIC:
        _measure(options)
        return
    with tempfile.TemporaryDirectory(prefix="fedpfl-benchmark-") as folder:
        options.data = synthetic(Path(folder) / "data.npz", options.clients, options.seed)
        _measure(options)


def synthetic(path: Path, clients: int, seed: int) -> str:
    """Write samples of all clients, each with the client that it belongs to; return the path."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, clients * SAMPLES)
    x = rng.standard_normal((len(y), FEATURES), np.float32) + 0.2 * y[:, None].astype(np.float32)
    np.savez(path, x=x, y=y, client=np.repeat(np.arange(clients), SAMPLES))
    return str(path)


def _measure(options: argparse.Namespace) -> None:
    """Measure in turn: straight loop, fedpfl, and again; then the memory."""
    if options.dataset == "digits":
        raise BenchmarkError("digits has 1,797 samples, too few for many clients; use mnist or fashion-mnist")
    values = settings(options)
    straight: list[Halves] = []
    runs: list[Run] = []
    for repeat in range(1, options.repeats + 1):
        if options.model == MLP:
            note(f"repeat {repeat} of {options.repeats}: straight loop")
            straight += loop_seconds(options)
        note(f"repeat {repeat} of {options.repeats}: fedpfl run with {options.clients} clients")
        runs.append(simulate(values))
    if options.model == MLP:
        config = Config.parse(values)
        strategy = make_strategy(config, FederatedData(config.data, options.clients, options.seed))
        same_clients([strategy.choose(number) for number in range(1, options.rounds + 2)], runs[-1])
    note("fedpfl run, its memory")
    memory = peak_memory(values)
    print(table(["what", "value", "goal"], [*times(straight, runs, options.clients), memory_row(memory, GOAL_GIB)]))
    print(
        f"\nWork: {options.method}, {options.model}, {options.dataset}, {len(runs[0].lines[0]['clients'])} of "
        f"{options.clients} clients a round, one epoch, batch {options.batch_size}; {options.repeats} times "
        f"{options.rounds} rounds after one that does not count.\n"
        "First round: when metrics.jsonl got its first line, less that round's seconds."
    )
    print(footer(options.seed))


def settings(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the run to measure."""
    if options.dataset == SYNTHETIC:
        data = {"dataset": "npz", "data": options.data, "partitioner": "natural"}
    else:
        data = {"dataset": options.dataset, "data-dir": data_dir(options.data_dir), "partitioner": "iid"}
    return {
        "method": options.method, "model": options.model, **data, "num-clients": options.clients,
        "fraction-train": options.fraction, "num-server-rounds": options.rounds + 1, "evaluate-every": 0,
        "seed": options.seed, "min-samples": 2, "local-epochs": 1, "batch-size": options.batch_size,
        "last-batch": "keep",
        "optimizer": "sgd", "learning-rate": 0.05, "momentum": 0.0,
    }  # fmt: skip


def loop_seconds(options: argparse.Namespace) -> list[Halves]:
    """Return the seconds of the straight loop's rounds; in the last one all clients are tested."""
    config = Config.parse(settings(options))
    data = FederatedData(config.data, options.clients, options.seed)
    strategy = make_strategy(config, data)
    rounds = [strategy.choose(number) for number in range(1, options.rounds + 2)]
    with StraightLoop(config, data, options.processes) as loop:
        seconds, _, _ = loop.run(strategy.rule.shared, rounds, strategy.rule.participants, test_every=len(rounds))
    return seconds[1:]


def times(straight: Sequence[Halves], runs: Sequence[Run], clients: int) -> list[list[str]]:
    """Return the rows that tell seconds."""
    trained = [line["seconds_train"] for run in runs for line in run.lines[1:]]
    tested = [run.lines[-1]["seconds_evaluate"] for run in runs]
    # Not the last round: its record comes after the tests.
    whole = [run.seconds_a_round - run.lines[-1]["seconds_evaluate"] / (len(run.lines) - 1)
             for run in runs if run.seconds_a_round is not None]  # fmt: skip
    first = [run.seconds_to_first_step for run in runs if run.seconds_to_first_step is not None]
    rows = [
        ["s of a training round", _median(trained), ""],
        ["s from one round's record to the next one's, without the tests", _median(whole), ""],
        [f"s to test all {clients} clients", _median(tested), ""],
        ["s from the command to the first round", _median(first), ""],
        ["s of the whole command", _median([run.seconds for run in runs]), ""],
    ]
    if straight:
        work = [halves.train for halves in straight]
        ratio = statistics.median(trained) / statistics.median(work)
        rows.insert(0, ["s of the straight loop's training round, the same clients", _median(work), ""])
        rows.insert(2, ["a training round, of the loop's", f"{ratio:.2f}", ""])
        rows.insert(5, ["s of the straight loop to test all of them", _median([max(h.test for h in straight)]), ""])
    return rows


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f}" if values else "unknown"


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="many_clients.py", description=__doc__.partition("\n")[0])
    add_data_options(parser, "mnist")
    parser.add_argument("--clients", type=count, default=10_000, help="clients of the federation (%(default)s)")
    parser.add_argument("--fraction", type=float, default=0.01, help="share of them in a round (%(default)s)")
    parser.add_argument("--rounds", type=count, default=10, help="rounds to measure, after one more (%(default)s)")
    parser.add_argument("--repeats", type=count, default=3, help="how often all is measured in turn (%(default)s)")
    parser.add_argument("--method", default="fedavg", help="method (%(default)s)")
    parser.add_argument("--model", default=MLP, help="model (%(default)s); for example fedavg-cnn")
    parser.add_argument("--batch-size", type=count, default=20, help="samples in a batch (%(default)s)")
    parser.add_argument(
        "--processes", type=count, default=cores(), help="of the straight loop; all cores (%(default)s)"
    )
    return parser


if __name__ == "__main__":
    main(measure, arguments())
