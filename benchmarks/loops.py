"""A straight PyTorch loop that does the rounds of a run of FedAvg: what a simulator is compared with.

It is written without fedpfl's training, with all that is known to help on a CPU: a process for every core, one thread
each, all data in memory, channels_last, ReLU behind max-pooling, a tensor for each client gathered by a permutation,
``torch.autograd.grad`` and a call for the whole SGD step. A process takes clients from a counter, the longest first,
and adds their models up where they are; nothing is sent but the new model. It trains the clients that the run trains,
from the same weights, in the same order of samples, so both end with the same model, up to rounding.
"""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from common import BenchmarkError, Run, note
from torch import Tensor, nn
from work import model

from fedpfl.core.rng import generator
from fedpfl.core.server_view import Client
from fedpfl.data.federation import FederatedData
from fedpfl.engine.rounds import RoundLoop
from fedpfl.setup.assembly import assemble, make_rule
from fedpfl.setup.config import Config

MODELS = {"fedavg-cnn": "cnn", "mlp": "mlp"}


class Halves(NamedTuple):
    """Seconds of a round's training and of its tests."""

    train: float
    test: float


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


class Loop:
    """The loop, a context manager: its processes are warm before anything is timed, and idle between the rounds."""

    def __init__(self, config: Config, data: FederatedData, processes: int) -> None:
        size = sum(p.numel() for p in model(MODELS[config.run.model]).parameters())
        context = multiprocessing.get_context("spawn")
        self._shared = Shared(_zeros(size), _zeros(processes, size), _zeros(processes, 2), context.Value("l", 0))
        self._tasks: Any = context.Queue()
        self._done: Any = context.Queue()
        arguments = (config.flat(), self._shared, self._tasks, self._done)
        self._workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(processes)]

    def __enter__(self) -> Loop:
        """Start the processes and wait until they are warm."""
        note("starting the loop's processes")
        for worker in self._workers:
            worker.start()
        self._wait()
        return self

    def __exit__(self, *error: Any) -> None:
        """End the processes."""
        for _ in self._workers:
            self._tasks.put(None)
        for worker in self._workers:
            worker.join(10)
            if worker.is_alive():
                worker.terminate()

    def run(
        self, initial: np.ndarray, rounds: Sequence[Sequence[Client]], tested: Sequence[Client]
    ) -> tuple[list[Halves], Tensor, float]:
        """Train all rounds, each of its clients, and test clients after each.

        Returns
        -------
        tuple
            The seconds of each round, the final weights, and their accuracy on all test samples.

        Raises
        ------
        BenchmarkError
            A process failed.
        """
        start, sums, scores, _ = self._shared
        start.copy_(torch.from_numpy(initial))
        seconds = []
        for number, chosen in enumerate(rounds, 1):
            begun = time.perf_counter()
            self._all(True, number, sorted(chosen, key=lambda client: -client.train_samples))
            torch.div(sums.sum(0), sum(client.train_samples for client in chosen), out=start)
            trained = time.perf_counter()
            self._all(False, number, tested)
            seconds.append(Halves(trained - begun, time.perf_counter() - trained))
        correct, samples = scores.sum(0).tolist()
        return seconds, start.clone(), correct / samples

    def _all(self, train: bool, number: int, clients: Sequence[Client]) -> None:
        self._shared.taken.value = 0
        ids = [client.id for client in clients]
        for slot in range(len(self._workers)):
            self._tasks.put((train, number, ids, slot))
        self._wait()

    def _wait(self) -> None:
        answers = len(self._workers)
        while answers:
            try:
                reason = self._done.get(timeout=1)
            except queue.Empty:
                if all(worker.is_alive() for worker in self._workers):
                    continue
                reason = "it ended"
            if reason:
                raise BenchmarkError(f"a process of the straight loop failed: {reason}")
            answers -= 1


def make_strategy(config: Config, data: FederatedData) -> RoundLoop:
    """Return the strategy of the run, which chooses the clients and holds the initial weights."""
    _, sharing = assemble(config, data.input_shape, data.num_classes)
    clients = [Client(i, *data.sizes(i)) for i in range(data.num_clients)]
    return RoundLoop(make_rule(config, clients, sharing), config.run, "benchmark")


