"""Has the simulation train and test clients as one batch, in one process (``clients-at-once``)."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from ..client.engine import Engine
from ..client.tests_together import TestsTogether
from ..client.together import ClientsAtOnce, Together
from ..core.payload import Payload
from ..core.server_view import Client
from .simulation_transport import Failed, failed
from .sums import Adder, GroupSum
from .transport import TRAIN, Request


class AtOnce:
    """Runs the clients of an engine, many at once; ``adds``: their vectors may be added up where they are computed."""

    def __init__(self, engine: Engine) -> None:
        gc.freeze()  # what there is by now stays: collections need not look at it
        memory = ClientsAtOnce.of(engine.config.training)
        self._device, self.adds = engine.config.training.device, engine.sends_as_trained
        self.together, self.tests = Together(engine, memory), TestsTogether(engine, memory)

    def run(self, requests: Sequence[Request]) -> Iterator[tuple[Client, Payload | Failed]]:
        """Yield each client's answer, in client order."""
        if not requests:
            return
        clients = {request.client.id: request.client for request in requests}
        tasks = [(request.client.id, request.make) for request in requests]
        run = self.together.train if requests[0].kind == TRAIN else self.tests.test
        for number, answer in run(sorted(tasks, key=lambda task: task[0])):
            yield clients[number], answer if isinstance(answer, Payload) else failed(number, answer)

    def sums(self, groups: Sequence[Sequence[Request]], adder: Adder) -> Iterator[GroupSum | tuple[Client, Failed]]:
        """Train all clients as one batch, and add up the vectors of each group where they were computed."""
        start: torch.Tensor | None = None

        def make(request: Request) -> Payload:
            nonlocal start
            message = request.make()
            if start is None:  # the same for all
                start = torch.from_numpy(adder.layout.unpack(message.arrays)).to(self._device)
            return message

        trained = self.together.train_here(
            [(request.client.id, partial(make, request)) for group in groups for request in group]
        )
        for group in groups:
            replies, rows = [], []
            for request, (number, answer, row) in zip(group, trained, strict=False):
                if row is None or not isinstance(answer, Payload):
                    assert isinstance(answer, BaseException)
                    yield request.client, failed(number, answer)
                else:
                    replies.append((request.client, answer))
                    rows.append(row)
            if rows and start is not None:
                yield GroupSum(*adder.add_rows(replies, torch.stack(rows), start))
