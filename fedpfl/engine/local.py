"""The local engine: the server's code runs in the calling process, the clients in worker processes of this machine.

Requests go to the workers through pipes, the vector that all clients share once a round and not once a client. A worker
keeps data and model. The sums are the same to the bit, however many workers there are.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..client.device_model import scaling_of
from ..client.engine import Engine, engine_for
from ..core import custom
from ..core.errors import FedpflError
from ..core.federation import Client
from ..core.files import private_folder
from ..core.payload import Payload
from ..core.settings import Value
from ..data import partition_counts
from ..setup.config import Config
from .pool import Died, WorkerPool
from .transport import Fail, Request, Transport, Wait
from .worker import Failed, keep_freed_memory, run_client

# How many replies may wait for their turn, so that a thousand large models are never in memory together.
WAITING_BYTES = 128 * 2**20
# How often a client is asked again whose worker died.
MAX_REPEATS = 2
# Numbers of samples by client and class, for people, that a run records.
MAX_COUNTS = 100_000


class LocalTransport(Transport):
    """Clients on this machine; a context manager that leaves no process behind.

    Making it checks settings, data, their division and the model. ``workers`` is the number of processes; 0 runs all
    clients in this process. By default there are as many as cores (or clients that share the GPUs), but no more than
    clients. ``printed`` gets a client's number and what it prints in a worker. Tracebacks of clients go to the folder
    ``traces``. Workers are forked on Linux unless a GPU is used, else spawned; ``start`` overrides that.
    """

    real = False

    def __init__(
        self,
        config: Config,
        workers: int | None = None,
        clients_per_gpu: int = 1,
        printed: Callable[[int, str], None] = lambda client, text: None,
        traces: Path | None = None,
        start: Literal["fork", "spawn"] | None = None,
    ) -> None:
        self._config, self._printed, self._traces = config, printed, traces
        gpu = config.training.device == "cuda"
        self.workers = default_workers(config, clients_per_gpu) if workers is None else workers
        # A process that has used a GPU cannot be forked, and macOS's own libraries may not be used in a fork.
        self._fork = (start or ("fork" if sys.platform == "linux" and not gpu else "spawn")) == "fork"
        if self.workers and not self._fork:
            custom.require_sendable(config.flat())
        here = config
        if gpu and self.workers:  # this process only checks; the workers have engines of their own on the GPU
            here = replace(config, training=replace(config.training, device="cpu"))
        self._engine = _engine(here)
        keep_freed_memory()
        self._pool: WorkerPool | None = None
        self._largest: dict[str, int] = {}

    def __enter__(self) -> LocalTransport:
        """Begin; workers are started with the first requests."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, whatever they do."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def find_clients(
        self,
        config: Config,
        state_key: str = "",
        identities: Mapping[str, str] | None = None,
        earlier: Mapping[str, Any] | None = None,
    ) -> dict[int, Payload]:
        """Describe the clients; none has to be asked."""
        return {client: self._engine.query(client, Payload()) for client in range(self._engine.num_clients)}

    def first(self, work: Mapping[int, int], count: int) -> Collection[int]:
        """Return those with the least work, who are the first where all are equally fast."""
        return sorted(work, key=lambda client: (work[client], client))[:count]

    def about_data(self) -> dict[str, Any]:
        """Return how inputs are scaled, the names of clients and classes, and how many samples who has of each."""
        data = self._engine.data
        found = {"client_names": data.client_names, "class_names": () if data.has_no_class_names else data.class_names}
        counted = not data.has_targets and data.num_clients * data.num_classes <= MAX_COUNTS
        counts = {"class_counts": partition_counts(data).tolist()} if counted else {}
        return {"scaling": scaling_of(data), **counts, **{key: list(names) for key, names in found.items() if names}}

    def replies(self, requests: Sequence[Request], wait: Wait, fail: Fail) -> Iterator[tuple[Client, Payload]]:
        """Run the clients in the workers or in this process; all of them answer, so there is no time limit."""
        answers = self._run_here(requests) if self.workers == 0 else self._run_by_workers(requests)
        for client, answer in answers:
            if isinstance(answer, Failed):
                fail(client, answer.reason + self._kept(answer), answer.error)
            else:
                yield client, answer

    def _run_here(self, requests: Sequence[Request]) -> Iterator[tuple[Client, Payload | Failed]]:
        for request in sorted(requests, key=lambda request: request.client.id):
            message = request.make()
            answer = run_client(self._engine, request.kind, request.client.id, message)
            if isinstance(answer, Payload):
                # The next client trains in the same model, of which these may be views.
                answer.arrays = {name: array.copy() for name, array in answer.arrays.items()}
            yield request.client, answer

    def _run_by_workers(self, requests: Sequence[Request]) -> Iterator[tuple[Client, Payload | Failed]]:
        if not requests:
            return
        if self._pool is None:
            try:
                self._pool = WorkerPool(self.workers, self._maker, self._fork, self._printed)
            except OSError as error:
                reason = f"{self.workers} worker processes cannot be started ({error.strerror}); use fewer workers"
                raise FedpflError(reason) from error
        pool = self._pool
        pool.forget()
        by_client = {request.client.id: (place, request) for place, request in enumerate(requests)}
        order = sorted(by_client)
        # Among the clients whose turn comes soon, the longest work goes first: `ready` holds (place, client).
        ready: list[tuple[int, int]] = []
        opened = done = 0
        made: dict[int, Payload] = {}
        repeats: dict[int, int] = {}
        arrived: dict[int, Payload | Failed] = {}
        while done < len(order):
            while opened < min(len(order), done + self._window(requests[0].kind)):
                heapq.heappush(ready, (by_client[order[opened]][0], order[opened]))
                opened += 1
            while ready and (worker := pool.free()) is not None:
                client = ready[0][1]
                request = by_client[client][1]
                if client not in made:
                    made[client] = request.make()
                if not pool.ask(worker, client, request.kind, made[client]):
                    break
                heapq.heappop(ready)
            for found in pool.look():
                if isinstance(found, Died):
                    client = found.client
                    repeats[client] = repeats.get(client, 0) + bool(found.how)
                    if repeats[client] > MAX_REPEATS:
                        arrived[client] = Failed(client, f"its worker process {found.how}, {repeats[client]} times")
                        del made[client]
                    else:
                        heapq.heappush(ready, (by_client[client][0], client))
                    continue
                client, answer = (found.client, found) if isinstance(found, Failed) else found
                arrived[client] = answer
                del made[client]
                if isinstance(answer, Payload):
                    self._note(requests[0].kind, answer)
            while done < len(order) and order[done] in arrived:
                client = order[done]
                done += 1
                yield by_client[client][1].client, arrived.pop(client)

    def _window(self, kind: str) -> int:
        """Return how many clients may run, or have run, before the turn of the first of them."""
        least = 4 * self.workers
        if kind not in self._largest:
            return least
        return max(least, WAITING_BYTES // max(1, self._largest[kind]))

    def _note(self, kind: str, answer: Payload) -> None:
        size = sum(array.nbytes for array in answer.arrays.values())
        self._largest[kind] = max(size, self._largest.get(kind, 0))

    def _maker(self, number: int) -> Callable[[], Engine]:
        if self._fork:
            return lambda: self._engine
        return partial(_engine_of_worker, self._config.flat(), number)

    def _kept(self, failed: Failed) -> str:
        """Store a traceback and return its folder, the same for all clients with the same reason."""
        if not failed.trace or self._traces is None:
            return ""
        path = self._traces / f"client-{failed.client:05d}.txt"
        with suppress(OSError):  # a full disk: the reason itself is still told
            private_folder(self._traces)
            path.write_text(failed.trace, encoding="utf-8")
            return f"; tracebacks: {self._traces}"
        return ""


def default_workers(config: Config, clients_per_gpu: int = 1) -> int:
    """Return how many worker processes a run uses unless it is told: one for each core or share of a GPU, none idle."""
    if config.training.device == "cuda":
        import torch

        places = clients_per_gpu * max(1, torch.cuda.device_count())
    else:
        places = max(1, cores() // max(1, config.training.threads))
    return min(places, config.data.num_clients)


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _engine(config: Config) -> Engine:
    # As many threads in every worker, and in this process where it runs the clients: the bits depend on it.
    threads = config.training.threads or 1
    return engine_for(
        replace(config, training=replace(config.training, threads=threads)), config.data.num_clients, "", 0
    )


def _engine_of_worker(values: Mapping[str, Value], number: int) -> Engine:
    config = Config.parse(values)
    if config.training.device == "cuda":
        import torch

        torch.cuda.set_device(number % torch.cuda.device_count())
    return _engine(config)