def steps_of(client: Client, config: Config) -> int:
    """Return the SGD steps of a client in a round with ``last-batch = "keep"``."""
    return int(config.training.local_epochs) * -(-client.train_samples // int(config.training.batch_size))


def distance(vector: Tensor, run: Run, names: Sequence[str]) -> float:
    """Return ‖a − b‖ / ‖b‖ of the straight loop's final model and fedpfl's."""
    theirs = torch.cat([run.arrays[name].reshape(-1) for name in names])
    return float((vector - theirs).norm() / theirs.norm())


# -- a process of the loop -------------------------------------------------------------------------------------------


def _work(values: dict[str, Any], shared: Shared, tasks: Any, done: Any) -> None:
    """Be one of the loop's processes: answer an empty text when warm and for each task, or why it failed."""
    try:
        torch.set_num_threads(1)
        clients = Clients(Config.parse(values))
        clients.train(range(2), 0, shared.start, shared.sums[0].clone())
        done.put("")
        for train, number, ids, slot in iter(tasks.get, None):
            # So few at a time that all processes end together, and so many that the counter is no matter.
            mine = _taken(ids, shared.taken, max(1, len(ids) // (50 * len(shared.sums))))
            if train:
                shared.sums[slot].zero_()
                clients.train(mine, number, shared.start, shared.sums[slot])
            else:
                clients.load(shared.start)
                shared.scores[slot] = clients.test(mine)
            done.put("")
    except KeyboardInterrupt:
        pass
    except Exception as error:  # noqa: BLE001 (said by the parent in one line)
        done.put(f"{type(error).__name__}: {error}")


class Clients:
    """All clients' data, and the model that plays one after the other."""

    def __init__(self, config: Config) -> None:
        data = FederatedData(config.data, config.data.num_clients, config.run.seed, cache_bytes=2**62)
        clients = range(data.num_clients)
        self._train, self._test = [data.train(i) for i in clients], [data.test(i) for i in clients]
        self._model = model(MODELS[config.run.model])
        self._params: list[Tensor] = list(self._model.parameters())
        self._settings, self._seed = config.training, config.run.seed

    def train(self, clients: Any, number: int, start: Tensor, into: Tensor) -> None:
        """Train clients from ``start``; add Σ samples × weights to ``into``."""
        sums, size = torch.split(into, [p.numel() for p in self._params]), self._settings.batch_size
        for client in clients:
            x, y = self._train[client]
            self.load(start)
            rng = generator(self._seed, "batches", client, number, 0)
            for _ in range(self._settings.local_epochs):
                order = torch.from_numpy(rng.permutation(len(y)))
                # Gathered once an epoch, whole samples: n × H × W × C in memory.
                gathered = x.permute(0, 2, 3, 1)[order].permute(0, 3, 1, 2)
                for inputs, labels in zip(gathered.split(size), y[order].split(size), strict=True):
                    grads = torch.autograd.grad(nn.functional.cross_entropy(self._model(inputs), labels), self._params)
                    with torch.no_grad():
                        torch._foreach_add_(self._params, grads, alpha=-self._settings.learning_rate)
            with torch.no_grad():
                for total, p in zip(sums, self._params, strict=True):
                    total.add_(p.reshape(-1), alpha=len(y))

    @torch.no_grad()
    def test(self, clients: Any) -> Tensor:
        """Return the samples that are classified correctly, and all of them; losses are computed as in a run."""
        correct = samples = 0
        loss_sum = 0.0
        for client in clients:
            x, y = self._test[client]
            logits = self._model(x)
            correct += int((logits.argmax(1) == y).sum())
            loss_sum += float(nn.functional.cross_entropy(logits, y, reduction="sum"))
            samples += len(y)
        return torch.tensor([correct, samples])

    @torch.no_grad()
    def load(self, start: Tensor) -> None:
        """Put weights into the model."""
        for p, values in zip(self._params, torch.split(start, [p.numel() for p in self._params]), strict=True):
            p.copy_(values.view(p.shape))


def _taken(ids: Sequence[int], counter: Any, count: int) -> Iterator[int]:
    while True:
        with counter.get_lock():
            first = counter.value
            counter.value = first + count
        if first >= len(ids):
            return
        yield from ids[first : first + count]


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(*shape).share_memory_()  # type: ignore[no-any-return, no-untyped-call]
