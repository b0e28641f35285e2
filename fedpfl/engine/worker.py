"""What a worker process of the simulation does: run the clients that it is asked for, one after the other.

Between it and the server's process go headers, which are pickled, and behind each the plain bytes of its arrays, unless
these are in memory that both share. Both ends belong to one program on one machine; nothing else can reach the pipes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import logging
import os
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..client.engine import Engine
from ..core.files import writing
from ..core.payload import Number, Payload
from ..core.server_view import Client
from ..core.settings import Value
from .client_runner import Answer, ClientFailure, keep_freed_memory, run_client, trains_together
from .slots import ArrayHeader, Slot, Slots, Writer, arrays_of, headers, prefix
from .transport import Request

if TYPE_CHECKING:
    from .batched_clients import BatchedClients

# Arrays that a worker caches besides those of the last request: clusters of clients share some.
KEPT_ARRAYS, KEPT_BYTES = 16, 64 * 2**20
# Characters of client output that are sent at a time, and those of one message that are sent at all.
PRINTED, MAX_PRINTED = 1 << 16, 1 << 20


@dataclass(frozen=True)
class RequestHeader:
    """The header of a request to one client, or to several that get the same arrays, or ``each`` its own.

    ``fresh``: drop all cached arrays; ``slot``: where the answer's arrays may be written.
    """

    fresh: bool
    clients: Sequence[Client]
    kind: str
    configs: Sequence[Mapping[str, Value]]
    arrays: Sequence[ArrayHeader]
    slot: Slot | None = None
    each: bool = False


class Head(NamedTuple):
    """A client's reply without its arrays."""

    client: int
    config: Mapping[str, Value]
    metrics: dict[str, Number]


@dataclass(frozen=True)
class AnswerHeader:
    """The header of an answer: a reply for each client; arrays are in the slot that the request lent, or behind."""

    replies: Sequence[Head | ClientFailure]
    arrays: Sequence[ArrayHeader]
    in_slot: bool = False


@dataclass(frozen=True)
class Ready:
    """A worker has started, and waits for its first request."""


@dataclass(frozen=True)
class OutputLines:
    """What a client has printed or logged: whole lines."""

    client: int
    text: str


class ArrayCache:
    """A worker's cache of arrays, by number; the server's process has an equal copy by taking the same steps."""

    def __init__(self) -> None:
        self._held: OrderedDict[int, np.ndarray] = OrderedDict()

    def __contains__(self, number: int) -> bool:
        """Return whether an array is cached."""
        return number in self._held

    def clear(self) -> None:
        """Drop all."""
        self._held.clear()

    def take(self, listed: Sequence[ArrayHeader], array: Callable[[ArrayHeader], np.ndarray]) -> dict[str, np.ndarray]:
        """Return the arrays of a request by name, and cache them; ``array`` brings those that follow.

        The least recently used go first.
        """
        for item in listed:
            if item.follows:
                self._held[item.number] = array(item)
            self._held.move_to_end(item.number)
        arrays = {item.name: self._held[item.number] for item in listed}
        size = sum(held.nbytes for held in self._held.values())
        while len(self._held) > len(listed) and (len(self._held) > KEPT_ARRAYS or size > KEPT_BYTES):
            _, dropped = self._held.popitem(last=False)
            size -= dropped.nbytes
        return arrays


def send_arrays(pipe: Connection, arrays: Sequence[np.ndarray]) -> None:
    """Send the bytes of arrays behind a header, which gives their number."""
    for array in arrays:
        left = _bytes_of(np.ascontiguousarray(array))
        while left:
            left = left[os.write(pipe.fileno(), left) :]


def receive_array(pipe: Connection, item: ArrayHeader) -> np.ndarray:
    """Receive the bytes of an array straight into it: ``recv_bytes_into`` would copy them twice more."""
    array = np.empty(item.shape, np.dtype(item.dtype))
    left = _bytes_of(array)
    while left:
        count = os.readv(pipe.fileno(), [left])
        if not count:
            raise EOFError
        left = left[count:]
    return array


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def serve(
    make: Callable[[], Engine],
    requests: Connection,
    replies: Connection,
    lifeline: Connection,
    inherited: Sequence[Connection | Slots],
    slots: Slots,
) -> None:
    """Run clients until the server's process is gone; the main function of a worker process.

    ``make`` makes the engine, or returns the one from before the fork. Nobody writes to ``lifeline``, which ends with
    the server's process. ``inherited`` are the other ends of this worker and what belongs to others: a fork copied
    them.
    """
    for other in inherited:
        other.close()
    # A Ctrl-C reaches the whole group of processes; the server's process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    with contextlib.suppress(io.UnsupportedOperation, AttributeError, ValueError):  # no standard error to write to
        faulthandler.enable()
    output = _ForwardedOutput(replies)
    _redirect(output)
    keep_freed_memory()
    engine, cache = make(), ArrayCache()
    if trains_together(engine.config):
        from .batched_clients import BatchedClients

        runs = partial(_as_a_batch, BatchedClients(engine), output)
    else:
        runs = partial(_one_by_one, engine, output)
    gc.freeze()  # what a collection would find here stays
    replies.send(Ready())
    while True:
        try:
            header: RequestHeader = requests.recv()
            if header.fresh:
                cache.clear()
            arrays = cache.take(header.arrays, partial(receive_array, requests))
        except (EOFError, OSError):  # the server's process is gone
            return
        writer = slots.writer(header.slot)
        answers, sent = _run(runs, header, arrays, writer)
        answers = [replace(answer, error=None) if isinstance(answer, ClientFailure) else answer for answer in answers]
        with output.lock:
            replies.send(AnswerHeader(answers, headers(sent), writer.holds_all))
            if not writer.holds_all:
                send_arrays(replies, list(sent.values()))
        del sent  # a copy of the model, which would stay in memory while the next client trains


