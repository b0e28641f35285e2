"""Trains several clients of an engine at once: their phases run as one batch, everything else client by client."""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from logging import getLogger
from typing import Callable, Iterable, Iterator, List, NamedTuple, Sequence, Tuple, Union, cast

import numpy as np
import torch
from torch import Tensor

from ..core.errors import RAISED, FedpflError
from ..core.payload import Payload
from ..core.rng import generator
from ..core.sharing import Sharing
from ..training.batched import (
    Member,
    Turns,
    TurnsByModel,
    kind_of,
    run_phase_of_many,
    set_torch_state,
    torch_state,
)
from ..training.phase import Phase
from ..training.settings import TrainingSettings
from ..training.stacked_phases import CannotStack
from .engine import Engine
from .forks import in_one_process
from .option_hooks import LazyRound, TrainedArrays, Training

logger = getLogger("fedpfl.client")

Answer = Union[Payload, BaseException]
Task = Tuple[int, Callable[[], Payload]]


class ClientAnswer(NamedTuple):
    """A client's reply, or the error that it raised, and its shared vector where that stayed."""

    client: int
    answer: Answer
    row: Tensor | None = None


class ClientsAtOnce:
    """How many clients train at once: as many as a setting says, or as many as fit into the memory that is free.

    The first batch is small and shows how much a client takes. ``free`` is asked for the bytes that are free, ``used``
    for the most that were in use since the last call of ``restart``.
    """

    FIRST = 4
    # Of the free memory; the rest is for what grows with a batch in other ways.
    SHARE = 0.7

    def __init__(self, clients: int, free: Callable[[], int], used: Callable[[], int], restart: Callable[[], None]):
        self.clients = clients or self.FIRST
        self._chosen = bool(clients)
        self._free, self._used, self._restart = free, used, restart
        self._said = False

    @classmethod
    def of(cls, training: TrainingSettings) -> ClientsAtOnce:
        """Return that of the device; on a CPU one client at a time unless ``clients-at-once`` says otherwise."""
        if training.device != "cuda":
            return cls(training.clients_at_once or 1, lambda: 0, lambda: 0, lambda: None)

        def free() -> int:
            unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            return int(torch.cuda.mem_get_info()[0]) + unused

        return cls(training.clients_at_once, free, torch.cuda.max_memory_allocated, torch.cuda.reset_peak_memory_stats)

    @contextmanager
    def measured(self) -> Iterator[list[int]]:
        """Yield a list for the clients of a batch, and learn from what they use within the block."""
        clients: list[int] = []
        self._restart()
        before = self._used()
        yield clients
        if not self._chosen and len(clients) == self.clients:
            each = max(1, (self._used() - before) // len(clients))
            self.clients = max(1, int(self.SHARE * self._free() / each))
            self._chosen = True

    def too_many(self, clients: int) -> None:
        """Take half as many from now on."""
        self.clients, self._chosen = max(1, min(self.clients, clients // 2)), True
        if not self._said:
            self._said = True
            logger.warning(
                "the memory is too small for %d clients at once: %d from now on (clients-at-once)", clients,
                self.clients,
            )  # fmt: skip


class BatchedTraining:
    """Has an engine train clients as one batch; their replies are those of :meth:`Engine.train` up to rounding."""

    def __init__(self, engine: Engine, memory: ClientsAtOnce) -> None:
        self._engine = engine
        self._memory = memory
        self._turns = TurnsByModel()
        # Phases that clients have run one after the other: method, place in the schedule, reason.
        self.alone: set[tuple[str, int, str]] = set()

    def train(self, tasks: Iterable[Task], stay: bool = False) -> Iterator[list[ClientAnswer]]:
        """Train clients, each with its message; yield the answers of each batch, in order.

        With ``stay`` shared vectors are left where they were computed, for which the engine must send what it has
        trained (:attr:`Engine.sends_as_trained`). The vector in a reply is then as long as the client's, but need not
        be it.
        """
        left = deque(tasks)
        while left:
            self._turns.clear()
            answers: dict[int, Answer] = {}
            rows: dict[int, Tensor] = {}
            batches: dict[str, list[_Client]] = {}
            with self._memory.measured() as taken, self._engine.computing():
                while left and len(taken) < self._memory.clients:
                    client, make = left.popleft()
                    try:
                        message = make()
                        with in_one_process():
                            prepared = self._begin(client, message)
                        batches.setdefault(prepared.kind, []).append(prepared)
                    except torch.cuda.OutOfMemoryError as error:
                        if not taken:
                            answers[client] = error
                        else:  # these first
                            left.appendleft((client, make))
                            self._memory.too_many(len(taken) + 1)
                            break
                    except RAISED as error:  # one client's: the others continue
                        answers[client] = error
                    taken.append(client)
                for clients in batches.values():
                    try:
                        with in_one_process():
                            self._run(clients, answers, rows if stay else None)
                    except FedpflError as error:  # they ran as one: nobody knows whose it is
                        answers.update((client.number, error) for client in clients)
            yield [ClientAnswer(client, answers[client], rows.pop(client, None)) for client in taken]

    def _begin(self, client: int, message: Payload) -> _Client:
        """Load a client, have its method make its phases, and take its model out of the engine's."""
        engine, begun = self._engine, time.perf_counter()
        engine.use_model_of(client)
        # A method may leave something in itself that it needs when the client's round ends.
        training = engine.begin_training(client, message, engine.method_state.copied(engine.config.method), later=True)
        local = training.local
        phases = [phase for phase in training.phases if phase.epochs]
        loaded = not isinstance(local, LazyRound) or local.is_loaded

        def draws() -> Tensor:
            if phases:
                engine.seed(local, "batches")
            return torch_state(engine.config.training.device)

        member = Member(
            local.samples, lambda place: generator(local.seed, "batches", local.client, local.round, place),
            # What the method has drawn before counts if there is no phase.
            draws if phases else draws(), None if loaded else training.beginning, training.momentum,
        )  # fmt: skip
        if loaded:
            self._turns[engine.model].take(member)
        prepared = _Client(training, phases, member)
        prepared.kind = f"{engine.config.run.model} {kind_of(phases)} {engine.own_training}"
        prepared.seconds = time.perf_counter() - begun
        return prepared

    def _run(
        self, clients: Sequence[_Client], answers: dict[int, Answer], rows: dict[int, Tensor] | None
    ) -> None:  # fmt: skip
        """Train clients and note their replies, and their shared vectors if these stay."""
        engine = self._engine
        engine.use_model_of(clients[0].training.local.client)
        turns, begun = self._turns[engine.model], time.perf_counter()
        factor = engine.rate_factor(clients[0].training.local.round)
        for place in range(len(clients[0].phases)):
            there = [client for client in clients if client.error is None]
            if not there:
                break
            self._run_phase(turns, there, place, factor)
        taken, vectors = _taken(engine.sharing, [client.member for client in clients], rows is not None)
        share = (time.perf_counter() - begun) / len(clients)
        for place, client in enumerate(clients):
            arrays = None if taken is None or client.member.start is not None else taken[place]
            answer = answers[client.number] = client.error or self._end(turns, client, share, arrays)
            if rows is not None and isinstance(answer, Payload):
                if client.is_loaded:
                    sent = torch.from_numpy(engine.sharing.layout.unpack(answer.arrays))
                    rows[client.number] = sent.to(engine.config.training.device)
                else:
                    rows[client.number] = vectors[place]

    def _run_phase(self, turns: Turns, clients: Sequence[_Client], place: int, factor: float) -> None:
        """Run a phase of clients as one batch; as two where the memory is too small, or else one after the other."""
        engine = self._engine
        try:
            means = run_phase_of_many(
                turns, [client.phases[place] for client in clients], [client.member for client in clients],
                engine.config.training, place, factor, engine.config.data.normalize,
            )  # fmt: skip
        except torch.cuda.OutOfMemoryError:
            self._memory.too_many(len(clients))
            half = len(clients) // 2
            self._run_phase(turns, clients[:half], place, factor)
            self._run_phase(turns, clients[half:], place, factor)
        except CannotStack as reason:
            if len(clients) > 1:
                self._note(place, str(reason))
            for client in clients:
                self._alone(turns, client, place, factor)
        else:
            for client, mean in zip(clients, means):
                client.losses.append(mean)

    def _alone(self, turns: Turns, client: _Client, place: int, factor: float) -> None:
        """Run a phase of one client."""
        training, member, device = client.training, client.member, self._engine.config.training.device
        try:
            with turns.of(member):
                set_torch_state(member.state(), device)
                loss = self._engine.run_phase(
                    client.phases[place], training.local, "batches", place, factor, training.momentum
                )
                member.draws = torch_state(device)
            client.losses.append(loss)
        except RAISED as error:  # one client's: the others continue
            turns.reset()
            client.error = error

    def _end(self, turns: Turns, client: _Client, share: float, taken: TrainedArrays | None) -> Answer:
        engine, begun, local, member = self._engine, time.perf_counter(), client.training.local, client.member

        def load() -> None:
            turns.put(member)
            engine.sharing.accept(local.extras)

        def of_method() -> TrainedArrays | None:
            if client.is_loaded or taken is None or taken.shared is not None:
                return None if client.is_loaded else taken
            return taken._replace(shared=engine.sharing.layout.unpack(local.message.arrays))

        try:
            if isinstance(local, LazyRound) and taken is not None:
                client.later = local
                local.wait_for(load)
            else:
                load()
            if not callable(member.draws) or engine.draws_at_the_end:
                set_torch_state(member.state(), engine.config.training.device)
            training = client.training._replace(started=begun - client.seconds - share)
            reply = engine.end_training(training, client.losses, of_method)
            if client.is_loaded:  # the next client's round ends in the same model, of which these may be views
                reply.arrays = {name: array.copy() for name, array in reply.arrays.items()}
            return reply
        except RAISED as error:  # one client's: the others continue
            return error
        finally:
            if client.is_loaded:
                turns.reset()
            elif client.later is not None:
                # It refers to the round that refers to it: the client's arrays would stay until a collection.
                client.later.wait_for(_is_over)

    def _note(self, place: int, reason: str) -> None:
        name = self._engine.config.method.name
        if (name, place, reason) not in self.alone:
            self.alone.add((name, place, reason))
            logger.info("%s: clients run phase %d one after the other: %s", name, place + 1, reason)


def _is_over() -> None:
    raise RuntimeError("the client's round is over")


def _taken(sharing: Sharing, members: Sequence[Member], stay: bool) -> tuple[list[TrainedArrays] | None, Tensor]:
    """Copy what clients have trained, all at once; with ``stay`` shared vectors stay. None where arrays are split."""
    if type(sharing) is not Sharing or any(member.start is not None for member in members):
        return None, torch.empty(0)

    def together(names: Sequence[str]) -> dict[str, Tensor]:
        return {name: torch.stack([member.arrays[name] for member in members]) for name in names}

    count = len(members)
    shared = [array.reshape(count, -1).float() for array in together(sharing.shared).values()]
    vectors = torch.cat(shared, 1) if shared else torch.zeros(count, 0)
    personal = together(sharing.personal)
    finite = _are_finite(vectors)
    for array in personal.values():
        finite &= _are_finite(array.reshape(count, -1))
    personal_arrays = {name: array.cpu().numpy() for name, array in personal.items()}
    rows: Sequence[np.ndarray | None] = [None] * count
    if not stay:
        # Into memory that the GPU can write to by itself: many times as fast.
        rows = list(torch.empty(vectors.shape, pin_memory=vectors.is_cuda).copy_(vectors).numpy())
    trained = [
        TrainedArrays({name: np.asarray(array[index]) for name, array in personal_arrays.items()}, row, is_finite)
        for index, (row, is_finite) in enumerate(zip(rows, finite.tolist()))
    ]
    return trained, vectors


def _are_finite(rows: Tensor) -> Tensor:
    """Tell of each row whether its numbers are finite: by the largest, which needs no memory of the rows' size."""
    if not rows.is_floating_point() or not rows.shape[1]:
        return torch.ones(len(rows), dtype=torch.bool)
    return torch.isfinite(torch.linalg.vector_norm(rows, torch.inf, dim=1)).cpu()


class _Client:
    """A client of a batch."""

    kind = ""
    seconds = 0.0
    error: BaseException | None = None
    # The round, if its model is loaded only when the method asks for it.
    later: LazyRound | None = None

    def __init__(self, training: Training, phases: list[Phase], member: Member) -> None:
        self.training, self.phases, self.member = training, phases, member
        self.number, self.losses = training.local.client, cast("List[float | None]", [])

    @property
    def is_loaded(self) -> bool:
        """Whether the engine's model holds what the client has trained."""
        return self.later is None or self.later.is_loaded
