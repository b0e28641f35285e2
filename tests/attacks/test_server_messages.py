"""What a server sends to a device is refused in one line that names it, before anything is trained or written."""

from __future__ import annotations

import numpy as np
import pytest
from support import federation

from fedpfl.client.message_handler import handle
from fedpfl.core.errors import FedpflError
from fedpfl.core.payload import Payload

NODE = {"partition-id": 1, "num-partitions": 3}
NEITHER = object()
WRONG = [
    *(("round", value) for value in (NEITHER, "1\nforged", 1.5, True, -1, 2**62)),
    *(("personal-round", value) for value in (NEITHER, "x", 0.0, -2, 2**40)),
    *(("state-key", value) for value in (NEITHER, 5, "", "..", "../x", "a\nb")),
    *(("layout", value) for value in (NEITHER, 5, "[", "[" * 100_000, '[["x", 5]]')),
]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Return a function that sends a message to a client; some of its entries and arrays may be changed."""
    folder = tmp_path_factory.mktemp("device")
    values = federation(folder, 3, method="fedper", model="mlp", local_epochs=1, train_samples=16, test_samples=8,
                        partitioner="dirichlet-client")  # fmt: skip
    layout = handle("query", Payload({"state-key": "key"}), values, NODE).config["layout"]

    def ask(kind, changed=None, node=None):
        entries = {"state-key": "key", "round": 1, "personal-round": 0, "layout": layout, **(changed or {})}
        entries = {key: value for key, value in entries.items() if value is not NEITHER}
        return handle(
            kind, Payload(entries, {}, {"shared": np.zeros(53_200, np.float32)}), values, {**NODE, **(node or {})}
        )

    ask.folder = folder
    return ask


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(("key", "value"), WRONG, ids=lambda value: repr(value)[:20])
def test_a_message_that_does_not_say_for_which_round_it_is(asked, kind, key, value):
    before = sorted(asked.folder.rglob("*"))
    with pytest.raises(FedpflError) as refused:
        asked(kind, {key: value})
    assert "\n" not in str(refused.value)
    assert key in str(refused.value) or str(refused.value).startswith("array 'x' of shape (5,) arrived")
    assert sorted(asked.folder.rglob("*")) == before


def test_a_path_that_can_be_none_is_named(asked):
    with pytest.raises(FedpflError, match=r"data-path = 'a\\x00b': has a NUL character"):
        asked("train", node={"data": "a\0b"})
