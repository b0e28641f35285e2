"""Every method, where clients have one training sample, one class, or lack classes, and some are never asked."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import each_method, quick, simulate

from fedpfl.core.errors import NoPlainModel
from fedpfl.results.export import export_personal
from fedpfl.setup.config import Config


@pytest.fixture
def odd_clients(tmp_path, small_bn):
    """Return the settings of a federation of five: one training sample, one class, three classes, all, all."""
    rng = np.random.default_rng(1)
    labels = [[4, 4], [2] * 12, [0, 1, 3] * 5, range(5), list(range(5)) * 4]
    y = np.concatenate([np.array(list(mine)) for mine in labels])
    x = rng.integers(0, 256, (len(y), 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "odd.npz", x=x, y=y, client=np.repeat(range(5), [len(mine) for mine in labels]))
    return {
        "dataset": "npz", "data": str(tmp_path / "odd.npz"), "partitioner": "natural", "min_samples": 2,
        "model": small_bn, "batch_size": 4, "local_epochs": 2, "num_server_rounds": 3,
    }  # fmt: skip


@pytest.mark.parametrize("fraction", [0.4, 1.0])
@pytest.mark.parametrize("method", each_method())
def test_no_client_is_too_odd(tmp_path, odd_clients, method, fraction):
    settings = {**odd_clients, "fraction_train": fraction, **quick(method)}
    run = simulate(tmp_path, 5, method=method, **settings)
    starts_with_all = Config.parse(run.config()).method.aggregation.rule.starts_with_all
    for line in run.metrics():
        assert "failed" not in line
        assert len(line["clients"]) == (5 if starts_with_all and line["round"] == 1 else round(5 * fraction))
        assert set(line["personalised"]["each"]) == set("01234")
        assert np.isfinite(line["personalised"]["loss"])
        assert np.isfinite(line["train_loss"])
        assert np.isfinite(line.get("global", {"loss": 0.0})["loss"])
    with suppress(NoPlainModel):
        for path in export_personal(run):
            assert all(np.isfinite(array).all() for array in load_file(path).values())
