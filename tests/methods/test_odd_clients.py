"""Clients with one training sample, with one class, and without some classes, and rounds without most clients."""

from __future__ import annotations

import numpy as np
import pytest
from support import simulate

METHODS = ["clustered-fl", "fedamp", "fedcac", "fedem", "fedfomo", "per-fedavg", "pfedsd"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Write images of four clients: 2 samples (one to train on), one class, two of three classes, all."""
    rng = np.random.default_rng(1)
    y = np.concatenate([[0, 1], np.full(9, 2), np.arange(10) % 2, np.arange(15) % 3])
    client = np.repeat(np.arange(4), [2, 9, 10, 15])
    x = (rng.integers(0, 60, (len(y), 8, 8)) + 60 * y[:, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("odd") / "odd.npz"
    np.savez(path, x=x, y=y, client=client)
    return str(path)


@pytest.mark.parametrize(("fraction", "model"), [(1.0, "small-cnn"), (0.5, "resnet8")])
@pytest.mark.parametrize("method", METHODS)
def test_every_client_trains_and_is_tested(tmp_path, data, method, fraction, model):
    settings = {"per_fedavg_gradient": "hessian-free", "num_server_rounds": 3 if fraction < 1 else 2}
    run = simulate(
        tmp_path, 4, method=method, model=model, dataset="npz", data=data, partitioner="natural", min_samples=2,
        fraction_train=fraction, local_epochs=1, batch_size=4, learning_rate=0.01, **settings,
    )  # fmt: skip
    for line in run.metrics():
        assert "failed" not in line
        assert len(line["clients"]) == round(4 * fraction)
        assert sorted(line["personalised"]["each"]) == ["0", "1", "2", "3"]
        assert np.isfinite(line["personalised"]["loss"])
