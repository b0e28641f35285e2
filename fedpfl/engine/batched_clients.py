"""Has the simulation train and test clients as one batch, in one process (``clients-at-once``)."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

from ..client.batched_evaluation import BatchedEvaluation
from ..client.batched_training import BatchedTraining, ClientsAtOnce
from ..client.engine import Engine
from ..core.payload import Payload
from .client_runner import Answer, failed
from .transport import TRAIN, Request


class BatchedClients:
    """Runs the clients of an engine, many at once."""

    def __init__(self, engine: Engine) -> None:
        gc.freeze()  # what there is by now stays: collections need not look at it
        memory = ClientsAtOnce.of(engine.config.training)
        self._sends_as_trained = engine.sends_as_trained
        self.together, self.tests = BatchedTraining(engine, memory), BatchedEvaluation(engine, memory)

    def run(self, requests: Sequence[Request]) -> Iterator[list[Answer]]:
        """Yield the clients' answers in client order, those of a batch together."""
        if not requests:
            return
        in_order = sorted(requests, key=lambda request: request.client.id)
        clients = {request.client.id: request.client for request in in_order}
        tasks = [(request.client.id, request.make) for request in in_order]
        stay = self._sends_as_trained and all(request.may_stay for request in requests)
        run = self.together.train(tasks, stay) if requests[0].kind == TRAIN else self.tests.test(tasks)
        for batch in run:
            yield [
                Answer(clients[number], answer if isinstance(answer, Payload) else failed(number, answer), row)
                for number, answer, row in batch
            ]
            del batch  # its vectors, while the next one is computed
