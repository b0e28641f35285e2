"""The worker processes of the simulation: started, asked, and replaced when they die."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import selectors
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import numpy as np

from ..client.engine import Engine
from ..core.payload import Payload
from ..core.server_view import Client
from .client_runner import ClientFailure
from .slots import ArrayHeader, Slot, Slots, prefix
from .transport import TRAIN
from .worker import AnswerHeader, ArrayCache, Head, OutputLines, Ready, RequestHeader, receive_array, send_arrays, serve

# Linux gives a pipe 64 KiB unless asked for more: a reply then leaves a worker in one go, and it works on at once.
PIPE_BYTES = 1 << 20
# A header of this size fits into any pipe, so that sending it never waits for the other end.
SMALL_HEADER = 32 * 1024
# A worker gets its next request while it works on the one before where these follow each other so quickly.
QUICK_SECONDS = 0.05
END_SECONDS = 2.0


class WorkerDeath(NamedTuple):
    """A worker process has ended while it ran some clients, or before it came to them."""

    clients: tuple[int, ...]
    how: str  # how the process ended; empty if it had not come to these clients


class WorkerAnswer(NamedTuple):
    """What a worker answered to a request."""

    replies: Sequence[Head | ClientFailure]
    arrays: dict[str, np.ndarray]


@dataclass
class _Worker:
    """The server's end of a worker process."""

    process: BaseProcess
    requests: Connection
    replies: Connection
    slots: Slots
    cache: ArrayCache = field(default_factory=ArrayCache)
    # The clients of each request that it has (it works on the first), and where it may write the answer.
    asked: deque[tuple[tuple[int, ...], Slot | None]] = field(default_factory=deque)
    fresh: bool = False
    since: float = 0.0
    quick: bool = False

    def close(self) -> None:
        self.requests.close()
        self.replies.close()
        self.slots.close()


