"""Frames and messages: what goes in comes out, and nothing that the network sends does more than be refused."""

import json
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpfl.bench.mqtt import frames
from fedpfl.bench.mqtt.frames import Assembler, FrameError, Kind
from fedpfl.bench.mqtt.http_bytes import HttpRequest, Response, carried

ID = bytes(range(16))
HEADERS = (("content-type", "application/protobuf"), ("flwr-signature", "abc="), ("flwr-x", "a, b\t\xe9"))


@given(st.binary(max_size=9000), st.integers(frames.MIN_PIECE_BYTES + frames.HEADER_BYTES, 6000), st.randoms())
@settings(max_examples=60, deadline=None)
def test_a_message_survives_its_frames_in_any_order_and_twice(message, limit, rng):
    parts = list(frames.split(Kind.REQUEST, message, limit))
    assert all(len(part) <= limit for part in parts)
    # A message of one frame is complete each time it comes: the sides know which ids they have seen.
    order = parts * (2 if len(parts) > 1 else 1)
    rng.shuffle(order)
    assembler, done = Assembler(), []
    for part in order:
        content = assembler.add(frames.decode(ID, part))
        if content is not None:
            done.append(content)
            break
    assert done == [message]


def test_overhead_on_the_wire_is_small():
    message = bytes(5_000_000)
    assert sum(map(len, frames.split(Kind.REQUEST, message, 2**20))) < 1.0001 * len(message)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", "at least 20"),
        (b"xx" + bytes(18), "not a frame"),
        (struct.pack("!2sBBIIQ", b"fb", 1, 99, 0, 1, 0), "kind"),
        (struct.pack("!2sBBIIQ", b"fb", 1, 1, 0, 1, 2**40), "at most"),
        (struct.pack("!2sBBIIQ", b"fb", 1, 1, 1, 1, 0), "frame 1 of 1"),
        (struct.pack("!2sBBIIQ", b"fb", 1, 1, 0, 0, 0), "frame 0 of 0"),
        (struct.pack("!2sBBIIQ", b"fb", 1, 1, 0, 2**32 - 1, 2**20), "frame 0 of"),
        (struct.pack("!2sBBIIQ", b"fb", 1, 1, 0, 1, 3) + b"ab", "2 bytes instead of 3"),
        (struct.pack("!2sBBIIQ", b"fb", 1, 1, 0, 1, 1) + b"ab", "2 bytes instead of 1"),
    ],
)
def test_what_is_no_frame_is_refused(payload, words):
    with pytest.raises(FrameError, match=words):
        frames.decode(ID, payload)


@pytest.mark.parametrize("message_id", [None, b"", bytes(15), bytes(17)])
def test_a_frame_needs_an_id(message_id):
    with pytest.raises(FrameError, match="correlation data"):
        frames.decode(message_id, frames.single(Kind.PROBE))


def test_frames_of_one_message_must_agree():
    assembler = Assembler()
    first = next(frames.split(Kind.REQUEST, bytes(5000), 2000))
    other = next(frames.split(Kind.REQUEST, bytes(5001), 2000))
    assembler.add(frames.decode(ID, first))
    with pytest.raises(FrameError, match="before"):
        assembler.add(frames.decode(ID, other))


def test_unfinished_messages_are_bounded_and_forgotten():
    now = [0.0]
    assembler = Assembler(max_bytes=10_000, clock=lambda: now[0])

    def start(number, size):
        part = next(frames.split(Kind.REQUEST, bytes(size), 2000))
        return assembler.add(frames.decode(number.to_bytes(16, "big"), part))

    start(1, 5000)
    start(2, 5000)
    with pytest.raises(FrameError, match="no room"):
        start(3, 5000)
    now[0] += frames.STALE_SECONDS + 1
    start(3, 5000)


def mutations(good, rng, count):
    for _ in range(count):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data))
            data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        if rng.random() < 0.3:
            data = data[: rng.randrange(len(data) + 1)]
        yield bytes(data)


def test_fuzzed_frames_and_messages_raise_nothing_but_their_own_error():
    """20,000 damaged inputs, always the same."""
    rng = random.Random(20)
    request = HttpRequest("/v1/fleet/pull-messages", HEADERS, b"body" * 300, 1.5).encode()
    response = Response(200, HEADERS, b"body").encode()
    assembler, refused = Assembler(), 0
    parts = list(frames.split(Kind.REQUEST, request * 3, 1200))
    for data in [d for part in parts for d in mutations(part, rng, 8000 // len(parts))]:
        try:
            assembler.add(frames.decode(rng.randbytes(16), data))
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
    request = HttpRequest("/v1/fleet/push-object", HEADERS, bytes(range(256)), 1234.5)
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


GOOD = {"path": "/v1/fleet/pull-messages", "headers": [], "sent": 1.0, "delivered": ""}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "/v1/control/start-run"}, "Fleet API"),
        ({"path": "/v1/fleet/../control/start-run"}, "Fleet API"),
        ({"path": "/v1/fleet/x?y"}, "Fleet API"),
        ({"path": None}, "Fleet API"),
        ({"sent": "now"}, "number"),
        ({"sent": float("nan")}, "number"),
        ({"sent": float("inf")}, "number"),
        ({"sent": 10**400}, "number"),
        ({"headers": [["a", "b\r\nhost: x"]]}, "characters"),
        ({"headers": [["a b", "c"]]}, "characters"),
        ({"headers": [["a"]]}, "name and a value"),
        ({"headers": [["a", "b"]] * 101}, "at most 100"),
        ({"headers": {}}, "at most 100"),
    ],
)
def test_requests_that_may_not_be_carried_are_refused(change, words):
    assert HttpRequest.decode(message(GOOD)).path == GOOD["path"]
    with pytest.raises(FrameError, match=words):
        HttpRequest.decode(message({**GOOD, **change}))


@pytest.mark.parametrize("text", [b"[" * 60_000, b"9" * 60_000, b"\xff", b"[]", b"{"])
def test_heads_that_are_no_json_object_are_refused(text):
    with pytest.raises(FrameError):
        HttpRequest.decode(struct.pack("!I", len(text)) + text)
