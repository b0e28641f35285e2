"""A whole federation on this machine: the local engine under the server's code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ..results.run import RunFolder
from ..server.federation import Watch, run_federation
from ..setup.config import Config
from ..transports.local import LocalTransport


def simulate(
    config: Config,
    watch: Watch | None = None,
    workers: int | None = None,
    clients_per_gpu: int = 1,
    printed: Callable[[int, str], None] | None = None,
) -> RunFolder:
    """Run a federation with all clients on this machine.

    Parameters
    ----------
    config : Config
        The run's settings, with run-name and num-clients.
    watch : Watch, optional
        Is told of the clients and of each round.
    workers : int, optional
        Processes that play the clients; 0: this process does. By default as many as there are cores.
    clients_per_gpu : int
        Clients that share a GPU at the same time.
    printed : callable, (int, str) → None, optional
        Gets what clients print in a worker, with the client's number; by default it is dropped.

    Returns
    -------
    RunFolder
        Where the results are.

    Raises
    ------
    FedpflError
        A setting, the data or the model is not as it should be, which is found before anything else starts, or a round
        failed.
    """
    threads = torch.get_num_threads()
    traces = Path(config.run.output_dir).expanduser() / config.run.run_name / "tracebacks"
    try:
        with LocalTransport(config, workers, clients_per_gpu, printed or _drop, traces) as transport:
            return run_federation(transport, config.flat(), watch)
    finally:
        torch.set_num_threads(threads)


def _drop(client: int, text: str) -> None:
    """Let what a client prints go."""
