"""Frames and messages: what goes in comes out, and nothing that the network sends does more than be refused."""

import json
import random
import struct
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpfl.bench.mqtt import frames
from fedpfl.bench.mqtt.frames import Assembler, FrameError
from fedpfl.bench.mqtt.http_bytes import HttpRequest, Response, carried

ID = bytes(range(16))
HEADERS = (("content-type", "application/protobuf"), ("flwr-signature", "abc="), ("flwr-x", "a, b\t\xe9"))


@given(st.binary(max_size=9000), st.binary(max_size=3000), st.integers(frames.HEADER_BYTES + 1, 6000))
@settings(max_examples=60, deadline=None)
def test_a_message_survives_its_frames(head, body, limit):
    parts = list(frames.split(head, limit, body))
    assert all(len(part) <= limit for part in parts)
    assembler = Assembler(10**6)
    done = [assembler.add("a", frames.decode(ID, part)) for part in parts]
    assert done == [None] * (len(parts) - 1) + [head + body]
    assert assembler.held == len(head + body)
    assembler.drop("a", ID)
    assert assembler.held == 0


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"", "at least 19"),
        (b"xx" + bytes(17), "not a frame"),
        (struct.pack("!2sBQQ", b"fb", 1, 0, 0), "of version 1, and this side reads version 2: install the same fedpfl"),
        (struct.pack("!2sBQQ", b"fb", 2, 0, 2**40), "at most"),
        (struct.pack("!2sBQQ", b"fb", 2, 2**63, 10) + b"ab", "of a message of 10 bytes"),
        (struct.pack("!2sBQQ", b"fb", 2, 0, 1) + b"ab", "bytes 0 to 2 of a message of 1 bytes"),
        (struct.pack("!2sBQQ", b"fb", 2, 3, 9), "bytes 3 to 3 of"),
    ],
)
def test_what_is_no_frame_is_refused(payload, error):
    with pytest.raises(FrameError, match=error):
        frames.decode(ID, payload)


@pytest.mark.parametrize("message_id", [None, b"", bytes(15), bytes(17)])
def test_a_frame_needs_an_id(message_id):
    with pytest.raises(FrameError, match="correlation data"):
        frames.decode(message_id, next(frames.split(b"x", 2000)))


def parts(size=5000, number=0, limit=2000):
    message_id = number.to_bytes(16, "big")
    return [frames.decode(message_id, part) for part in frames.split(bytes(size), limit)]


@pytest.mark.parametrize(
    "sent",
    [
        lambda: [parts()[1]],
        lambda: [parts()[0], parts()[2]],
        lambda: [parts()[0], parts()[0]],
        lambda: [parts()[0], parts(5001)[1]],
        lambda: [*parts(), parts()[2]],
    ],
    ids=["no first", "one missing", "twice", "of another length", "after the last"],
)
def test_a_frame_that_does_not_follow_the_one_before_drops_its_message(sent):
    assembler, *before = Assembler(10**6), *sent()[:-1]
    for frame in before:
        assembler.add("a", frame)
    with pytest.raises(FrameError):
        assembler.add("a", sent()[-1])
    assembler.drop("a", bytes(16))
    assert assembler.held == 0
    assert [assembler.add("a", frame) for frame in parts()][-1] == bytes(5000)  # sent again


def test_two_senders_may_use_one_id():
    assembler = Assembler(10**6)
    done = [assembler.add(sender, frame) for frame in parts() for sender in "ab"]
    assert done[-2:] == [bytes(5000)] * 2


def test_messages_are_bounded_in_bytes_and_number_and_forgotten():
    now = [0.0]
    assembler = Assembler(10_000, clock=lambda: now[0])
    for number in range(5):
        assembler.add("a", parts(number=number)[0])  # nearly 2,000 bytes arrive
    with pytest.raises(FrameError, match="no room for 1981 bytes more"):
        assembler.add("a", parts(number=5)[0])
    now[0] += frames.STALE_SECONDS + 1
    assembler.add("b", parts()[0])
    assert assembler.held == 1981
    for number in range(1, frames.MAX_MESSAGES):
        assembler.add("b", parts(1, number)[0])
    with pytest.raises(FrameError, match="there are 1024 messages"):
        assembler.add("b", parts(1, frames.MAX_MESSAGES)[0])
    assembler.drop("b", (1).to_bytes(16, "big"))
    assembler.add("b", parts(1, frames.MAX_MESSAGES)[0])


