"""The local engine: the server's code runs in the calling process, the clients in worker processes of this machine.

Requests go to the workers through pipes, the vector that all clients share once a round and not once a client. A worker
keeps data and model. The sums are the same to the bit, however many workers there are.
"""

from __future__ import annotations

import gc
import heapq
import multiprocessing
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from ..client.engine import Engine, engine_for
from ..core import custom
from ..core import settings as s
from ..core.errors import ConfigError, FedpflError
from ..core.files import private_folder
from ..core.payload import Payload
from ..core.server_view import Client
from ..core.settings import Value
from ..data import partition_counts
from ..options.worker_limits import WorkerLimits
from ..rules.averages import group_size
from ..setup.config import Config
from .pool import Died, Finished, WorkerPool
from .sums import Adder, AddingTransport, Counted, GroupSum
from .transport import EVALUATE, TRAIN, Fail, Request, Wait
from .worker import SUM, Failed, Reply, failed, keep_freed_memory, run_client

if TYPE_CHECKING:
    from ..client.together import Together

# How many replies may wait for their turn, so that a thousand large models are never in memory together.
WAITING_BYTES = 128 * 2**20
# How often a client is asked again whose worker died.
MAX_REPEATS = 2
# Numbers of samples by client and class, for people, that a run records.
MAX_COUNTS = 100_000


