"""What travels in a Flower message."""

import numpy as np

from fedpfl.core.payload import Payload
from fedpfl.messages import from_content, to_content


def test_a_payload_survives_and_its_empty_parts_do_not_travel():
    full = Payload({"round": 3}, {"train-loss": 0.5}, {"shared": np.arange(4, dtype=np.float32)})
    records = {"config": full.config, "metrics": full.metrics, "arrays": full.arrays}
    for left_out in (set(), {"arrays"}, {"metrics"}, {"config", "metrics"}, set(records)):
        kept = {name: part for name, part in records.items() if name not in left_out}
        content = to_content(Payload(**kept))
        assert set(content) == set(kept)
        back = from_content(content)
        assert (back.config, back.metrics) == (kept.get("config", {}), kept.get("metrics", {}))
        assert {name: array.tolist() for name, array in back.arrays.items()} == {
            name: array.tolist() for name, array in kept.get("arrays", {}).items()
        }
