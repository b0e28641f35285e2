"""What the loops without a framework have in common: their processes, and that they do the work that fedpfl does."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from common import BenchmarkError, Run, note
from torch import Tensor, nn

from fedpfl.core.server_view import Client
from fedpfl.data.federation import FederatedData
from fedpfl.engine.rounds import RoundLoop
from fedpfl.setup.assembly import assemble, make_rule
from fedpfl.setup.config import Config


class Processes:
    """Processes that work on tasks; started and warm before anything is timed, idle between the rounds.

    Parameters
    ----------
    count : int
        How many.
    work : callable
        The main function of a process. It gets ``shared``, then the queue of tasks (None: there are no more) and the
        queue of answers: an empty text when it is warm and for each finished task, or why it failed.
    shared : sequence
        What all of them get.
    """

    def __init__(self, count: int, work: Callable[..., None], shared: Sequence[Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._tasks: Any = context.Queue()
        self._done: Any = context.Queue()
        arguments = (*shared, self._tasks, self._done)
        self._workers = [context.Process(target=work, args=arguments, daemon=True) for _ in range(count)]

    def __len__(self) -> int:
        """Return the number of processes."""
        return len(self._workers)

    def __enter__(self) -> Processes:
        """Start the processes and wait until they are warm."""
        note("starting the loop's processes")
        for worker in self._workers:
            worker.start()
        self._wait(len(self._workers))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes."""
        for _ in self._workers:
            self._tasks.put(None)
        for worker in self._workers:
            worker.join(10)
            if worker.is_alive():
                worker.terminate()

    def do(self, tasks: Sequence[Any]) -> None:
        """Hand out tasks and wait until all of them are done.

        Raises
        ------
        BenchmarkError
            One failed, or a process has ended.
        """
        for task in tasks:
            self._tasks.put(task)
        self._wait(len(tasks))

    def _wait(self, answers: int) -> None:
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


def same_clients(rounds: Sequence[Sequence[Client]], run: Run) -> None:
    """Make sure that the run trained the clients that the straight loop trains."""
    if [line["clients"] for line in run.lines] != [[client.id for client in chosen] for chosen in rounds]:
        raise BenchmarkError("fedpfl trained other clients than the straight loop; the comparison would not be fair")


def distance(vector: Tensor, run: Run, names: Sequence[str]) -> float:
    """Return ‖a − b‖ / ‖b‖ of the straight loop's final model and fedpfl's."""
    theirs = torch.cat([run.arrays[name].reshape(-1) for name in names])
    return float((vector - theirs).norm() / theirs.norm())


def step(model: nn.Module, params: list[Tensor], x: Tensor, y: Tensor, learning_rate: float) -> None:
    """Do one step of SGD without momentum."""
    grads = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), params)
    with torch.no_grad():
        torch._foreach_add_(params, grads, alpha=-learning_rate)


@torch.no_grad()
def load(params: list[Tensor], flat: Tensor) -> None:
    """Load a flat vector into the parameters."""
    for p, values in zip(params, torch.split(flat, [p.numel() for p in params]), strict=True):
        p.copy_(values.view(p.shape))
