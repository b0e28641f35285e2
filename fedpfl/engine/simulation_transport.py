"""The clients of a simulation: the server's code runs in the calling process, the clients in it too, or in its workers.

The sums are the same to the bit, however many workers there are.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..core import user_code
from ..core.errors import ConfigError
from ..core.files import private_folder
from ..core.payload import Payload
from ..core.process import cores
from ..data import partition_counts
from ..setup.all_settings import code_in
from ..setup.config import Config
from .client_runner import Answer, ClientFailure, engine_here, keep_freed_memory, run_client, trains_together
from .transport import Fail, Reply, Request, Transport

# Numbers of samples by client and class, for people, that a run records.
MAX_COUNTS = 100_000


class SimulationTransport(Transport):
    """Clients on this machine; a context manager that leaves no process behind.

    Making it checks settings, data, their division and the model. ``workers`` is the number of processes; 0 runs all
    clients in this process. By default there are as many as cores, or as GPUs if there are several, but no more than
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
        self._traces = traces
        gpu = config.training.device == "cuda"
        self.workers = default_workers(config) if workers is None else workers
        if self.workers and multiprocessing.current_process().daemon:
            allowed = "must be 0 in a process of multiprocessing.Pool, which may start no other one"
            raise ConfigError("workers", self.workers, allowed)
        # A process that has used a GPU cannot be forked, and macOS's own libraries may not be used in a fork.
        fork = (start or ("fork" if sys.platform == "linux" and not gpu else "spawn")) == "fork"
        if self.workers and not fork:
            user_code.require_sendable(code_in(config.flat()))
        here = config
        if gpu and self.workers:  # this process only checks; the workers have engines of their own on the GPU
            here = replace(config, training=replace(config.training, device="cpu"))
        self._engine = engine_here(here)
        keep_freed_memory()
        # Who runs the clients, if it is not this process, one after the other.
        self.crew: Any = None
        if self.workers:
            from fedpfl.engine.worker_schedule import WorkerProcesses

            self.crew = WorkerProcesses(config, self._engine, self.workers, fork, printed)
        elif trains_together(config):
            from fedpfl.engine.batched_clients import BatchedClients

            self.crew = BatchedClients(self._engine)

    def __enter__(self) -> SimulationTransport:
        """Begin; workers are started with the first requests."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, whatever they do."""
        if self.workers:
            self.crew.close()
        gc.unfreeze()

    def find_clients(
        self,
        config: Config,
        state_key: str = "",
        identities: Mapping[str, str] | None = None,
    ) -> dict[int, Payload]:
        """Describe the clients; none has to be asked."""
        return {client: self._engine.query(client, Payload()) for client in range(self._engine.num_clients)}

    def about_data(self) -> dict[str, Any]:
        """Return how inputs are scaled, names of clients, features, classes, and how many samples who has of each."""
        data = self._engine.data
        classes = () if data.has_no_class_names else data.class_names
        names_of = {"client_names": data.client_names, "class_names": classes, "feature_names": data.feature_names}
        counted = not data.has_targets and data.num_clients * data.num_classes <= MAX_COUNTS
        counts: dict[str, Any] = {"class_counts": partition_counts(data).tolist()} if counted else {}
        counts.update({"data_drawn": True} if data.drawn else {})
        return {"scaling": data.inputs, **counts, **{key: list(names) for key, names in names_of.items() if names}}

    def about_clients(self) -> dict[str, np.ndarray]:
        """Return the preparation of each client's features, and its numbering of the classes where clients differ."""
        data = self._engine.data
        rows = [data.preparation(client) for client in range(data.num_clients)]
        facts = {key: np.stack([row[key] for row in rows]) for key in rows[0]}
        classes = np.stack([data.classes_of(client) for client in range(data.num_clients)])
        return facts if (classes == np.arange(classes.shape[1])).all() else {**facts, "classes": classes}

    def replies(self, requests: Sequence[Request], timeout: float, fail: Fail) -> Iterator[Sequence[Reply]]:
        """Run the clients in the workers or in this process; all of them answer, so there is no time limit."""
        answers: Iterator[list[Answer]] = self._run_here(requests) if self.crew is None else self.crew.run(requests)
        for group in answers:
            for client, answer, _ in group:
                if isinstance(answer, ClientFailure):
                    fail(client, answer.reason + self._kept(answer), answer.error)
            yield [Reply(client, answer, row) for client, answer, row in group if isinstance(answer, Payload)]
            del group, answer  # their vectors, while the next ones are computed

    def _run_here(self, requests: Sequence[Request]) -> Iterator[list[Answer]]:
        for request in sorted(requests, key=lambda request: request.client.id):
            message = request.make()
            message = replace(message, config=dict(message.config))  # others get the same
            answer = run_client(self._engine, request.kind, request.client.id, message)
            if isinstance(answer, Payload):
                # The next client trains in the same model, of which these may be views.
                answer.arrays = {name: array.copy() for name, array in answer.arrays.items()}
            yield [Answer(request.client, answer)]

    def _kept(self, failed: ClientFailure) -> str:
        """Store a traceback and return its folder, the same for all clients with the same reason."""
        if not failed.trace or self._traces is None:
            return ""
        path = self._traces / f"client-{failed.client:05d}.txt"
        with suppress(OSError):  # a full disk: the reason itself is still told
            private_folder(self._traces)
            path.write_text(failed.trace, encoding="utf-8")
            return f"; tracebacks: {self._traces}"
        return ""


def default_workers(config: Config) -> int:
    """Return the usual number of workers: one a core, or one of several GPUs, none idle; one GPU needs none."""
    if multiprocessing.current_process().daemon:
        return 0
    if config.training.device == "cuda":
        import torch

        gpus = torch.cuda.device_count()
        return min(gpus, config.data.num_clients) if gpus > 1 else 0
    if trains_together(config):
        return 0
    return min(max(1, len(cores()) // max(1, config.training.threads)), config.data.num_clients)
