"""What a transport is: it knows who is there, carries requests to clients and brings their replies back, in order."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..core.payload import Payload
from ..core.server_view import Client
from ..core.settings import Value
from ..setup.config import Config

if TYPE_CHECKING:
    from torch import Tensor

# The kinds of messages in a round.
TRAIN, EVALUATE = "train", "evaluate"


@dataclass(frozen=True)
class Request:
    """One message to a client, made when it is sent."""

    client: Client
    kind: str  # train or evaluate
    # Called again for a client that lost the message. Requests with the same array objects may share one copy.
    make: Callable[[], Payload]
    # Whether the shared vector of the reply may stay where it was computed (`Reply.row`).
    may_stay: bool = False


class Reply(NamedTuple):
    """A client's reply; ``row`` is its shared vector where that was computed, and the payload has any one as long."""

    client: Client
    payload: Payload
    row: Tensor | None = None


class Fail(Protocol):
    """Is called with a client and the reason why there is no reply from it."""

    def __call__(self, client: Client, reason: str, error: BaseException | None = None) -> None:
        """Note it; ``error`` is what the client raised, where it was raised in this process."""


class Members(ABC):
    """The clients of a federation and who is there; ``real``: they are on devices, or take as long as there."""

    real = True
    least = 1  # the fewest clients that are asked in a round

    @abstractmethod
    def find_clients(
        self,
        config: Config,
        state_key: str = "",
        identities: Mapping[str, str] | None = None,
    ) -> dict[int, Payload]:
        """Return how each client describes itself, by client: see :meth:`fedpfl.client.engine.Engine.query`.

        Clients store their arrays, and nodes their numbers and secrets, under ``state_key``. ``identities`` is what
        :meth:`identities` returned when a resumed run began. ``FedpflError`` if a client cannot take part, or not all
        are there.
        """

    def identities(self) -> dict[str, str]:
        """Return the marks that tell the nodes apart, by client; nothing where all clients are in this program."""
        return {}

    def about_data(self) -> dict[str, Any]:
        """Return names and the inputs' scaling where all clients are in this program; on devices they stay."""
        return {}

    def about_clients(self) -> dict[str, np.ndarray]:
        """Return arrays of which each client has a row, where all clients are in this program; see ``export.py``."""
        return {}

    def begin_round(self) -> None:  # noqa: B027  most transports have nothing to prepare
        """Prepare for a round, for example look for clients that have moved to other nodes."""

    def newcomers(self) -> dict[int, Payload]:
        """Return how clients describe themselves that have connected since the last call, and were absent before."""
        return {}


class Transport(Members):
    """Carries messages between the server and the clients of one federation."""

    @abstractmethod
    def replies(self, requests: Sequence[Request], timeout: float, fail: Fail) -> Iterator[Sequence[Reply]]:
        """Send requests, one a client, and yield the replies in client order, each group as soon as its turn has come.

        A group is what comes together: the replies of a worker's clients, of a batch, or of one device. Requests are in
        the order in which they should be worked on. ``fail`` is told of each client without a reply, and why; after
        ``timeout`` seconds that is each that has not answered.
        """


def count_bytes(payload: Payload) -> int:
    """Return the bytes that a payload has as Flower's message: arrays with their headers, settings, numbers and keys.

    Equal to what Flower's records count (``count_bytes``), without making them. Counted alike where a message to a
    device is one frame instead, which has less than a hundred bytes more for each array.
    """
    arrays = sum(len(name) + array_bytes(array) for name, array in payload.arrays.items())
    config = sum(len(key) + _value_bytes(value) for key, value in payload.config.items())
    return arrays + config + sum(len(key) + 8 for key in payload.metrics)


def array_bytes(array: np.ndarray) -> int:
    """Return the bytes of an array on its way: NumPy's file format."""
    return _header_bytes(array.dtype.str, array.shape) + array.nbytes


@lru_cache(maxsize=256)
def _header_bytes(descr: str, shape: tuple[int, ...]) -> int:
    header = io.BytesIO()
    fields: Mapping[str, object] = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, dict(fields))
    return len(header.getvalue())


def _value_bytes(value: Value) -> int:
    if isinstance(value, bool):
        return 1
    return len(value) if isinstance(value, str) else 8