class WorkerPool:
    """Worker processes, all of which can run every client.

    ``make`` makes the engine of worker 0, 1, … in its process; with spawn it must be picklable. With ``fork`` workers
    have what this process has loaded; otherwise they start from nothing. ``printed`` gets what a client has printed.
    """

    def __init__(
        self, workers: int, make: Callable[[int], Callable[[], Engine]], fork: bool,
        printed: Callable[[int, str], None],
    ) -> None:  # fmt: skip
        self._context = multiprocessing.get_context("fork" if fork else "spawn")
        self._make, self._printed = make, printed
        self._ends, self._lifeline = self._context.Pipe(duplex=False)
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        for number in range(workers):
            self._workers.append(self._start(number))

    def free(self) -> int | None:
        """Return the number of a worker that can take a request now; None if all are busy."""
        idle = (number for number, worker in enumerate(self._workers) if not worker.asked)
        ahead = (number for number, worker in enumerate(self._workers) if worker.quick and len(worker.asked) == 1)
        return next(idle, next(ahead, None))

    def busy(self) -> bool:
        """Return whether a client is running."""
        return any(worker.asked for worker in self._workers)

    def forget(self) -> None:
        """Have the workers drop their cached arrays, which may hold other numbers next."""
        for worker in self._workers:
            worker.cache.clear()
            worker.fresh = True

    def ask(self, number: int, clients: Sequence[Client], kind: str, messages: Sequence[Payload]) -> bool:
        """Send a request, equal arrays once; return False if that would have to wait until the worker is idle."""
        worker, arrays, listed = self._workers[number], messages[0].arrays, []
        if each := not same_arrays(messages):
            arrays = {
                prefix(client.id, len(clients)) + name: array
                for client, message in zip(clients, messages, strict=True)
                for name, array in message.arrays.items()
            }
        follow: set[int] = set()
        for name, array in arrays.items():
            # A cache keeps its arrays alive, so that no other array can get their identity.
            follows = id(array) not in worker.cache and id(array) not in follow
            follow.add(id(array))
            listed.append(ArrayHeader(name, id(array), array.dtype.str, array.shape, follows))
        if worker.fresh and kind == TRAIN:  # a reply will be as large as its request
            worker.slots.fit(listed if each else listed * len(clients))
        slot = worker.slots.lend()
        configs = [message.config for message in messages]
        header = pickle.dumps(
            RequestHeader(worker.fresh, clients, kind, configs, listed, slot, each), pickle.HIGHEST_PROTOCOL
        )
        if worker.asked and (len(header) > SMALL_HEADER or any(item.follows for item in listed)):
            worker.slots.give_back(slot)
            return False
        worker.fresh = False
        worker.cache.take(listed, lambda item: arrays[item.name])
        if not worker.asked:
            worker.since = time.perf_counter()
        worker.asked.append((tuple(client.id for client in clients), slot))
        with contextlib.suppress(OSError):  # it has died: the next call of look tells
            worker.requests.send_bytes(header)
            send_arrays(worker.requests, [arrays[item.name] for item in listed if item.follows])
        return True

    def look(self) -> Iterator[WorkerAnswer | WorkerDeath]:
        """Wait for the next event; yield the answers that have come, and the workers that died."""
        for ready, _ in self._selector.select():
            number: int = ready.data
            worker = self._workers[number]
            try:
                message: AnswerHeader | OutputLines | Ready = worker.replies.recv()
                if isinstance(message, OutputLines):
                    self._printed(message.client, message.text)
                    continue
                if isinstance(message, Ready):
                    worker.since = time.perf_counter()
                    continue
                arrays = self._arrays(worker, message)
            except (EOFError, OSError):
                yield from self._replace(number)
                continue
            _, slot = worker.asked.popleft()
            if not message.in_slot:
                worker.slots.give_back(slot)
                worker.slots.fit(message.arrays)
            now = time.perf_counter()
            worker.quick, worker.since = now - worker.since < QUICK_SECONDS, now
            yield WorkerAnswer(message.replies, arrays)

    def close(self) -> None:
        """End all workers, whatever they do."""
        self._lifeline.close()
        self._selector.close()
        for worker in self._workers:
            worker.close()
        deadline = time.monotonic() + END_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
        self._workers = []
        self._ends.close()

    def _arrays(self, worker: _Worker, answer: AnswerHeader) -> dict[str, np.ndarray]:
        slot = worker.asked[0][1]
        if answer.in_slot and slot is not None:
            return worker.slots.arrays(slot, answer.arrays)
        return {item.name: receive_array(worker.replies, item) for item in answer.arrays}

    def _start(self, number: int) -> _Worker:
        requests, to_worker = self._context.Pipe(duplex=False)
        from_worker, replies = self._context.Pipe(duplex=False)
        for end in (to_worker, replies):
            enlarge(end)
        inherited: list[Connection | Slots] = [to_worker, from_worker, self._lifeline]
        inherited += [end for other in self._workers for end in (other.requests, other.replies, other.slots)]
        fork = self._context.get_start_method() == "fork"
        others = inherited if fork else []
        slots = Slots(fork)
        process = self._context.Process(  # type: ignore[attr-defined]
            target=serve, args=(self._make(number), requests, replies, self._ends, others, slots),
            name=f"fedpfl worker {number}", daemon=True,
        )  # fmt: skip
        with warnings.catch_warnings():
            # Python warns of threads at a fork, of which NumPy alone has some; the child uses none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        requests.close()
        replies.close()
        self._selector.register(from_worker, selectors.EVENT_READ, number)
        return _Worker(process, to_worker, from_worker, slots, fresh=True)

    def _replace(self, number: int) -> Iterator[WorkerDeath]:
        """Replace a worker that died; yield the clients that it ran, and those that waited."""
        worker = self._workers[number]
        self._selector.unregister(worker.replies)
        worker.close()
        worker.process.join(END_SECONDS)
        if worker.process.exitcode is None:
            worker.process.kill()
            worker.process.join()
        asked = list(worker.asked)
        self._workers[number] = self._start(number)
        for place, (clients, _) in enumerate(asked):
            yield WorkerDeath(clients, "" if place else _exit_words(worker.process.exitcode))


def same_arrays(messages: Sequence[Payload]) -> bool:
    """Return whether messages have the same array objects."""
    first = messages[0].arrays
    return all(
        message.arrays is first
        or (message.arrays.keys() == first.keys() and all(message.arrays[name] is first[name] for name in first))
        for message in messages[1:]
    )


def enlarge(end: Connection) -> None:
    """Ask the system for a pipe that holds a model of some size."""
    if sys.platform == "linux":
        import fcntl

        with contextlib.suppress(OSError):  # the system's limit for this user is reached: it works as well, slower
            fcntl.fcntl(end.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def _exit_words(code: int | None) -> str:
    if code is not None and code < 0:
        name = {number.value: number.name for number in signal.Signals}.get(-code, f"signal {-code}")
        return f"was ended by {name}" + (", as the system does when memory runs out" * (name == "SIGKILL"))
    return f"ended with exit code {code}"
