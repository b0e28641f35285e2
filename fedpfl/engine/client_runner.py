"""What runs clients in one process of the simulation: the server's own, or a worker."""

from __future__ import annotations

import ctypes
import os
import signal
import traceback
from bdb import BdbQuit
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from ..client.engine import HANDLERS, Engine
from ..client.engines import engine_for
from ..client.forks import in_one_process
from ..core.errors import RAISED, FedpflError, in_one_line
from ..core.payload import Payload
from ..core.server_view import Client
from ..setup.config import Config
from ..setup.options.after_the_end import PersonaliseOption

if TYPE_CHECKING:
    from torch import Tensor

# glibc's mallopt: from which size on a block is the system's own, and how much free memory goes back to it. Vectors of
# light clients' models and gradients of most layers are smaller; a large model's vectors would be several copies of it.
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
KEPT_BLOCK, KEPT_FREE = 16 * 2**20, 64 * 2**20


@dataclass(frozen=True)
class ClientFailure:
    """Why a client has no reply, and a traceback unless the line says it all; ``error`` stays where it was raised."""

    client: int
    reason: str
    trace: str = ""
    error: BaseException | None = None


class Answer(NamedTuple):
    """What a client answered; ``row`` as in :class:`Reply`."""

    client: Client
    reply: Payload | ClientFailure
    row: Tensor | None = None


def engine_here(config: Config) -> Engine:
    """Return the engine of a process of this run."""
    # As many threads in every worker, and in this process where it runs the clients: the bits depend on it.
    threads = config.training.threads or 1
    config = replace(config, training=replace(config.training, threads=threads))
    return engine_for(config, config.data.num_clients, "", 0, begins="")


def trains_together(config: Config) -> bool:
    """Return whether a process trains clients as one batch; not where something else is done in place of training."""
    at_once = config.training.clients_at_once
    asked = at_once > 1 or (at_once == 0 and config.training.device == "cuda")
    return asked and not config.wants(PersonaliseOption)


def keep_freed_memory() -> None:
    """Have this process reuse memory that it has freed, instead of giving it back to the system.

    A vector of a megabyte would otherwise get new pages, cleared by the system, for every reply and every step:
    a fifth of a round with a thousand light clients. Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT_BLOCK)
        mallopt(M_TRIM_THRESHOLD, KEPT_FREE)


def run_client(engine: Engine, kind: str, client: int, message: Payload) -> Payload | ClientFailure:
    """Run a client and return its answer; what goes wrong is its reply."""
    try:
        with in_one_process():
            return HANDLERS[kind](engine, client, message)
    except RAISED as error:  # one client's: the others continue, and the user gets the traceback
        return failed(client, error)
    except KeyboardInterrupt as error:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # Ctrl-C, as far as anybody can tell
            raise
        return failed(client, error)


def failed(client: int, error: BaseException) -> ClientFailure:
    """Return the answer of a client that raised an error."""
    if isinstance(error, FedpflError):
        return ClientFailure(client, str(error), error=error)
    if isinstance(error, BdbQuit):  # the debugger was left: that ends the run as Ctrl-C does
        raise KeyboardInterrupt from error
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return ClientFailure(client, in_one_line(error), trace, error)
