"""Replies that are added up where they are made: the vectors of a group stay there, and one answer comes for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ..core.errors import LayoutError, printable
from ..core.layout import Layout
from ..core.payload import Number, Payload
from ..core.server_view import Client
from ..rules.averages import RunningMean
from .listener import SumCheck
from .replies import Expected
from .transport import TRAIN, Fail, Request, Transport, count_bytes

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class ChecksRows(Protocol):
    """A check that looks at many vectors at once."""

    def of_rows(self, rows: Tensor, start: Tensor) -> Sequence[Mapping[str, float] | LayoutError]:
        """Return what a call would return or raise for each row, computed where the rows are."""


class Counted(NamedTuple):
    """A reply without its vector.

    That is in the group's sum if ``found`` has what the checks returned; otherwise ``refused`` is the reason, or the
    metrics are wrong: ``examined`` is what :meth:`Expected.examine` returns for them.
    """

    client: int
    metrics: dict[str, Number]
    bytes: int  # of the whole reply
    examined: tuple[str, dict[str, str]]
    found: tuple[Mapping[str, float], ...] | None
    refused: str = ""


class GroupSum(NamedTuple):
    """The answer of a group: its replies in client order, and the sum of their vectors times their weights."""

    replies: list[Counted]
    total: np.ndarray


@dataclass(frozen=True)
class Adder:
    """Checks replies and adds them up as the server would; it is sent to the workers once a round.

    One of the ``checks`` refuses values that are not finite.
    """

    layout: Layout
    expected: Expected
    checks: tuple[SumCheck, ...]
    weights: Mapping[int, float]

    def add(self, client: Client, reply: Payload, start: np.ndarray, total: RunningMean) -> Counted:
        """Add a reply's vector to a group's sum if nothing is wrong with it."""
        examined = self.expected.examine(TRAIN, client, reply.metrics)
        counted = Counted(client.id, reply.metrics, count_bytes(reply), examined, None)
        if examined[0]:
            return counted
        try:
            require_layout(self.layout, reply)
            vector = self.layout.unpack(reply.arrays)
            found = tuple(check(vector, start) for check in self.checks)
        except LayoutError as error:
            return counted._replace(refused=printable(str(error)))
        total.add(vector, self.weights[client.id])
        return counted._replace(found=found)

    def add_rows(
        self, replies: Sequence[tuple[Client, Payload]], rows: Tensor, start: Tensor
    ) -> tuple[list[Counted], np.ndarray]:  # fmt: skip
        """Do what :meth:`add` does for replies whose vectors are ``rows``, where these are; return their sum, too.

        The sum has the bits of :meth:`add`. Norms differ in their last digits.
        """
        seen = [_rows_seen(check, rows, start) for check in self.checks]
        products = rows.double()
        total = products.new_zeros(rows.shape[1])
        counted = []
        for (client, reply), product, *found in zip(replies, products, *seen, strict=True):
            examined = self.expected.examine(TRAIN, client, reply.metrics)
            one = Counted(client.id, reply.metrics, count_bytes(reply), examined, None)
            wrong = [of_one for of_one in found if isinstance(of_one, LayoutError)]
            if not examined[0] and wrong:
                one = one._replace(refused=printable(str(wrong[0])))
            elif not examined[0]:
                # Two steps: a GPU would round their fusion differently.
                total.add_(product.mul_(self.weights[client.id]))
                one = one._replace(found=tuple(of_one for of_one in found if not isinstance(of_one, LayoutError)))
            counted.append(one)
        return counted, total.cpu().numpy()


def _rows_seen(check: SumCheck, rows: Tensor, start: Tensor) -> Sequence[Mapping[str, float] | LayoutError]:
    """Return what a check returns or raises for each row; it is called with each if it has no way for all."""
    if isinstance(check, ChecksRows):
        return check.of_rows(rows, start)
    found: list[Mapping[str, float] | LayoutError] = []
    first = start.cpu().numpy()
    for row in rows.cpu().numpy():
        try:
            found.append(check(row, first))
        except LayoutError as error:
            found.append(error)
    return found


class AddingTransport(Transport):
    """A transport that can add replies up on its way to the server, if it ``adds``."""

    @property
    @abstractmethod
    def adds(self) -> bool:
        """Whether there is anything between clients and server that adds up."""

    @abstractmethod
    def sums(
        self, groups: Sequence[Sequence[Request]], adder: Adder, fail: Fail
    ) -> Iterator[tuple[Client, Payload] | GroupSum]:
        """Send the requests of groups, which are in client order each, and yield their sums in that order.

        A group may also come reply by reply.
        """


def require_layout(layout: Layout, reply: Payload) -> None:
    """Raise ``LayoutError`` if a reply says that it is of another layout."""
    if reply.config.get("layout") != layout.to_text():
        layout.require(Layout.from_text(str(reply.config.get("layout", ""))))
