"""Memory that a worker shares with the server's process."""

import resource

import numpy as np
import pytest

from fedpfl.engine import slots as slots_module
from fedpfl.engine.slots import Slots, headers

pytestmark = pytest.mark.skipif(not Slots.supported(), reason="this system has no memory without a name")

ARRAYS = {
    "shared": np.arange(1000, dtype=np.float32),
    "mask": np.array([1, 0, 1], np.uint8),
    "none": np.zeros((0, 3), np.float16),
    "table": np.arange(6.0).reshape(2, 3),
}


def write(slots, slot, arrays):
    """Write arrays into a slot; return whether it holds them."""
    writer = slots.writer(slot)
    for array in arrays.values():
        np.testing.assert_array_equal(writer.put(array), array)
    return writer.holds_all


@pytest.fixture
def slots():
    made = Slots()
    made.fit(headers(ARRAYS))
    yield made
    made.close()


def test_arrays_arrive_as_they_were_written(slots):
    slot = slots.lend()
    assert write(slots, slot, ARRAYS)
    arrays = slots.arrays(slot, headers(ARRAYS))
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].flags.aligned
        np.testing.assert_array_equal(arrays[name], array)


def test_a_slot_is_lent_again_when_the_last_view_of_its_arrays_is_gone(slots):
    taken = [slots.lend() for _ in range(slots_module.MAX_SLOTS)]
    assert slots.lend() is None
    assert write(slots, taken[0], ARRAYS)
    kept = slots.arrays(taken[0], headers(ARRAYS))["table"][1:]  # a view of one of four
    assert slots.lend() is None
    np.testing.assert_array_equal(kept, [[3, 4, 5]])
    del kept
    assert slots.lend() == taken[0]
    assert slots.lend() is None


def test_slots_grow_only_when_none_is_in_use(slots):
    larger = {"shared": np.ones(5000, np.float32)}
    slot = slots.lend()
    assert not write(slots, slot, larger)
    slots.fit(headers(larger))
    assert slots.lend().size == slot.size  # another of the old ones
    slots.give_back(slot)


def test_slots_grow_to_the_largest_reply(slots):
    larger = {"shared": np.ones(5000, np.float32)}
    slots.fit(headers(larger))
    slot = slots.lend()
    assert write(slots, slot, larger)
    np.testing.assert_array_equal(slots.arrays(slot, headers(larger))["shared"], larger["shared"])


def test_a_reply_that_is_larger_than_all_memory_for_slots_gets_none(monkeypatch):
    monkeypatch.setattr(slots_module, "MAX_BYTES", 2**12)
    made = Slots()
    made.fit(headers({"shared": np.ones(5000, np.float32)}))
    assert made.lend() is None
    made.close()


def test_below_a_limit_of_files_replies_go_through_the_pipe():
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    made = Slots()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        made.fit(headers(ARRAYS))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert made.lend() is None
    made.close()


def test_without_arrays_no_slot_is_used(slots):
    assert not write(slots, slots.lend(), {})


def test_an_array_without_room_is_copied_if_it_still_changes(slots):
    for slot in (None, slots.lend()):
        writer, large = slots.writer(slot), np.ones(5000, np.float32)
        assert writer.put(large) is large
        copy = writer.put(large, changes=True)
        large[:] = 2
        assert (copy == 1).all() and not writer.holds_all
