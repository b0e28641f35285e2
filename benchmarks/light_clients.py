"""A thousand light clients by `fedpfl run`, beside a straight loop that does the same SGD steps and tests.

All clients train in each round, and all are tested after it: 2,000 exchanges, a request and its reply each, around very
little work. So this measures what an exchange costs. The loop is plain PyTorch: processes with one thread each, which
hold all data in memory, take clients from a counter and add their models up where they are; nothing is sent but the
new model. It trains the same clients from the same weights in the same order of samples.

What an exchange costs beyond the work is (seconds of fedpfl − seconds of the loop) × processes / exchanges: the time of
one core. Part of it is the copying of a training reply's arrays, out of the model, into a pipe and out of it. That is
measured by itself, and subtracted for the last row.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from common import (
    GIB,
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
)
from straight import Processes, distance, load, make_strategy, same_clients, step, steps_of
from torch import Tensor, nn

from fedpfl.core.rng import generator
from fedpfl.core.server_view import Client
from fedpfl.data.federation import FederatedData
from fedpfl.engine.headers import ArrayHeader
from fedpfl.engine.one_process import keep_freed_memory
from fedpfl.engine.pool import enlarge
from fedpfl.engine.worker import receive_array, send_arrays
from fedpfl.setup.config import Config

# Of the straight loop; the time of a core for an exchange beyond work and copies; memory with 1,000 clients.
GOAL_RATIO, GOAL_EXCHANGE_MS, GOAL_GIB = 1.35, 0.25, 1.2
SAMPLE_SECONDS = 0.2
# Rounds of the run whose memory is watched, which takes time from it.
MEMORY_ROUNDS = 2
# Clients that a process of the loop takes at a time.
TAKEN = 5
COPIES = 200


class Halves(NamedTuple):
    """Seconds of a round's training and of its tests."""

    train: float
    test: float


class Score(NamedTuple):
    """What the loop's tests of all clients found."""

    correct: int
    samples: int


def measure(options: argparse.Namespace) -> None:
    """Measure in turn: straight loop, fedpfl, and again; then the memory."""
    config = Config.parse(settings(options, options.rounds + 1))
    note("preparing the data")
    data = FederatedData(config.data, options.clients, options.seed)
    strategy = make_strategy(config, data)
    rounds = [strategy.choose(number) for number in range(1, options.rounds + 2)]
    tested = strategy.rule.participants
    steps = sum(steps_of(client, config) for client in rounds[-1])
    straight: list[Halves] = []
    fedpfl: list[Halves] = []
    whole: list[float] = []
    with StraightLoop(config, data, options.processes) as loop:
        for repeat in range(1, options.repeats + 1):
            note(f"repeat {repeat} of {options.repeats}: straight loop")
            seconds, vector, score = loop.run(strategy.rule.shared, rounds, tested)
            straight += seconds[1:]
            note(f"repeat {repeat} of {options.repeats}: fedpfl run")
            run = simulate(settings(options, options.rounds + 1))
            same_clients(rounds, run)
            fedpfl += [Halves(line["seconds_train"], line["seconds_evaluate"]) for line in run.lines[1:]]
            whole += [run.seconds_a_round] if run.seconds_a_round is not None else []
    note("fedpfl run, its memory")
    memory = peak_memory(settings(options, MEMORY_ROUNDS))
    print(times(straight, fedpfl, options))
    print()
    print(
        table(
            ["what", "value", "goal"],
            [
                *exchanges(
                    straight, fedpfl, len(rounds[-1]), len(tested), len(strategy.rule.shared), options.processes
                ),
                ["s from one round's record to the next one's (median of the runs)", _median(whole), ""],
                memory_row(memory, GOAL_GIB),
                [
                    "distance of the two final models, relative",
                    f"{distance(vector, run, strategy.rule.layout.names):.1e}",
                    "",
                ],
                ["accuracy at the end, straight loop and fedpfl", accuracies(score, run), ""],
            ],
        )
    )
    print(
        f"\nWork: FedAvg, MLP of {len(strategy.rule.shared):,} parameters, {options.dataset}, {len(rounds[-1])} of "
        f"{options.clients} clients, batch {options.batch_size}, {steps} SGD steps a round, {len(tested)} clients "
        f"tested after each; {options.repeats} times {options.rounds} rounds each, after one that does not count."
    )
    print(footer(options.seed))


