"""Has worker processes run the clients of the simulation: who is asked when, and what if one of them dies.

Requests go to the workers through pipes, the vector that all clients share once a round and not once a client. A worker
keeps data and model.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ..client.engine import Engine
from ..core.errors import FedpflError
from ..core.payload import Payload
from ..core.settings import Value
from ..rules.running_mean import group_size
from ..setup.config import Config
from .client_runner import Answer, ClientFailure, engine_here, trains_together
from .slots import MAX_BYTES, MAX_SLOTS, arrays_of
from .transport import TRAIN, Request
from .worker import Head
from .worker_pool import WorkerDeath, WorkerPool, same_arrays

# How many replies may wait for their turn, so that a thousand large models are never in memory together.
WAITING_BYTES = 128 * 2**20
# Shared arrays that a worker sends at once where it trains clients as a batch.
BATCH_BYTES = 2**30
# How often a client is asked again whose worker died.
MAX_REPEATS = 2


class WorkerProcesses:
    """Runs the clients in ``workers`` processes; with ``fork`` they have the ``engine``, else each makes one."""

    def __init__(
        self, config: Config, engine: Engine, workers: int, fork: bool, printed: Callable[[int, str], None]
    ) -> None:
        self._config, self._engine, self._fork, self._printed = config, engine, fork, printed
        self._together = trains_together(config)
        self.workers = workers
        self._pool: WorkerPool | None = None
        self._largest: dict[str, int] = {}

    def close(self) -> None:
        """End the workers, whatever they do."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def run(self, requests: Sequence[Request]) -> Iterator[list[Answer]]:
        """Yield the clients' answers in client order, those that a worker has run together in one list.

        One whose worker dies has its clients asked one by one.
        """
        if not requests:
            return
        together = self._together
        size = -(-len(requests) // self.workers) if together else group_size(len(requests))
        if together or requests[0].kind == TRAIN:  # tests send no arrays
            each = 4 * max(1, self._engine.sharing.layout.size)
            size = max(1, min(size, (BATCH_BYTES if together else MAX_BYTES // MAX_SLOTS) // each))
        in_order = sorted(range(len(requests)), key=lambda place: requests[place].client.id)
        parts = [in_order[start : start + size] for start in range(0, len(in_order), size)]
        yield from self._run_groups([[requests[place] for place in part] for part in parts], [*map(min, parts)])

    def _run_groups(self, groups: Sequence[Sequence[Request]], ranks: Sequence[int]) -> Iterator[list[Answer]]:
        """Have the workers run groups, the lowest rank first, and yield the answers of each, in the groups' order."""
        pool, kind = self._started_pool(), groups[0][0].kind
        pool.forget()
        ranked = zip(ranks, groups, strict=True)
        by_client = {request.client.id: (rank, request) for rank, group in ranked for request in group}
        # Groups whose turn comes soon, and clients of them that are asked alone: (rank, first client, requests).
        ready: list[tuple[int, int, Sequence[Request]]] = []
        opened = done = 0
        payloads: dict[int, Payload] = {}
        repeats: dict[int, int] = {}
        arrived: dict[int, Payload | ClientFailure] = {}
        while done < len(groups):
            while opened < min(len(groups), done + self._window(kind)):
                heapq.heappush(ready, (ranks[opened], groups[opened][0].client.id, groups[opened]))
                opened += 1
            while ready and (worker := pool.free()) is not None:
                part = ready[0][2]
                for request in part:
                    if request.client.id not in payloads:
                        payloads[request.client.id] = request.make()
                messages = [payloads[request.client.id] for request in part]
                if not self._together and not same_arrays(messages):
                    _, _, part = heapq.heappop(ready)
                    for request in part:
                        heapq.heappush(ready, _alone(by_client, request.client.id))
                    continue
                if not pool.ask(worker, [request.client for request in part], kind, messages):
                    break
                heapq.heappop(ready)
            for event in pool.look():
                if isinstance(event, WorkerDeath):
                    first, alone = event.clients[0], len(event.clients) == 1
                    if not event.how:
                        requests = [by_client[number][1] for number in event.clients]
                        heapq.heappush(ready, (by_client[first][0], first, requests))
                        continue
                    # Which one of several it was will show.
                    repeats[first] = repeats.get(first, 0) + alone
                    if alone and repeats[first] > MAX_REPEATS:
                        arrived[first] = ClientFailure(first, f"its worker process {event.how}, {repeats[first]} times")
                        del payloads[first]
                        continue
                    for number in event.clients:
                        heapq.heappush(ready, _alone(by_client, number))
                    continue
                self._note(kind, event.arrays)
                for reply in event.replies:
                    del payloads[reply.client]
                    if isinstance(reply, Head):
                        arrays = arrays_of(reply.client, event.arrays, len(event.replies))
                        arrived[reply.client] = Payload(dict(reply.config), reply.metrics, arrays)
                    else:
                        arrived[reply.client] = reply
                del event  # its arrays, once its replies have been taken
            while done < len(groups) and all(request.client.id in arrived for request in groups[done]):
                yield [Answer(request.client, arrived.pop(request.client.id)) for request in groups[done]]
                done += 1

    def _started_pool(self) -> WorkerPool:
        if self._pool is None:
            # What there is by now stays: collections need not look at it, in the workers either.
            gc.freeze()
            try:
                self._pool = WorkerPool(self.workers, self._maker, self._fork, self._printed)
            except OSError as error:
                reason = f"{self.workers} worker processes cannot be started ({error.strerror}); use fewer workers"
                raise FedpflError(reason) from error
        return self._pool

    def _window(self, kind: str) -> int:
        """Return how many groups may run, or have run, before the turn of the first of them."""
        least = 4 * self.workers
        if kind not in self._largest:
            return least
        return max(least, WAITING_BYTES // max(1, self._largest[kind]))

    def _note(self, kind: str, arrays: Mapping[str, np.ndarray]) -> None:
        size = sum(array.nbytes for array in arrays.values())
        self._largest[kind] = max(size, self._largest.get(kind, 0))

    def _maker(self, number: int) -> Callable[[], Engine]:
        if self._fork:
            return lambda: self._engine
        return partial(_engine_of_worker, self._config.flat(), number)


def _alone(by_client: Mapping[int, tuple[int, Request]], client: int) -> tuple[int, int, Sequence[Request]]:
    rank, request = by_client[client]
    return rank, client, [request]


def _engine_of_worker(values: Mapping[str, Value], number: int) -> Engine:
    config = Config.parse(values)
    if config.training.device == "cuda":
        import torch

        torch.cuda.set_device(number % torch.cuda.device_count())
    return engine_here(config)
