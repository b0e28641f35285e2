"""Tests several clients of an engine at once: one forward pass of stacked models for all of them."""

from __future__ import annotations

import time
from collections import deque
from logging import getLogger
from typing import Any, Iterable, Iterator, NamedTuple, Sequence, cast

import torch

from ..core.errors import RAISED
from ..core.payload import Number, Payload
from ..core.samples import Samples
from ..core.sharing import Sharing
from ..methods.base import LocalRound, Method, common_model
from ..training.batched import Member, TurnsByModel
from ..training.batched_tests import scores_of_many
from ..training.loop import Score, needs_several
from ..training.phase import Forward
from ..training.stacked_phases import CannotStack
from .batched_training import Answer, ClientAnswer, ClientsAtOnce, Task
from .engine import is_plain
from .option_hooks import LazyRound
from .scores import metrics_of

logger = getLogger("fedpfl.client")


class BatchedEvaluation:
    """Has an engine test clients as one batch, as :meth:`Engine.evaluate` up to rounding; alone where it must be."""

    def __init__(self, engine: Any, memory: ClientsAtOnce) -> None:
        self._engine, self._memory = engine, memory
        self._turns = TurnsByModel()
        # Why clients were tested one after the other.
        self.alone: set[str] = set()

    def test(self, tasks: Iterable[Task]) -> Iterator[list[ClientAnswer]]:
        """Test clients, each with its message; yield the answers of each batch, in order."""
        left = deque(tasks)
        while left:
            self._turns.clear()
            answers: dict[int, Answer] = {}
            batches: dict[str, list[_TestedClient]] = {}
            requests = [left.popleft() for _ in range(min(len(left), self._memory.clients))]
            with self._engine.computing():
                for client, make in requests:
                    message = make()
                    try:
                        prepared = self._begin(client, message)
                        batches.setdefault(self._engine.config.run.model, []).append(prepared)
                    except CannotStack as reason:
                        answers[client] = self._alone(client, message, str(reason))
                    except RAISED as error:  # one client's: the others continue
                        answers[client] = error
                for clients in batches.values():
                    self._run(clients, answers)
            yield [ClientAnswer(client, answers[client]) for client, _ in requests]

    def _begin(self, client: int, message: Payload) -> _TestedClient:
        """Load a client and have its method prepare its test; raise ``CannotStack`` if it must be tested alone."""
        engine, begun = self._engine, time.perf_counter()
        engine.use_model_of(client)
        if engine.measures or not engine.config.training.kind.classes:
            raise CannotStack("a metric or a target needs all predictions of a client")
        local: LocalRound
        if type(engine.sharing) is Sharing:
            state, later, round_start = engine.read(client, message, LazyRound)
            later.wait_for(round_start.load)
            local = later
        else:
            state, local, round_start = engine.read(client, message, LocalRound)
        method = engine.method_state.copied(engine.config.method)
        method.prepare(local)
        if method.adaptation(local):
            raise CannotStack("the model adapts before its test")
        if any(part.looks_at_test(state, local) for part in engine.parts):
            raise CannotStack("the tested model is used further")
        member = Member(engine.test_samples(client), _no_draws, _no_draws, round_start, None)
        if not isinstance(local, LazyRound) or local.is_loaded:
            self._turns[engine.model].take(member)
        return _TestedClient(
            client, message, method, member, engine.validation_samples(client), time.perf_counter() - begun
        )

    def _run(self, clients: Sequence[_TestedClient], answers: dict[int, Answer]) -> None:
        """Test clients with one model as one batch; as two where the memory is too small, or else one by one."""
        engine, begun = self._engine, time.perf_counter()
        engine.use_model_of(clients[0].number)
        try:
            by_name = self._scores(clients)
        except torch.cuda.OutOfMemoryError:
            self._memory.too_many(len(clients))
            half = len(clients) // 2
            self._run(clients[:half], answers)
            self._run(clients[half:], answers)
            return
        except CannotStack as reason:
            for client in clients:
                answers[client.number] = self._alone(client.number, client.message, str(reason))
            return
        share = (time.perf_counter() - begun) / len(clients)
        for place, client in enumerate(clients):
            metrics: dict[str, Number] = {}
            for name, scores in by_name.items():
                if name != "validation" or len(client.validation.y):
                    metrics.update(metrics_of(name, scores[place]))
            answers[client.number] = Payload(metrics={**metrics, "evaluate-seconds": client.seconds + share})

    def _alone(self, client: int, message: Payload, reason: str) -> Answer:
        if reason not in self.alone:
            self.alone.add(reason)
            logger.info("%s: a client is tested alone: %s", self._engine.config.method.name, reason)
        try:
            return self._engine.evaluate(client, message)
        except RAISED as error:  # one client's: the others continue
            return error

    def _scores(self, clients: Sequence[_TestedClient]) -> dict[str, list[Score]]:
        """Return the scores of each test that :meth:`Engine.evaluate` makes."""
        if len(clients) < 2:
            raise CannotStack("there is one client")
        model = self._engine.model
        turns = self._turns[model]
        model.eval()
        personalised = [client.method.personalised(model) for client in clients]
        shared = [common_model(client.method, model) for client in clients]
        members, tests = [client.member for client in clients], [client.member.samples for client in clients]
        room = len(clients) * self._engine.config.training.batch_size
        alike = self._alike()

        def scores(forwards: Sequence[Forward], samples: Sequence[Samples]) -> list[Score]:
            return scores_of_many(turns, forwards, members, samples, room, alike)

        by_test = {"personalised": scores(personalised, tests)}
        validation = [client.validation for client in clients]
        if any(len(one.y) for one in validation):
            by_test["validation"] = scores(personalised, validation)
        if shared[0] is not None:
            same = all(one is other for one, other in zip(shared, personalised))
            by_test["global"] = by_test["personalised"] if same else scores(cast("list[Forward]", shared), tests)
        return by_test

    def _alike(self) -> bool:
        """Return whether what is predicted for a sample depends on no other one; of foreign code nobody knows."""
        kind, model = type(self._engine.config.method), self._engine.model
        ours = all(hook.__module__.partition(".")[0] == "fedpfl" for hook in (kind.personalised, kind.global_model))
        return ours and is_plain(model) and not any(needs_several(module) for module in model.modules())


def _no_draws(*_: object) -> Any:
    raise CannotStack("a test draws random numbers")


class _TestedClient(NamedTuple):
    """A client of a batch, before its test."""

    number: int
    message: Payload
    method: Method
    member: Member
    validation: Samples
    seconds: float
