"""A round of FedAvg by `fedpfl run`, beside a bare PyTorch loop that does the identical SGD steps.

The work is the reference work of ``docs/results/performance.md``: FedAvg's CNN on images of 28x28 pixels, 4 of 20
clients a round, batches of 20, 5 epochs, SGD without momentum. The bare loop is written straight, without
``fedpfl.training``, with all that is known to help on a CPU: a process for every core, one thread each, channels_last,
ReLU behind max-pooling, a tensor for each client gathered by a permutation, ``torch.autograd.grad`` and a call for the
whole SGD step, longest client first. It trains the same clients from the same weights in the same order of samples
and averages them, so that both end with the same model, up to rounding; the distance is printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from common import (
    MIB,
    BenchmarkError,
    ProcessTree,
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
from straight import Processes, distance, load, make_strategy, same_clients, step, steps_of
from torch import Tensor, nn

from fedpfl.core.rng import generator
from fedpfl.core.server_view import Client
from fedpfl.data.federation import FederatedData
from fedpfl.engine.rounds import RoundLoop
from fedpfl.setup.config import Config

# Looking through all processes takes time from the training that is measured.
SAMPLE_SECONDS = 5.0
# A training round, a round with evaluation, both as multiples of the bare loop; seconds until the first step.
GOAL_TRAIN, GOAL_EVALUATE, GOAL_START = 1.02, 1.08, 3.0


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
    # By run and process: a peak only grows, so the last look has it.
    peaks: dict[tuple[int, int], int] = {}

    def sample(tree: ProcessTree) -> None:
        peaks.update({(len(exits), pid): peak for pid, peak in tree.workers().items()})

    with BareLoop(config, data, options.processes) as loop:
        for repeat in range(1, options.repeats + 1):
            note(f"repeat {repeat} of {options.repeats}: bare loop")
            seconds, vector = loop.train(strategy, rounds)
            bare += seconds[1:]
            for every, into in ((0, train), (1, evaluated)):
                note(f"repeat {repeat} of {options.repeats}: fedpfl run, evaluate-every = {every}")
                run = simulate(settings(options, evaluate_every=every), sample, SAMPLE_SECONDS)
                into += [line["seconds" if every else "seconds_train"] for line in run.lines[1:]]
                starts += [run.seconds_to_first_step] if run.seconds_to_first_step is not None else []
                exits.append(run.seconds)
                same_clients(rounds, run)
            difference = distance(vector, run, strategy.rule.layout.names)
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
    memory = f"{min(peaks.values()) / MIB:.0f} … {max(peaks.values()) / MIB:.0f}" if peaks else "unknown (no /proc)"
    start = f"{statistics.median(starts):.1f}" if starts else "unknown"
    print(
        table(
            ["what", "value", "goal"],
            [
                ["seconds from the command to the first client's first step (median)", start, f"≤ {GOAL_START:g}"],
                ["seconds of a whole `fedpfl run` (median)", f"{statistics.median(exits):.1f}", ""],
                ["peak resident memory of a worker, MiB (VmHWM), least … most", memory, ""],
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
        "last-batch": "keep", "optimizer": "sgd", "learning-rate": options.learning_rate, "momentum": 0.0,
        "weight-decay": 0.0,
    }  # fmt: skip


# -- the bare loop ---------------------------------------------------------------------------------------------------


class BareLoop:
    """The loop, a context manager.

    Parameters
    ----------
    config : Config
        The run's settings.
    data : FederatedData
        The clients' data; each process prepares its own copy.
    processes : int
        How many.
    """

    def __init__(self, config: Config, data: FederatedData, processes: int) -> None:
        size = sum(p.numel() for p in cnn(data.input_shape[0], data.num_classes).parameters())
        slots = max(1, round(config.run.fraction_train * data.num_clients))
        # The weights that a round starts from, and those that each of its clients ends with.
        self._start: Tensor = torch.zeros(size).share_memory_()  # type: ignore[no-untyped-call]
        self._ends: Tensor = torch.zeros(slots, size).share_memory_()  # type: ignore[no-untyped-call]
        self._processes = Processes(processes, work, (config.flat(), self._start, self._ends))

    def __enter__(self) -> BareLoop:
        """Start the processes."""
        self._processes.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End the processes."""
        self._processes.__exit__(*error)

    def train(self, strategy: RoundLoop, rounds: list[list[Client]]) -> tuple[list[float], Tensor]:
        """Train all rounds from the strategy's initial weights; return the seconds of each and the final weights."""
        self._start.copy_(torch.from_numpy(strategy.rule.shared))
        seconds = []
        for number, chosen in enumerate(rounds, 1):
            begun = time.perf_counter()
            slots = sorted(range(len(chosen)), key=lambda slot: -chosen[slot].train_samples)
            self._processes.do([(slot, chosen[slot].id, number) for slot in slots])
            weights = torch.tensor([client.train_samples for client in chosen], dtype=torch.float32)
            self._start.copy_((weights / weights.sum()) @ self._ends[: len(chosen)])
            seconds.append(time.perf_counter() - begun)
        return seconds, self._start.clone()