def _run(
    runs: Callable[[RequestHeader, dict[str, np.ndarray]], Iterator[Answer]], header: RequestHeader,
    arrays: dict[str, np.ndarray], writer: Writer,
) -> tuple[list[Head | ClientFailure], Mapping[str, np.ndarray]]:  # fmt: skip
    """Run the clients of a request; return their replies, and their arrays, which are written as they come."""
    answers: list[Head | ClientFailure] = []
    sent: dict[str, np.ndarray] = {}
    for client, reply, _ in runs(header, arrays):
        if isinstance(reply, ClientFailure):
            answers.append(reply)
            continue
        answers.append(Head(client.id, reply.config, reply.metrics))
        first, several = prefix(client.id, len(header.clients)), len(header.clients) > 1
        # The next client trains in the same model, of which these may be views.
        sent.update({first + name: writer.put(array, changes=several) for name, array in reply.arrays.items()})
        del reply  # the next client's vector takes its memory, which is in the processor's cache
    return answers, sent


def _one_by_one(
    engine: Engine, output: _ForwardedOutput, header: RequestHeader, arrays: dict[str, np.ndarray]
) -> Iterator[Answer]:
    """Run the clients of a request one after the other."""
    for client, config in zip(header.clients, header.configs, strict=True):
        output.begin(client.id)
        reply = run_client(engine, header.kind, client.id, Payload(dict(config), {}, arrays))
        output.flush()
        yield Answer(client, reply)
        del reply


def _as_a_batch(
    batch: BatchedClients, output: _ForwardedOutput, header: RequestHeader, arrays: dict[str, np.ndarray]
) -> Iterator[Answer]:
    """Run the clients of a request at once; what one of them prints is said of the first."""
    output.begin(header.clients[0].id)
    requests = []
    for client, config in zip(header.clients, header.configs, strict=True):
        theirs = arrays_of(client.id, arrays, len(header.clients)) if header.each else arrays
        requests.append(Request(client, header.kind, partial(Payload, dict(config), {}, theirs)))
    yield from chain.from_iterable(batch.run(requests))
    output.flush()


def _end_with(lifeline: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    # Whatever the client is doing: only a file that is being written is finished, so that no half of one is left.
    with writing:
        os._exit(1)


class _ForwardedOutput(io.TextIOBase):
    """Standard output and error of a worker: lines go to the server's process, with the client's number."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._rest = pipe, ""
        self.lock = threading.RLock()
        self._client, self._left = -1, MAX_PRINTED

    def begin(self, client: int) -> None:
        """Begin with a client's message."""
        self._client, self._left = client, MAX_PRINTED

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self.lock:
            if self._left < 0:
                return len(text)
            whole, newline, self._rest = (self._rest + text).rpartition("\n")
            self._send(whole + newline)
            if len(self._rest) > PRINTED:
                self.flush()
        return len(text)

    def flush(self) -> None:
        with self.lock:
            text, self._rest = self._rest, ""
            self._send(text)

    def _send(self, text: str) -> None:
        cut = (
            f"\n(more than {MAX_PRINTED} characters: what follows is left out)\n" if len(text) > self._left >= 0 else ""
        )
        shown = text[: max(0, self._left)] + cut
        self._left -= len(text)
        for start in range(0, len(shown), PRINTED):
            self._pipe.send(OutputLines(self._client, shown[start : start + PRINTED]))


def _redirect(output: _ForwardedOutput) -> None:
    before = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    sys.stdout = sys.stderr = output
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    for handler in (handler for logger in loggers for handler in logger.handlers):
        # Handlers that were made before hold the old streams.
        if isinstance(handler, logging.StreamHandler) and handler.stream in before:
            handler.setStream(output)
