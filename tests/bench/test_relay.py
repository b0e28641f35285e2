"""The way to a pretended device: bytes come as they went, and the rate and the delay say when."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from fedpfl.bench.relay import Direction, Network, serve
from fedpfl.core.errors import ConfigError


@pytest.mark.parametrize(("text", "network"), [
    ("20mbit 15ms", Network(20e6, 0.015)), ("1gbit", Network(1e9)), ("2.5kbit 0.5ms", Network(2500, 0.0005)),
    ("5mbit 50ms 2% off 60-660", Network(5e6, 0.05, 0.02, (60.0, 660.0))),
    ("5mbit off 1-2", Network(5e6, off=(1.0, 2.0))),
])  # fmt: skip
def test_a_network_is_read(text, network):
    assert Network.parse(text) == network


@pytest.mark.parametrize(
    "text",
    [
        "",
        "20",
        "15ms",
        "20mbit15ms",
        "0mbit",
        "20mbit 15",
        "-1mbit",
        "20 mbit",
        "nanmbit",
        "20mbit 2% 15ms",
        "20mbit off 5",
        "20mbit off 5-5",
        "20mbit 90%",
    ],
)
def test_another_text_is_refused(text):
    with pytest.raises(ConfigError, match=r"must be a rate and a delay|must end its gap|may lose at most"):
        Network.parse(text)


def test_what_is_sent_waits_for_what_was_sent_before_and_travels_for_the_delay():
    way = Direction(Network(8000, 0.5))  # 1000 bytes a second
    assert way.arrival(0.0, 100) == pytest.approx(0.6)
    assert way.arrival(0.0, 100) == pytest.approx(0.7)  # of another connection, at the same time
    assert way.arrival(5.0, 100) == pytest.approx(5.6)  # nothing is saved up


def test_what_is_lost_comes_later_and_holds_up_what_follows():
    way, times = Direction(Network(8e6, 0.1, 0.3)), []
    for number in range(100):  # 1000 bytes a millisecond
        times.append(way.arrival(number / 1000, 1000) - number / 1000)
    assert min(times) == pytest.approx(0.101) and max(times) == pytest.approx(0.501)
    assert times[0] == pytest.approx(0.101) and sum(late > 0.101001 for late in times) > 90


def test_a_board_that_is_off_has_no_connection_and_comes_back():
    async def run():
        async def echo(reader, writer):
            while piece := await reader.read(100):
                writer.write(piece)

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        relay = await serve(("127.0.0.1", 0), server.sockets[0].getsockname(), Network(1e9, off=(0.3, 0.6)))

        async def ask():
            reader, writer = await asyncio.open_connection(*relay.sockets[0].getsockname())
            writer.write(b"ask")
            return reader, await reader.read(3), writer

        reader, answer, _writer = await ask()
        assert answer == b"ask"
        with suppress(ConnectionError):  # its power goes
            assert await reader.read(3) == b""
        with suppress(ConnectionError):
            assert (await ask())[1] == b""
        await asyncio.sleep(0.6)
        assert (await ask())[1] == b"ask"

    asyncio.run(run())


def test_bytes_go_both_ways_and_ends_are_passed_on():
    content = bytes(range(256)) * 2000

    async def run():
        async def backwards(reader, writer):
            writer.write((await reader.read())[::-1])
            writer.write_eof()

        server = await asyncio.start_server(backwards, "127.0.0.1", 0)
        relay = await serve(("127.0.0.1", 0), server.sockets[0].getsockname(), Network(1e10, 0.001))

        async def ask(part):
            reader, writer = await asyncio.open_connection(*relay.sockets[0].getsockname())
            writer.write(part)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            return answer

        sent = [content[start:] for start in range(8)]
        assert await asyncio.gather(*map(ask, sent)) == [part[::-1] for part in sent]
        server.close()
        reader, _ = await asyncio.open_connection(*relay.sockets[0].getsockname())
        assert await reader.read() == b""  # nobody listens there any more
        relay.close()

    asyncio.run(run())