def settings(options: argparse.Namespace, rounds: int) -> dict[str, Any]:
    """Return the settings of the run to measure."""
    return {
        "method": "fedavg", "model": "mlp", "dataset": options.dataset, "data-dir": data_dir(options.data_dir),
        "num-clients": options.clients, "fraction-train": options.fraction, "num-server-rounds": rounds,
        "evaluate-every": 1, "seed": options.seed, "partitioner": "iid", "local-epochs": 1,
        "batch-size": options.batch_size, "last-batch": "keep", "optimizer": "sgd",
        "learning-rate": options.learning_rate, "momentum": 0.0, "weight-decay": 0.0,
    }  # fmt: skip


def times(straight: Sequence[Halves], fedpfl: Sequence[Halves], options: argparse.Namespace) -> str:
    """Return the table of seconds a round."""
    base = statistics.median(map(sum, straight)), statistics.median(halves.train for halves in straight)

    def row(who: str, measured: Sequence[Halves], goal: str) -> list[str]:
        both = [sum(halves) for halves in measured]
        train = statistics.median(halves.train for halves in measured)
        return [
            who, f"{statistics.median(both):.2f}", f"{min(both):.2f} … {max(both):.2f}",
            f"{statistics.median(both) / base[0]:.2f}", f"{train:.2f}", f"{train / base[1]:.2f}", goal,
        ]  # fmt: skip

    return table(
        [
            "who",
            "s / round with tests (median)",
            "least … most",
            "of the loop",
            "training alone",
            "of the loop",
            "goal",
        ],
        [
            row(f"straight loop, {options.processes} processes × 1 thread", straight, ""),
            row("fedpfl", fedpfl, f"≤ {GOAL_RATIO}"),
        ],
    )


def exchanges(
    straight: Sequence[Halves], fedpfl: Sequence[Halves], trained: int, tested: int, size: int, processes: int
) -> list[list[str]]:
    """Return the rows that say what an exchange costs."""

    def beyond(half: int) -> float:
        return statistics.median(f[half] for f in fedpfl) - statistics.median(s[half] for s in straight)

    train, test = (beyond(half) * processes * 1000 for half in (0, 1))
    copying = copy_seconds(size) * 1000
    both = (train + test - trained * copying) / (trained + tested)
    return [
        ["an exchange beyond the loop's work, training: ms of a core", f"{train / trained:.2f}", ""],
        ["the same, testing", f"{test / tested:.2f}", ""],
        [f"copying a reply's {size * 4 / 1e6:.2f} MB out of the model and through a pipe: ms of a core",
         f"{copying:.2f}", ""],
        ["an exchange beyond work and copies, all of a round: ms of a core", f"{both:.2f}", f"≤ {GOAL_EXCHANGE_MS}"],
    ]  # fmt: skip


