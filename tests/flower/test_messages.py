"""What travels in a Flower message."""

import random

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpfl.core.errors import LayoutError
from fedpfl.core.payload import Payload, probe
from fedpfl.engine.transport import count_bytes
from fedpfl.flower import messages
from fedpfl.flower.messages import FRAME, from_content, to_content, to_framed_content

FULL = Payload({"round": 3, "layout": "w:4"}, {"train-loss": 0.5}, {"shared": np.arange(4, dtype=np.float32)})


def framed(content):
    return RecordDict({FRAME: ConfigRecord({FRAME: content})})


def test_a_payload_survives_and_its_empty_parts_do_not_travel():
    records = {"config": FULL.config, "metrics": FULL.metrics, "arrays": FULL.arrays}
    for left_out in (set(), {"arrays"}, {"metrics"}, {"config", "metrics"}, set(records)):
        kept = {name: part for name, part in records.items() if name not in left_out}
        content = to_content(Payload(**kept))
        assert set(content) == set(kept)
        for back in (from_content(content), from_content(to_framed_content(Payload(**kept)))):
            assert (back.config, back.metrics) == (kept.get("config", {}), kept.get("metrics", {}))
            assert {name: array.tolist() for name, array in back.arrays.items()} == {
                name: array.tolist() for name, array in kept.get("arrays", {}).items()
            }


def test_a_framed_message_has_one_record_and_larger_arrays_travel_in_chunks(monkeypatch):
    assert [set(to_framed_content(payload)) for payload in (FULL, Payload(), probe())] == [{FRAME}, set(), {"config"}]
    monkeypatch.setattr(messages, "MAX_FRAMED_BYTES", 15)
    assert set(to_framed_content(FULL)) == {"config", "metrics", "arrays"}


@pytest.mark.parametrize("array", [
    np.array([1e-45, -0.0, np.nan, np.inf], np.float32), np.array([2.0, 6e-8], np.float16), np.array(3.5),
    np.zeros((0, 3), np.uint8), np.arange(6, dtype=np.int64).reshape(2, 3).T,
])  # fmt: skip
def test_framed_arrays_come_back_to_the_bit_and_can_be_written_to(array):
    back = from_content(to_framed_content(Payload(arrays={"shared": array}))).arrays["shared"]
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert back.flags.writeable


@given(st.integers(0, 100_000), st.integers(0, 4), st.floats(allow_nan=False))
def test_a_frame_is_as_long_as_the_bytes_that_are_counted(size, settings_, number):
    config = {f"setting-{i}": number for i in range(settings_)}
    payload = Payload({**config, "layout": "x" * 200}, {"loss": number}, {"shared": np.zeros(size, np.uint8)})
    (record,) = to_framed_content(payload).values()
    assert abs(len(record[FRAME]) - count_bytes(payload)) < 100 + 40 * settings_


@settings(deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=9) | st.integers(-9, 9))
def test_any_frame_that_is_none_is_refused_in_one_line(content):
    with pytest.raises(LayoutError, match="cannot be read") as refused:
        from_content(framed(content))
    assert "\n" not in str(refused.value)


def test_a_frame_must_end_where_its_bytes_end():
    (record,) = to_framed_content(FULL).values()
    for content, message in ((record[FRAME] + b"x", "1 extra bytes"), (record[FRAME][:-1], "an incomplete frame")):
        with pytest.raises(LayoutError, match=message):
            from_content(framed(content))


def test_damaged_frames_raise_nothing_but_their_own_error():
    """5,000 damaged frames, always the same."""
    rng, refused = random.Random(19), 0
    (record,) = to_framed_content(FULL).values()
    for _ in range(5000):
        content = bytearray(record[FRAME])
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(content))
            content[place : place + rng.choice([0, 1, 4])] = rng.randbytes(rng.choice([0, 1, 1, 4]))
        try:
            from_content(framed(bytes(content)))
        except LayoutError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 2500