class LocalTransport(AddingTransport):
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
        printed: Callable[[int, str], None] = lambda client, text: None,
        traces: Path | None = None,
        start: Literal["fork", "spawn"] | None = None,
    ) -> None:
        self._config, self._printed, self._traces = config, printed, traces
        gpu = config.training.device == "cuda"
        self.workers = default_workers(config) if workers is None else workers
        if self.workers and multiprocessing.current_process().daemon:
            allowed = "must be 0 in a process of multiprocessing.Pool, which may start no other one"
            raise ConfigError("workers", self.workers, allowed)
        if self.workers and config.training.clients_at_once > 1:
            raise ConfigError("workers", self.workers, "must be 0 with clients-at-once: one process trains the clients")
        self._limits = config.of(WorkerLimits)
        for key, limit in s.items(self._limits) if not self.workers else ():
            allowed = "must be 0 without worker processes (--workers 1 or more): this one cannot be ended or bounded"
            if limit:
                raise ConfigError(key, limit, allowed)
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
        self._together: Together | None = None

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
        gc.unfreeze()

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
        return {"scaling": data.inputs, **counts, **{key: list(names) for key, names in found.items() if names}}

    def replies(self, requests: Sequence[Request], wait: Wait, fail: Fail) -> Iterator[tuple[Client, Payload]]:
        """Run the clients in the workers or in this process; all of them answer, so there is no time limit."""
        answers = self._run_here(requests) if self.workers == 0 else self._run_by_workers(requests)
        for client, answer in answers:
            if isinstance(answer, Failed):
                self._fail(client, answer, fail)
            else:
                yield client, answer

    @property
    def adds(self) -> bool:
        """Whether workers add replies up, or the process that trains clients as one batch, where that computes."""
        return self.workers > 0 or (self._trains_together and self._engine.sends_as_trained)

    def sums(
        self, groups: Sequence[Sequence[Request]], adder: Adder, fail: Fail
    ) -> Iterator[tuple[Client, Payload] | GroupSum]:
        """Have each group run and added up in one worker; one whose worker dies comes reply by reply."""
        if not self.workers:
            yield from self._sum_here(groups, adder, fail)
            return
        clients = {request.client.id: request.client for group in groups for request in group}
        ranks = [-sum(request.client.train_samples for request in group) for group in groups]  # the most work first
        for found in self._run_groups(groups, ranks, adder):
            if isinstance(found, Finished):
                for reply in found.replies:
                    if isinstance(reply, Failed):
                        self._fail(clients[reply.client], reply, fail)
                yield GroupSum([one for one in found.replies if isinstance(one, Counted)], found.arrays[SUM])
                continue
            client, answer = found
            if isinstance(answer, Failed):
                self._fail(client, answer, fail)
            else:
                yield client, answer

    def _fail(self, client: Client, answer: Failed, fail: Fail) -> None:
        fail(client, answer.reason + self._kept(answer), answer.error)

    def _sum_here(self, groups: Sequence[Sequence[Request]], adder: Adder, fail: Fail) -> Iterator[GroupSum]:
        """Train all clients as one batch, and add up the vectors of each group where they were computed."""
        start: torch.Tensor | None = None

        def make(request: Request) -> Payload:
            nonlocal start
            message = request.make()
            if start is None:  # the same for all
                start = torch.from_numpy(adder.layout.unpack(message.arrays)).to(self._config.training.device)
            return message

        trained = self._made_together().train_here(
            [(request.client.id, partial(make, request)) for group in groups for request in group]
        )
        for group in groups:
            replies, rows = [], []
            for request, (number, answer, row) in zip(group, trained, strict=False):
                if row is None or not isinstance(answer, Payload):
                    assert isinstance(answer, BaseException)
                    self._fail(request.client, failed(number, answer), fail)
                else:
                    replies.append((request.client, answer))
                    rows.append(row)
            if rows and start is not None:
                yield GroupSum(*adder.add_rows(replies, torch.stack(rows), start))

    @property
    def _trains_together(self) -> bool:
        return trains_together(self._config) and self._engine.instead is None

    def _run_here(self, requests: Sequence[Request]) -> Iterator[tuple[Client, Payload | Failed]]:
        if self._trains_together and requests:
            yield from self._run_together(requests)
            return
        for request in sorted(requests, key=lambda request: request.client.id):
            message = request.make()
            message = replace(message, config=dict(message.config))  # others get the same
            answer = run_client(self._engine, request.kind, request.client.id, message)
            if isinstance(answer, Payload):
                # The next client trains in the same model, of which these may be views.
                answer.arrays = {name: array.copy() for name, array in answer.arrays.items()}
            yield request.client, answer

    def _run_together(self, requests: Sequence[Request]) -> Iterator[tuple[Client, Payload | Failed]]:
        clients = {request.client.id: request.client for request in requests}
        tasks = [(request.client.id, request.make) for request in requests]
        together = self._made_together()
        run = together.train if requests[0].kind == TRAIN else self._tests_together.test
        for number, answer in run(sorted(tasks, key=lambda task: task[0])):
            yield clients[number], answer if isinstance(answer, Payload) else failed(number, answer)

    def _made_together(self) -> Together:
        if self._together is None:
            # Needs a PyTorch that boards may not have.
            from ..client.tests_together import TestsTogether
            from ..client.together import ClientsAtOnce, Together

            gc.freeze()  # what there is by now stays: collections need not look at it
            memory = ClientsAtOnce.of(self._config.training)
            self._together = Together(self._engine, memory)
            self._tests_together = TestsTogether(self._engine, memory)
        return self._together

    def _run_by_workers(self, requests: Sequence[Request]) -> Iterator[tuple[Client, Payload | Failed]]:
        # Tests send no arrays, so that several clients can have one answer.
        size = group_size(len(requests)) if requests and requests[0].kind == EVALUATE else 1
        in_order = sorted(range(len(requests)), key=lambda place: requests[place].client.id)
        groups = [[requests[place] for place in in_order[at : at + size]] for at in range(0, len(in_order), size)]
        ranks = [min(in_order[at : at + size]) for at in range(0, len(in_order), size)]
        for found in self._run_groups(groups, ranks):
            assert not isinstance(found, Finished)  # nothing was to be added up
            yield found

    def _run_groups(
        self, groups: Sequence[Sequence[Request]], ranks: Sequence[int], adder: Adder | None = None
    ) -> Iterator[tuple[Client, Payload | Failed] | Finished]:
        """Have the workers run groups, the lowest rank first, and yield in the groups' order what comes of them.

        With an ``adder`` that is one sum for each group; otherwise, and where the group's worker died, each reply.
        """
        if not groups:
            return
        pool, kind = self._started_pool(), groups[0][0].kind
        pool.forget(adder)
        ranked = zip(ranks, groups, strict=True)
        by_client = {request.client.id: (rank, request) for rank, group in ranked for request in group}
        # Groups whose turn comes soon, and clients of them that are asked alone: (rank, first client, requests).
        ready: list[tuple[int, int, Sequence[Request]]] = []
        opened = done = 0
        made: dict[int, Payload] = {}
        repeats: dict[int, int] = {}
        arrived: dict[int, Payload | Failed] = {}
        sums: dict[int, Finished] = {}
        while done < len(groups):
            while opened < min(len(groups), done + self._window(kind)):
                heapq.heappush(ready, (ranks[opened], groups[opened][0].client.id, groups[opened]))
                opened += 1
            while ready and (worker := pool.free()) is not None:
                part = ready[0][2]
                for request in part:
                    if request.client.id not in made:
                        made[request.client.id] = request.make()
                messages = [made[request.client.id] for request in part]
                if not _same_arrays(messages):
                    _, _, part = heapq.heappop(ready)
                    for request in part:
                        heapq.heappush(ready, _alone(by_client, request.client.id))
                    continue
                summed = adder is not None and len(part) > 1
                if not pool.ask(worker, [request.client for request in part], kind, messages, summed):
                    break
                heapq.heappop(ready)
            for found in pool.look():
                if isinstance(found, Died):
                    first, alone = found.clients[0], len(found.clients) == 1
                    if not found.how:
                        requests = [by_client[number][1] for number in found.clients]
                        heapq.heappush(ready, (by_client[first][0], first, requests))
                        continue
                    # Which one of several it was will show.
                    repeats[first] = repeats.get(first, 0) + alone
                    if alone and found.late:
                        seconds = self._limits.client_timeout
                        arrived[first] = Failed(first, f"no answer within {seconds:g} s (client-timeout)")
                        del made[first]
                        continue
                    if alone and repeats[first] > MAX_REPEATS:
                        arrived[first] = Failed(first, f"its worker process {found.how}, {repeats[first]} times")
                        del made[first]
                        continue
                    for number in found.clients:
                        heapq.heappush(ready, _alone(by_client, number))
                    continue
                self._note(kind, found.arrays)
                for reply in found.replies:
                    del made[reply.client]
                    if isinstance(reply, Reply):
                        arrived[reply.client] = Payload(dict(reply.config), reply.metrics, found.arrays)
                    elif isinstance(reply, Failed):
                        arrived[reply.client] = reply
                if adder is not None and len(found.replies) > 1:
                    sums[found.replies[0].client] = found
            while done < len(groups):
                clients = [request.client for request in groups[done]]
                if clients[0].id in sums:
                    yield sums.pop(clients[0].id)
                elif all(client.id in arrived for client in clients):
                    for client in clients:
                        yield client, arrived.pop(client.id)
                else:
                    break
                done += 1

    def _started_pool(self) -> WorkerPool:
        if self._pool is None:
            # What there is by now stays: collections need not look at it, in the workers either.
            gc.freeze()
            try:
                memory = int(self._limits.worker_memory * 2**30)
                self._pool = WorkerPool(
                    self.workers, self._maker, self._fork, self._printed, self._limits.client_timeout, memory
                )
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


def _same_arrays(messages: Sequence[Payload]) -> bool:
    """Return whether messages have the same array objects."""
    first = messages[0].arrays
    return all(
        message.arrays is first
        or (message.arrays.keys() == first.keys() and all(message.arrays[name] is first[name] for name in first))
        for message in messages[1:]
    )


def _alone(by_client: Mapping[int, tuple[int, Request]], client: int) -> tuple[int, int, Sequence[Request]]:
    rank, request = by_client[client]
    return rank, client, [request]


def trains_together(config: Config) -> bool:
    """Return whether a process trains clients as one batch."""
    at_once = config.training.clients_at_once
    return at_once > 1 or (at_once == 0 and config.training.device == "cuda")


def default_workers(config: Config) -> int:
    """Return how many worker processes a run uses unless it is told: one for each core, none idle; on a GPU none."""
    if multiprocessing.current_process().daemon or trains_together(config) or config.training.device == "cuda":
        return 0
    return min(max(1, cores() // max(1, config.training.threads)), config.data.num_clients)


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
