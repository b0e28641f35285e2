"""Gives the connection to a simulated device the rate and the delay of a given network.

A separate process, ``python -m fedpfl.bench.relay``: what is sent to it over TCP goes on to another address, no
faster than the rate and no sooner than the delay, in each direction. All connections of a device share its rate. It
does not lose, reorder or shake hands late, as a real network does.
"""

from __future__ import annotations

import argparse
import asyncio
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
_NETWORK = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)(?:\s+(\d+(?:\.\d+)?)ms)?")


@dataclass(frozen=True)
class Network:
    """The link between a device and the server, the same in both directions."""

    rate: float  # bits a second
    delay: float = 0.0  # seconds

    @classmethod
    def parse(cls, text: str) -> Network:
        """Return the rate and delay of a text such as ``20mbit 15ms``; without a delay it is 0."""
        match = _NETWORK.fullmatch(text.strip())
        if match is None or not float(match[1]):
            raise ConfigError("network", text, 'must be a rate and a delay, as in "20mbit 15ms"')
        return cls(float(match[1]) * _UNITS[match[2]], float(match[3] or 0) / 1000)


class Direction:
    """One direction of a network: says when what is sent now arrives."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._free = 0.0

    def arrival(self, now: float, count: int) -> float:
        """Return when ``count`` bytes that are sent at ``now`` have arrived, behind those that were sent before."""
        self._free = max(now, self._free) + 8 * count / self._network.rate
        return self._free + self._network.delay


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


async def serve(listen: tuple[str, int], to: tuple[str, int], network: Network) -> asyncio.Server:
    """Listen, and carry every connection to ``to``."""
    there, back = Direction(network), Direction(network)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # As with a server that is down: the connection ends.
        with suppress(OSError):
            onward_reader, onward = await asyncio.open_connection(*to)
            both = [_carry(reader, onward, there), _carry(onward_reader, writer, back)]
            await asyncio.gather(*both, return_exceptions=True)
            onward.close()
        writer.close()

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
