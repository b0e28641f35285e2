"""A clock for plans: when each reply would come, and each round end, on the devices that a file describes.

The times are computed, never measured, in whole microseconds, so that they are the same for any number of workers. A
device receives messages one after the other, computes for one client at a time, and sends replies one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from ...core.errors import StateError
from ...core.server_view import Client
from ...training.settings import TrainingSettings
from ..transport import TRAIN
from .devices import KEY, Device, DevicesModel, back_online

# Microseconds.
SECOND, HOUR = 1_000_000, 3_600_000_000
# Names of the clock's arrays among a run's state.
NOW, BUSY, LAST, MODEL = ("clock_now", "clock_busy", "clock_last", "clock_model")

# From when on a device can receive, compute and send for another client.
Free = tuple[int, int, int]


def exchange(
    device: Device, free: Free, sent: int, down: int, work: int, up: int, starts_at: float = 0.0
) -> tuple[int, Free]:
    """Return when the reply to a message is at the server, and from when on the device is free.

    Parameters
    ----------
    device : Device
        Who gets the message.
    free : tuple of int
        From when on it is free to receive, compute and send.
    sent : int
        When the server sends the message.
    down, up : int
        Bytes of message and reply.
    work : int
        Microseconds that the client computes.
    starts_at : float
        Hour of the day at which the time is 0.
    """
    receiving = online(device, max(sent, free[0]), starts_at)
    received = receiving + micro(down / device.down)
    computed = max(received + micro(device.delay), free[1]) + work
    sending = online(device, max(computed, free[2]), starts_at)
    gone = sending + micro(up / device.up)
    return gone + micro(device.delay), (received, computed, gone)


def online(device: Device, moment: int, starts_at: float) -> int:
    """Return the time from which a device is on the network: ``moment``, or the end of its offline hours."""
    return moment + round(back_online(device.offline, (starts_at + moment / HOUR) % 24) * HOUR)


def micro(seconds: float) -> int:
    """Return seconds in whole microseconds."""
    return round(seconds * SECOND)


class VirtualClock:
    """The virtual time of a run.

    ``training`` returns how a client trains.

    ``size`` are the bytes of the shared arrays on their way to a client, ``replies`` those on their way back: messages
    and replies have as many until those of a round are counted.
    """

    def __init__(
        self, bench: DevicesModel, training: Callable[[int], TrainingSettings], size: int, replies: int
    ) -> None:  # fmt: skip
        self._bench, self._training, self._bytes = bench, training, (size, replies)
        self._place = {client: place for place, device in enumerate(bench.devices) for client in device.clients}
        self._free: list[Free] = [(0, 0, 0)] * len(bench.devices)
        # How long the last training of each client took, from message to reply.
        self._last: dict[int, int] = {}
        self.now = 0
        self._begun, self._joules = 0, 0.0

    def begin(self) -> None:
        """Begin a round."""
        self._begun, self._joules = self.now, 0.0

    def end(self) -> tuple[float, float | None]:
        """Return the seconds and joules of the round; None for the joules where a device's watts are not known."""
        seconds, devices = (self.now - self._begun) / SECOND, self._bench.devices
        measured = all(device.watts for device in devices)
        return seconds, self._joules + seconds * sum(one.idle_watts for one in devices) if measured else None

    def offline(self, clients: Iterable[int]) -> list[int]:
        """Return the clients that are not on the network; if none is on it, wait for the first."""
        back = [online(device, self.now, self._bench.starts_at) for device in self._bench.devices]
        moments = {client: back[self._place[client]] for client in clients}
        self.now = max(self.now, min(moments.values(), default=self.now))
        return [client for client, moment in moments.items() if moment > self.now]

    def due(self, clients: Collection[Client], kind: str, keep: bool = False) -> dict[int, int]:
        """Return the time of each client's reply to a message that is sent now; with ``keep`` it is sent."""
        trains = kind == TRAIN
        down, up = self._bytes if trains else (self._bytes[0], 0)
        free, due = list(self._free), dict[int, int]()
        # As they are sent: the longest work first.
        longest = sorted(clients, key=lambda one: -(one.train_samples if trains else one.test_samples))
        for number, client in enumerate(longest, 1):
            place = self._place[client.id]
            device, work = self._bench.devices[place], self._work(client, trains)
            sent = self.now + micro(number * self._bench.server_seconds)
            due[client.id], free[place] = exchange(device, free[place], sent, down, work, up, self._bench.starts_at)
            if keep:
                self._joules += work / SECOND * (device.watts - device.idle_watts)
                if trains:
                    self._last[client.id] = due[client.id] - self.now
        if keep:
            self._free = free
        return due

    def count_bytes(self, down: int, messages: int, up: int, replies: int) -> None:
        """Note the bytes of a round's messages and replies: the mean is what each has."""
        self._bytes = down // max(1, messages), up // max(1, replies)

    def state(self) -> dict[str, np.ndarray]:
        """Return the clock's state for a resumed run."""
        return {
            NOW: np.array([self.now, *self._bytes]), BUSY: np.array(self._free, np.int64),
            LAST: np.array(sorted(self._last.items()), np.int64).reshape(-1, 2), MODEL: self._model(),
        }  # fmt: skip

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what :meth:`state` returned; ``StateError`` if it is of other devices."""
        if NOW not in state:  # of a run that this one continues
            return
        if not np.array_equal(state[MODEL], self._model()):
            raise StateError(f"{KEY}: the file describes other devices than when the run began")
        self.now, down, up = state[NOW].tolist()
        self._bytes, self._last = (down, up), dict(state[LAST].tolist())
        self._free = [(received, computed, gone) for received, computed, gone in state[BUSY].tolist()]

    def _model(self) -> np.ndarray:
        return np.frombuffer(hashlib.sha256(repr(self._bench).encode()).digest(), np.uint8)

    def _work(self, client: Client, trains: bool) -> int:
        """Return the microseconds that a client computes."""
        device, training = self._bench.devices[self._place[client.id]], self._training(client.id)
        if not trains:
            return micro(client.test_samples / device.test)
        samples = training.local_steps * training.batch_size or client.train_samples * training.local_epochs
        return micro(samples / device.train)


def first_in_time(due: Mapping[int, int], first: int, until: int | None, least: int) -> list[int]:
    """Return the clients that are waited for: the ``first`` to reply, of those that do until then, at least ``least``.

    ``until`` is a moment, or None.
    """
    order: Sequence[int] = sorted(due, key=lambda client: (due[client], client))
    punctual = len(order) if until is None else sum(moment <= until for moment in due.values())
    return list(order[: min(first, max(punctual, least))])
