"""A round of FedAvg through the whole of Flower, beside a bare PyTorch loop that does the identical SGD steps.

The work is the reference work of ``docs/performance.md``: FedAvg's CNN on images of 28x28 pixels, 4 of 20 clients a
round, batches of 20, 5 epochs, SGD without momentum. The bare loop is written straight, without ``fedpfl.training``,
with everything that is known to help on a CPU: a process for every core with one thread each, channels_last, ReLU
behind max-pooling, one tensor for each client gathered by a permutation, ``torch.autograd.grad`` and one call for the
whole SGD step, longest client first. It trains the same clients from the same weights in the same order of samples
and averages them, so that both end with the same model, up to rounding; the distance is printed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import statistics
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from common import (
    MIB,
    BenchmarkError,
    ProcessTree,
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
    torch_threads,
)
from torch import Tensor, nn
from torch.nn import functional as F

from fedpfl.assembly import assemble
from fedpfl.config import Config
from fedpfl.data.federation import FederatedData
from fedpfl.rng import generator
from fedpfl.strategies import Client, PersonalisedStrategy, strategies

WARM_UP_STEPS = 30
# A training round, a round with evaluation, both as multiples of the bare loop; seconds until the first step.
GOAL_TRAIN, GOAL_EVALUATE, GOAL_START = 1.05, 1.15, 10.0


def measure(options: argparse.Namespace) -> None:
    """Measure in turn: bare loop, fedpfl, fedpfl with evaluation, and again."""
    config = Config.parse(settings(options, evaluate_every=0))
    note("preparing the data")
    data = FederatedData(config.data, options.clients, options.seed)
    if data.input_shape[1:] != (28, 28):
        raise BenchmarkError(f"{options.dataset}: the reference work needs images of 28x28 pixels")
    strategy = make_strategy(config, data)
    rounds = [strategy.choose(number) for number in range(1, options.rounds + 2)]
    steps = [sum(steps_of(client, config) for client in chosen) for chosen in rounds]
    note(f"{min(steps)} to {max(steps)} SGD steps a round")
    bare: list[float] = []
    train: list[float] = []
    evaluated: list[float] = []
    starts: list[float] = []
    exits: list[float] = []
    peaks: dict[int, int] = {}

    def sample(tree: ProcessTree) -> None:
        for pid, peak in tree.actors().items():
            peaks[pid] = max(peak, peaks.get(pid, 0))

    with BarePool(config, options.processes) as pool:
        for repeat in range(1, options.repeats + 1):
            note(f"repeat {repeat} of {options.repeats}: bare loop")
            seconds, vector = pool.train(strategy, rounds)
            bare += seconds[1:]
            for every, into in ((0, train), (1, evaluated)):
                note(f"repeat {repeat} of {options.repeats}: fedpfl run, evaluate-every = {every}")
                run = simulate(settings(options, evaluate_every=every), sample)
                into += [line["seconds" if every else "seconds_train"] for line in run.lines[1:]]
                starts += [run.seconds_to_first_step] if run.seconds_to_first_step is not None else []
                exits.append(run.seconds)
                same_clients(rounds, run)
            difference = distance(vector, run)
    base = statistics.median(bare)

    def row(who: str, seconds: list[float], goal: str) -> list[str]:
        middle = statistics.median(seconds)
        return [who, f"{middle:.2f}", f"{min(seconds):.2f} … {max(seconds):.2f}", f"{middle / base:.3f}", goal]

    print(
        table(
            ["who", "s / round (median)", "least … most", "of the bare loop", "goal"],
            [
                row(f"bare PyTorch loop, {options.processes} processes × 1 thread", bare, ""),
                row("fedpfl, training", train, f"≤ {GOAL_TRAIN}"),
                row(
                    f"fedpfl, training and evaluation of all {options.clients} clients", evaluated, f"≤ {GOAL_EVALUATE}"
                ),
            ],
        )
    )
    print()
    memory = ", ".join(f"{peak / MIB:.0f}" for peak in sorted(peaks.values())) or "unknown (no /proc)"
    start = f"{statistics.median(starts):.1f}" if starts else "unknown"
    print(
        table(
            ["what", "value", "goal"],
            [
                ["seconds from the command to the first client's first step (median)", start, f"≤ {GOAL_START:g}"],
                ["seconds of a whole `fedpfl run` (median)", f"{statistics.median(exits):.1f}", ""],
                ["peak resident memory of each actor, MiB (Linux: VmHWM)", memory, ""],
                ["distance of the two final models, relative", f"{difference:.1e}", ""],
            ],
        )
    )
    print(
        f"\nWork: FedAvg's CNN, {options.dataset}, {len(rounds[0])} of {options.clients} clients, batch "
        f"{options.batch_size}, {options.epochs} epochs, {statistics.median(steps[1:]):g} SGD steps a round; "
        f"{options.repeats} times {options.rounds} rounds each, after one that does not count.\n"
        "First step: when metrics.jsonl got its first line, less that round's seconds."
    )
    print(footer(options.seed))


def settings(options: argparse.Namespace, evaluate_every: int) -> dict[str, Any]:
    """Return the settings of the run to measure."""
    return {
        "method": "fedavg", "model": "fedavg-cnn", "dataset": options.dataset, "data-dir": data_dir(options.data_dir),
        "num-clients": options.clients, "fraction-train": options.fraction, "num-server-rounds": options.rounds + 1,
        "evaluate-every": evaluate_every, "seed": options.seed, "partitioner": options.partitioner, "split": "mixed",
        "test-fraction": 13 / 70, "local-epochs": options.epochs, "batch-size": options.batch_size,
        "optimizer": "sgd", "learning-rate": options.learning_rate, "momentum": 0.0, "weight-decay": 0.0,
    }  # fmt: skip


def make_strategy(config: Config, data: FederatedData) -> PersonalisedStrategy:
    """Return the strategy of the run, which chooses the clients and holds the initial weights."""
    _, partition = assemble(config, data.input_shape, data.num_classes)
    clients = [Client(i, i, *data.sizes(i)) for i in range(data.num_clients)]
    aggregation = config.method.aggregation
    rule = strategies()[aggregation.rule]
    return rule(clients, partition.layout, partition.get_shared(), config.run, "benchmark", **aggregation.options)


def steps_of(client: Client, config: Config) -> int:
    """Return the SGD steps of a client's round."""
    return config.training.local_epochs * -(-client.train_samples // config.training.batch_size)


def same_clients(rounds: list[list[Client]], run: Run) -> None:
    """Make sure that the run trained the clients that the bare loop trains."""
    if [line["clients"] for line in run.lines] != [[client.id for client in chosen] for chosen in rounds]:
        raise BenchmarkError("fedpfl trained other clients than the bare loop; the comparison would not be fair")


def distance(vector: Tensor, run: Run) -> float:
    """Return ‖a − b‖ / ‖b‖ of the bare loop's final model and fedpfl's."""
    theirs = torch.cat([array.reshape(-1) for array in run.in_order()])
    return float((vector - theirs).norm() / theirs.norm())


# -- the bare loop ---------------------------------------------------------------------------------------------------


class BarePool:
    """Processes that train clients; started and warmed before anything is timed.

    Parameters
    ----------
    config : Config
        The run's settings.
    processes : int
        How many.
    """

    def __init__(self, config: Config, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._tasks: Any = context.Queue()
        self._done: Any = context.Queue()
        probe = sum(p.numel() for p in cnn(1, 10).parameters())
        self._probe = probe
        slots = max(1, round(config.run.fraction_train * config.data.num_clients))
        # The weights that a round starts from, and those that each of its clients ends with.
        self._start = torch.zeros(probe).share_memory_()
        self._ends = torch.zeros(slots, probe).share_memory_()
        shared = (config.flat(), self._tasks, self._done, self._start, self._ends)
        self._workers: list[BaseProcess] = [
            context.Process(target=work, args=shared, daemon=True) for _ in range(processes)
        ]
