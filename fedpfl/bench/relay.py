"""Gives the connection to a simulated device the rate, delay, losses and gaps of a given network.

A separate process, ``python -m fedpfl.bench.relay``: what is sent to it over TCP goes on to another address, no
faster than the rate and no sooner than the delay, in each direction. All connections of a device share its rate. What
is lost comes as late as TCP sends it again, and what follows waits for it. While the device is off, it has no
connection. It does not shake hands late, as a real network does.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass

from ..core.errors import ConfigError

# Bytes are passed on in pieces of at most this, and so many pieces of a connection may be on their direction.
PIECE_BYTES = 16_384
MAX_PIECES = 64
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_NETWORK = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?)(kbit|mbit|gbit)(?:\s+(\d{1,9}(?:\.\d{1,9})?)ms)?(?:\s+(\d{1,9}(?:\.\d{1,9})?)%)?"
    r"(?:\s+off\s+(\d{1,9})-(\d{1,9}))?",
    re.ASCII,
)
# Linux waits at least so long before it sends something again.
AGAIN_SECONDS = 0.2


@dataclass(frozen=True)
class Network:
    """The link between a device and the server, the same in both directions."""

    rate: float  # bits a second
    delay: float = 0.0  # seconds
    loss: float = 0.0  # the share of pieces that are lost
    off: tuple[float, float] = (0.0, 0.0)  # seconds after the start between which the device has no connection

    @classmethod
    def parse(cls, text: str) -> Network:
        """Return the network of a text such as ``20mbit 15ms``, or ``5mbit 50ms 2% off 60-660``."""
        match = _NETWORK.fullmatch(text.strip())
        if match is None or not float(match[1]):
            form = 'must be a rate and a delay, as in "20mbit 15ms"'
            raise ConfigError("network", text, f'{form}; losses and a gap in seconds may follow: "2% off 60-660"')
        loss, off = float(match[4] or 0) / 100, (float(match[5] or 0), float(match[6] or 0))
        if loss > 0.5:
            raise ConfigError("network", text, "may lose at most 50%")
        if match[5] and off[0] >= off[1]:
            raise ConfigError("network", text, "must end its gap after the beginning: off 60-660")
        return cls(float(match[1]) * _UNITS[match[2]], float(match[3] or 0) / 1000, loss, off)


class Direction:
    """One direction of a network: says when what is sent now arrives."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._free = 0.0
        self._last = 0.0
        self._chance = random.Random(0)

    def arrival(self, now: float, count: int) -> float:
        """Return when ``count`` bytes that are sent at ``now`` have arrived, behind those that were sent before."""
        self._free = max(now, self._free) + 8 * count / self._network.rate
        lost = self._network.loss and self._chance.random() < self._network.loss
        again = 2 * self._network.delay + AGAIN_SECONDS if lost else 0.0
        self._last = max(self._last, self._free + self._network.delay + again)
        return self._last


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
    pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_PIECES)
    clock = asyncio.get_running_loop().time

    async def deliver() -> None:
        while True:
            due, piece = await pieces.get()
            await asyncio.sleep(due - clock())
            if not piece:
                writer.write_eof() if writer.can_write_eof() else writer.close()
                return
            writer.write(piece)
            await writer.drain()

    delivery = asyncio.create_task(deliver())
    try:
        while not delivery.done():
            piece = await reader.read(PIECE_BYTES)
            await pieces.put((direction.arrival(clock(), len(piece)), piece))
            if not piece:
                await delivery
                return
    finally:
        delivery.cancel()


# The loop itself keeps no task.
_switches: set[asyncio.Task[None]] = set()


async def serve(listen: tuple[str, int], to: tuple[str, int], network: Network) -> asyncio.Server:
    """Listen, and carry every connection to ``to``."""
    there, back = Direction(network), Direction(network)
    clock = asyncio.get_running_loop().time
    begun, open_now = clock(), set[asyncio.StreamWriter]()

    def is_off() -> bool:
        return network.off[0] <= clock() - begun < network.off[1]

    async def switch_off() -> None:
        await asyncio.sleep(network.off[0])
        for writer in open_now:
            writer.transport.abort()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_off():
            writer.close()
            return
        # As with a server that is down: the connection ends.
        with suppress(OSError):
            onward_reader, onward = await asyncio.open_connection(*to)
            open_now.update((writer, onward))
            both = [_carry(reader, onward, there), _carry(onward_reader, writer, back)]
            await asyncio.gather(*both, return_exceptions=True)
            open_now.difference_update((writer, onward))
            onward.close()
        writer.close()

    if network.off[1]:
        _switches.add(asyncio.create_task(switch_off()))
    return await asyncio.start_server(connected, *listen)


def main() -> None:
    """Run the relay until a signal ends it; prints a line when it serves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("listen", "to"):
        parser.add_argument(f"--{name}", metavar="HOST:PORT", required=True)
    parser.add_argument("--network", required=True)
    options = parser.parse_args()

    def address(text: str) -> tuple[str, int]:
        host, _, port = text.rpartition(":")
        return host, int(port)

    async def run() -> None:
        await serve(address(options.listen), address(options.to), Network.parse(options.network))
        print(f"ready {options.listen} {options.to}", flush=True)
        await asyncio.Event().wait()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    asyncio.run(run())


if __name__ == "__main__":
    main()