def test_a_sender_that_begins_messages_without_end_keeps_nobody_out():
    """Tiny ones, of which there may be a thousand, and large ones: each time the honest one's message arrives whole."""
    for size, count in ((40, 3 * frames.MAX_MESSAGES), (5000, 20)):
        assembler, honest = Assembler(10_000), parts(5000)
        for number in range(count):
            with suppress(FrameError):
                assembler.add("greedy", parts(size, number, min(size, 2000))[0])
            if number % (count // 4) == 0:
                assert [assembler.add("honest", frame) for frame in honest][-1] == bytes(5000)
                assembler.drop("honest", bytes(16))
        assert assembler.held <= 10_000


def mutations(good, rng, count):
    for _ in range(count):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            position = rng.randrange(len(data))
            data[position] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data) + 1)]
        yield bytes(data)


def test_fuzzed_frames_and_messages_raise_nothing_but_their_own_error():
    """20,000 damaged inputs, always the same."""
    rng = random.Random(20)
    request = HttpRequest("/v1/fleet/pull-messages", HEADERS, b"body" * 300).encode()
    response = Response(200, HEADERS, b"body").encode()
    assembler, refused = Assembler(10**6), 0
    pieces = list(frames.split(request * 3, 1200))
    for data in [d for piece in pieces for d in mutations(piece, rng, 8000 // len(pieces))]:
        try:
            assembler.add("a", frames.decode(rng.randbytes(16), data))
        except FrameError:
            refused += 1
    for good, read in ((request, HttpRequest.decode), (response, Response.decode)):
        for data in mutations(good, rng, 6000):
            try:
                read(data)
            except FrameError:
                refused += 1
    assert 5000 < refused < 20_000


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_frame_or_refused(data):
    for read in (lambda d: frames.decode(ID, d), HttpRequest.decode, Response.decode):
        try:
            read(data)
        except FrameError as error:
            assert "\n" not in str(error)


def test_requests_and_responses_survive():
    request = HttpRequest("/v1/fleet/push-object", HEADERS, bytes(range(256)))
    assert HttpRequest.decode(request.encode()) == request
    response = Response(503, HEADERS, b"\0")
    assert Response.decode(response.encode()) == response


def test_headers_about_the_connection_are_left_out():
    given_ = [("Host", "x"), ("Connection", "close, X-Secret"), ("x-secret", "1"), ("X-Forwarded-For", "10.0.0.1"),
              ("Content-Length", "3"), ("flwr-signature", "s"), ("Transfer-Encoding", "chunked")]  # fmt: skip
    assert carried(given_) == (("flwr-signature", "s"),)


def message(head, body=b""):
    text = json.dumps(head).encode()
    return struct.pack("!I", len(text)) + text + body


GOOD = {"path": "/v1/fleet/pull-messages", "headers": []}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"path": "/v1/control/start-run"}, "Fleet API"),
        ({"path": "/v1/fleet/../control/start-run"}, "Fleet API"),
        ({"path": "/v1/fleet/x?y"}, "Fleet API"),
        ({"path": None}, "Fleet API"),
        ({"headers": [["a", "b\r\nhost: x"]]}, "characters"),
        ({"headers": [["a b", "c"]]}, "characters"),
        ({"headers": [["a"]]}, "name and a value"),
        ({"headers": [["a", "b"]] * 101}, "at most 100"),
        ({"headers": {}}, "at most 100"),
    ],
)
def test_requests_that_may_not_be_carried_are_refused(change, error):
    assert HttpRequest.decode(message(GOOD)).path == GOOD["path"]
    with pytest.raises(FrameError, match=error):
        HttpRequest.decode(message({**GOOD, **change}))


@pytest.mark.parametrize("text", [b"[" * 60_000, b"9" * 60_000, b"\xff", b"[]", b"{"])
def test_heads_that_are_no_json_object_are_refused(text):
    with pytest.raises(FrameError):
        HttpRequest.decode(struct.pack("!I", len(text)) + text)