def copy_seconds(size: int) -> float:
    """Return the processor time of both ends for copying a vector of float32 once, into a pipe and out of it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    sender = context.Process(target=_send, args=(theirs, size), daemon=True)
    sender.start()
    theirs.close()
    keep_freed_memory()
    listed = ArrayHeader("vector", 0, "<f4", (size,), True)
    receive_array(ours, listed)
    begun = time.process_time()
    for _ in range(COPIES):
        receive_array(ours, listed)
    ours_took = time.process_time() - begun
    sent = float(ours.recv())
    sender.join()
    return (ours_took + sent) / COPIES


def _send(pipe: Connection, size: int) -> None:
    enlarge(pipe)
    keep_freed_memory()
    model, vector = np.ones(size, np.float32), np.zeros(size, np.float32)
    send_arrays(pipe, [vector])
    begun = time.process_time()
    for _ in range(COPIES):
        np.copyto(vector, model)
        send_arrays(pipe, [vector])
    pipe.send(time.process_time() - begun)


def peak_memory(values: dict[str, Any]) -> tuple[int, int, bool]:
    """Return (peak memory of a run's processes together in bytes, processes then, whether shared pages count once)."""
    peak, processes, proportional = 0, 0, True

    def sample(tree: ProcessTree) -> None:
        nonlocal peak, processes, proportional
        resident, all_proportional = tree.resident()
        proportional = proportional and all_proportional
        if resident > peak:
            peak, processes = resident, len(tree.members)

    simulate(values, sample, SAMPLE_SECONDS)
    return peak, processes, proportional


def memory_row(measured: tuple[int, int, bool], goal: float) -> list[str]:
    """Return the row of a table that says it."""
    peak, processes, proportional = measured
    kind = "PSS, shared pages counted once" if proportional else "RSS, shared pages counted in every process"
    value = f"{peak / GIB:.2f}" if peak else "unknown (no /proc)"
    return [f"peak memory of all {processes or ''} processes, GiB ({kind})", value, f"≤ {goal:g}"]


def accuracies(score: Score, run: Run) -> str:
    """Return the share of all test samples that the loop's and fedpfl's final models classify correctly."""
    return f"{100 * score.correct / score.samples:.2f} %, {100 * run.lines[-1]['personalised']['weighted']:.2f} %"


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "unknown"


# -- the straight loop -----------------------------------------------------------------------------------------------


class StraightLoop:
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
        size = sum(p.numel() for p in mlp(int(np.prod(data.input_shape)), data.num_classes).parameters())
        self._shared = Shared(
            _zeros(size),
            _zeros(processes, size),
            _zeros(processes, 2),
            multiprocessing.get_context("spawn").Value("l", 0),
        )
        self._count = processes
        self._processes = Processes(processes, work, (config.flat(), self._shared))

    def __enter__(self) -> StraightLoop:
        """Start the processes."""
        self._processes.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        """End the processes."""
        self._processes.__exit__(*error)

    def run(
        self,
        initial: np.ndarray,
        rounds: Sequence[Sequence[Client]],
        tested: Sequence[Client],
        test_every: int = 1,
    ) -> tuple[list[Halves], Tensor, Score]:
        """Train and test all rounds; return the seconds of each, the final weights and their score.

        Parameters
        ----------
        initial : ndarray of float32
            The weights to start from.
        rounds : sequence of sequence of Client
            Who trains in each.
        tested : sequence of Client
            Who is tested.
        test_every : int
            After how many rounds.
        """
        start, sums, scores, _ = self._shared
        start.copy_(torch.from_numpy(initial))
        seconds = []
        for number, chosen in enumerate(rounds, 1):
            begun = time.perf_counter()
            self._all(True, number, chosen)
            torch.div(sums.sum(0), sum(client.train_samples for client in chosen), out=start)
            trained = time.perf_counter()
            if number % test_every == 0:
                self._all(False, number, tested)
            seconds.append(Halves(trained - begun, time.perf_counter() - trained))
        correct, samples = scores.sum(0).long().tolist()
        return seconds, start.clone(), Score(correct, samples)

    def _all(self, train: bool, number: int, clients: Sequence[Client]) -> None:
        self._shared.taken.value = 0
        ids = [client.id for client in clients]
        self._processes.do([(train, number, ids, slot) for slot in range(self._count)])


class Shared(NamedTuple):
    """What the processes share.

    Attributes
    ----------
    start : Tensor, shape (size,)
        The weights of the round.
    sums : Tensor, shape (processes, size)
        For each process the sum of its clients' weights, each times its training samples.
    scores : Tensor, shape (processes, 2)
        For each process its test samples that were classified correctly, and all of them.
    taken : multiprocessing.Value
        How many of the round's clients are taken.
    """

    start: Tensor
    sums: Tensor
    scores: Tensor
    taken: Any


def work(values: dict[str, Any], shared: Shared, tasks: Any, done: Any) -> None:
    """Be one of the loop's processes."""
    try:
        torch.set_num_threads(1)
        config = Config.parse(values)
        clients = Clients(config)
        clients.warm_up()
        done.put("")
        for train, number, ids, slot in iter(tasks.get, None):
            mine = _taken(ids, shared.taken)
            if train:
                clients.train(mine, number, shared.start, shared.sums[slot])
            else:
                shared.scores[slot] = clients.test(mine, shared.start)
            done.put("")
    except KeyboardInterrupt:
        pass
    except Exception as error:  # noqa: BLE001 (said by the parent in one line)
        done.put(f"{type(error).__name__}: {error}")


class Clients:
    """All clients' data, and the model that plays one after the other."""

    def __init__(self, config: Config) -> None:
        data = FederatedData(config.data, config.data.num_clients, config.run.seed, cache_bytes=0)
        self._train = [_flat(*data.train(i)) for i in range(data.num_clients)]
        self._test = [_flat(*data.test(i)) for i in range(data.num_clients)]
        self._model = mlp(int(np.prod(data.input_shape)), data.num_classes)
        self._params: list[Tensor] = list(self._model.parameters())
        self._size, self._rate, self._seed = config.training.batch_size, config.training.learning_rate, config.run.seed

    def warm_up(self) -> None:
        """Train some clients."""
        for x, y in self._train[:20]:
            step(self._model, self._params, x, y, self._rate)

    def train(self, clients: Any, number: int, start: Tensor, into: Tensor) -> None:
        """Train clients for one epoch each from ``start``; write Σ samples × weights into ``into``."""
        into.zero_()
        sums = torch.split(into, [p.numel() for p in self._params])
        for client in clients:
            x, y = self._train[client]
            load(self._params, start)
            order = torch.from_numpy(generator(self._seed, "batches", client, number, 0).permutation(len(y)))
            for inputs, labels in zip(x[order].split(self._size), y[order].split(self._size), strict=True):
                step(self._model, self._params, inputs, labels, self._rate)
            with torch.no_grad():
                for total, p in zip(sums, self._params, strict=True):
                    total.add_(p.reshape(-1), alpha=len(y))

    @torch.no_grad()
    def test(self, clients: Any, start: Tensor) -> Tensor:
        """Return the samples that are classified correctly, and all of them."""
        load(self._params, start)
        correct = samples = 0
        loss_sum = 0.0
        for client in clients:
            x, y = self._test[client]
            logits = self._model(x)
            correct += int((logits.argmax(1) == y).sum())
            loss_sum += float(nn.functional.cross_entropy(logits, y, reduction="sum"))
            samples += len(y)
        return torch.tensor([correct, samples])


def mlp(features: int, classes: int) -> nn.Module:
    """Return the MLP with two hidden layers of 200 units."""
    return nn.Sequential(
        nn.Linear(features, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, classes)
    )  # fmt: skip


def _taken(ids: Sequence[int], counter: Any) -> Any:
    while True:
        with counter.get_lock():
            first = counter.value
            counter.value = first + TAKEN
        if first >= len(ids):
            return
        yield from ids[first : first + TAKEN]


def _flat(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.reshape(len(x), -1).contiguous(), y


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape).share_memory_()  # type: ignore[no-any-return, no-untyped-call]


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="light_clients.py", description=__doc__.partition("\n")[0])
    add_data_options(parser, "mnist")
    parser.add_argument("--clients", type=count, default=1000, help="clients of the federation (%(default)s)")
    parser.add_argument("--fraction", type=float, default=1.0, help="share of them in a round (%(default)s)")
    parser.add_argument("--rounds", type=count, default=4, help="rounds to measure, after one more (%(default)s)")
    parser.add_argument("--repeats", type=count, default=3, help="how often all is measured in turn (%(default)s)")
    parser.add_argument("--batch-size", type=count, default=20, help="samples in a batch (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=0.05, help="of SGD without momentum (%(default)s)")
    parser.add_argument(
        "--processes", type=count, default=cores(), help="of the straight loop; all cores (%(default)s)"
    )
    return parser


if __name__ == "__main__":
    main(measure, arguments())
