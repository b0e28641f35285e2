"""The way to a pretended device: bytes come as they went, and the rate and the delay say when."""

from __future__ import annotations

import asyncio

import pytest

from fedpfl.bench.relay import Direction, Network, serve
from fedpfl.core.errors import ConfigError


@pytest.mark.parametrize(("text", "network"), [
    ("20mbit 15ms", Network(20e6, 0.015)), ("1gbit", Network(1e9)), ("2.5kbit 0.5ms", Network(2500, 0.0005)),
])  # fmt: skip
def test_a_network_is_read(text, network):
    assert Network.parse(text) == network


@pytest.mark.parametrize("text", ["", "20", "15ms", "20mbit15ms", "0mbit", "20mbit 15", "-1mbit", "20 mbit", "nanmbit"])
def test_another_text_is_refused(text):
    with pytest.raises(ConfigError, match="20mbit 15ms"):
        Network.parse(text)


def test_what_is_sent_waits_for_what_was_sent_before_and_travels_for_the_delay():
    way = Direction(Network(8000, 0.5))  # 1000 bytes a second
    assert way.arrival(0.0, 100) == pytest.approx(0.6)
    assert way.arrival(0.0, 100) == pytest.approx(0.7)  # of another connection, at the same time
    assert way.arrival(5.0, 100) == pytest.approx(5.6)  # nothing is saved up


def test_bytes_go_both_ways_and_ends_are_passed_on():
    content = bytes(range(256)) * 2000

    async def run():
        async def backwards(reader, writer):
            writer.write((await reader.read())[::-1])
            writer.write_eof()

        server = await asyncio.start_server(backwards, "127.0.0.1", 0)
        relay = await serve(("127.0.0.1", 0), server.sockets[0].getsockname(), Network(1e10, 0.001))

        async def ask(own):
            reader, writer = await asyncio.open_connection(*relay.sockets[0].getsockname())
            writer.write(own)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            return answer

        sent = [content[at:] for at in range(8)]
        assert await asyncio.gather(*map(ask, sent)) == [own[::-1] for own in sent]
        server.close()
        reader, _ = await asyncio.open_connection(*relay.sockets[0].getsockname())
        assert await reader.read() == b""  # nobody listens there any more
        relay.close()

    asyncio.run(run())
