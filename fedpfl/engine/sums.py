"""Replies that are added up where they are made: the vectors of a group stay there, and one answer comes for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..core.errors import LayoutError, printable
from ..core.extras import SERVER
from ..core.layout import Layout
from ..core.payload import Number, Payload
from ..core.server_view import Client
from ..rules.averages import RunningMean
from .listener import Listener, SumCheck
from .replies import Expected
from .rounds import RoundLoop, require_layout
from .transport import TRAIN, Request, count_bytes


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
    """The answer of a group, or of all groups of a round: its replies in client order, and the sum of the groups' sums.

    A group's sum is that of its vectors times their weights.
    """

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


def of_groups(
    loop: RoundLoop, transport: Any, requests: Sequence[Request]
) -> Iterator[tuple[Client, Payload]] | None:  # fmt: skip
    """Have a transport add replies up, and hand the sum of each group to the rule; None if it needs each reply.

    A group may also come reply by reply, which are yielded, in client order.
    """
    in_order = sorted(requests, key=lambda request: request.client.id)
    made = _adder(loop, [request.client for request in in_order])
    if made is None:
        return None
    groups: dict[int | None, list[Request]] = {}
    for request in in_order:
        groups.setdefault(loop.rule.group(request.client), []).append(request)
    return _rest(loop, transport.sums(list(groups.values()), made[0], loop.fail), made[1])


def _adder(loop: RoundLoop, asked: Sequence[Client]) -> tuple[Adder, list[Listener]] | None:
    """Return what adds the replies of a round up, and whose checks it makes; None if each reply is needed."""
    rule = loop.rule
    weights = {client.id: rule.weight_in_sum(client) for client in asked if rule.group(client) is not None}
    known = {client: weight for client, weight in weights.items() if weight is not None}
    each = any(listener.sees_each_reply() for listener in loop.listeners)
    if not asked or len(known) < len(asked) or each or loop.extras.names(SERVER) or not rule.takes_shared:
        return None
    found = [(listener, listener.sum_check(rule, asked[0])) for listener in loop.listeners]
    checks = tuple(check for _, check in found if check is not None)
    listeners = [listener for listener, check in found if check is not None]
    return (Adder(rule.layout, loop.expected, checks, known), listeners) if checks else None


def _rest(
    loop: RoundLoop, answers: Iterator[tuple[Client, Payload] | GroupSum], listeners: Sequence[Listener]
) -> Iterator[tuple[Client, Payload]]:
    """Add the sums as they come; yield the replies that come one by one."""
    for found in answers:
        if isinstance(found, GroupSum):
            _add_sum(loop, found, listeners)
        else:
            yield found


def _add_sum(loop: RoundLoop, found: GroupSum, listeners: Sequence[Listener]) -> None:
    """Hand a group's sum to the rule."""
    added: list[Client] = []
    for counted in found.replies:
        client = loop.rule.clients[counted.client]
        loop.round.bytes_up += counted.bytes
        if not loop.is_right(client, counted.metrics, counted.examined):
            continue
        if counted.found is None:
            loop.fail(client, counted.refused)
            continue
        for listener, measured in zip(listeners, counted.found, strict=True):
            listener.sum_checked(client, measured)
        loop.round.trained[client.id] = counted.metrics
        added.append(client)
    if added:
        loop.rule.add_sum(added, found.total)
