"""Has the simulation train and test clients as one batch, in one process (``clients-at-once``)."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..client.engine import Engine
from ..client.tests_together import TestsTogether
from ..client.together import ClientsAtOnce, Together
from ..core.errors import LayoutError, printable
from ..core.payload import Payload
from ..core.server_view import Client
from .listener import SumCheck
from .one_process import Failed, failed
from .sums import Adder, Counted, GroupSum
from .transport import TRAIN, Request, count_bytes

# Bytes of vectors, as float64, that are checked and added up at a time: groups have some.
ROOM = 64 * 2**20


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
        """Train all clients as one batch, and add up their vectors where they were computed, group by group."""
        start: Tensor | None = None

        def make(request: Request) -> Payload:
            nonlocal start
            message = request.make()
            if start is None:  # the same for all
                start = torch.from_numpy(adder.layout.unpack(message.arrays)).to(self._device)
            return message

        trained = self.together.train_here(
            [(request.client.id, partial(make, request)) for group in groups for request in group]
        )
        total: RowSum | None = None
        counted: list[Counted] = []
        replies: list[list[tuple[Client, Payload]]] = []
        rows: list[Tensor] = []
        for at, group in enumerate(groups):
            replies.append([])
            for request, (number, answer, row) in zip(group, trained, strict=False):
                if row is None or not isinstance(answer, Payload):
                    assert isinstance(answer, BaseException)
                    yield request.client, failed(number, answer)
                else:
                    replies[-1].append((request.client, answer))
                    rows.append(row)
            is_last = at == len(groups) - 1
            if rows and start is not None and (is_last or 8 * len(rows) * len(start) >= ROOM):
                total = total or RowSum(adder, start)
                counted.extend(total.add(replies, torch.stack(rows)))
                replies, rows = [], []
        if total is not None:
            yield GroupSum(counted, total.sum.cpu().numpy())


@runtime_checkable
class ChecksRows(Protocol):
    """A check that looks at many vectors at once."""

    def of_rows(self, rows: Tensor, start: Tensor) -> Sequence[Mapping[str, float] | LayoutError]:
        """Return what a call would return or raise for each row, computed where the rows are."""


class RowSum:
    """Does for the vectors of whole groups, where these were computed, what an adder and a rule do with each.

    ``sum`` has the bits of the rule's: that of the groups' sums, in their order. Norms differ in their last digits.
    """

    def __init__(self, adder: Adder, start: Tensor) -> None:
        self._adder, self._start = adder, start
        self.sum = torch.zeros_like(start, dtype=torch.float64)

    def add(self, groups: Sequence[Sequence[tuple[Client, Payload]]], rows: Tensor) -> list[Counted]:
        """Add the vectors of groups' replies, which are ``rows``, if nothing is wrong with them."""
        adder, counted = self._adder, list[Counted]()
        seen = zip(*(_rows_seen(check, rows, self._start) for check in adder.checks), strict=True)
        sound: list[list[int]] = []
        for group in groups:
            sound.append([])
            for client, reply in group:
                examined, of_checks = adder.expected.examine(TRAIN, client, reply.metrics), next(seen)
                one = Counted(client.id, reply.metrics, count_bytes(reply), examined, None)
                found = tuple(of_one for of_one in of_checks if not isinstance(of_one, LayoutError))
                if not examined[0] and len(found) == len(of_checks):
                    sound[-1].append(len(counted))
                    one = one._replace(found=found)
                elif not examined[0]:
                    wrong = next(of_one for of_one in of_checks if isinstance(of_one, LayoutError))
                    one = one._replace(refused=printable(str(wrong)))
                counted.append(one)
        self._add([group for group in sound if group], rows, [adder.weights[one.client] for one in counted])
        return counted

    def _add(self, groups: Sequence[Sequence[int]], rows: Tensor, weights: Sequence[float]) -> None:
        """Add rows to the sum of each group, those at the same place in their groups at once; then add these sums."""
        longest_first = sorted(range(len(groups)), key=lambda group: -len(groups[group]))
        sums = torch.zeros(len(groups), rows.shape[1], dtype=torch.float64, device=rows.device)
        for place in range(max(map(len, groups), default=0)):
            at = [groups[group][place] for group in longest_first if len(groups[group]) > place]
            factors = torch.tensor([weights[row] for row in at], dtype=torch.float64, device=rows.device)
            # Two steps: a GPU would round their fusion differently.
            products = rows[at].double().mul_(factors[:, None])
            sums[: len(at)].add_(products)
        for row in sorted(range(len(groups)), key=longest_first.__getitem__):
            self.sum.add_(sums[row])


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