def work(values: dict[str, Any], start: Tensor, ends: Tensor, tasks: Any, done: Any) -> None:
    """Be one of the bare loop's processes."""
    try:
        torch.set_num_threads(1)
        config = Config.parse(values)
        training, seed = config.training, config.run.seed
        data = FederatedData(config.data, config.data.num_clients, seed, cache_bytes=2**62)
        clients = [data.train(i) for i in range(data.num_clients)]
        model = cnn(data.input_shape[0], data.num_classes)
        params: list[Tensor] = list(model.parameters())
        some = clients[0]
        for inputs, labels in batches(some.x, some.y, training.batch_size, torch.arange(len(some.y))):
            step(model, params, inputs, labels, training.learning_rate)
        done.put("")
        for slot, client, number in iter(tasks.get, None):
            x, y = clients[client]
            load(params, start)
            rng = generator(seed, "batches", client, number, 0)
            for _ in range(training.local_epochs):
                order = torch.from_numpy(rng.permutation(len(y)))
                for inputs, labels in batches(x, y, training.batch_size, order):
                    step(model, params, inputs, labels, training.learning_rate)
            torch.cat([p.detach().reshape(-1) for p in params], out=ends[slot])
            done.put("")
    except KeyboardInterrupt:
        pass
    except Exception as error:  # noqa: BLE001 (said by the parent in one line)
        done.put(f"{type(error).__name__}: {error}")


def cnn(channels: int, classes: int) -> nn.Module:
    """Return FedAvg's CNN for images of 28x28 pixels, channels_last."""
    model = nn.Sequential(
        nn.Conv2d(channels, 32, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip
    return model.to(memory_format=torch.channels_last)


def batches(x: Tensor, y: Tensor, size: int, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Gather an epoch once (n × H × W × C in memory, whole samples) and cut it into batches."""
    gathered = x.permute(0, 2, 3, 1)[order].permute(0, 3, 1, 2)
    return zip(torch.split(gathered, size), torch.split(y[order], size), strict=True)


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="round.py",
        description="A round of FedAvg by `fedpfl run`, beside a bare PyTorch loop with the same SGD steps.",
    )
    add_data_options(parser, "fashion-mnist")
    parser.add_argument("--rounds", type=count, default=4, help="rounds to measure, after one more (%(default)s)")
    parser.add_argument("--repeats", type=count, default=2, help="how often all is measured in turn (%(default)s)")
    parser.add_argument("--clients", type=count, default=20, help="clients of the federation (%(default)s)")
    parser.add_argument("--fraction", type=float, default=0.2, help="share of them in a round (%(default)s)")
    parser.add_argument("--partitioner", default="iid", help="how the data are divided (%(default)s)")
    parser.add_argument("--epochs", type=count, default=5, help="epochs of a client in a round (%(default)s)")
    parser.add_argument("--batch-size", type=count, default=20, help="samples in a batch (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="of SGD without momentum (%(default)s)")
    parser.add_argument("--processes", type=count, default=cores(), help="of the bare loop; all cores (%(default)s)")
    return parser


if __name__ == "__main__":
    main(measure, arguments())
