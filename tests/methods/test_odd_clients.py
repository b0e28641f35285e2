"""Every method, where clients have one training sample, one class, or lack classes, and some are never asked."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import quick, simulate
from torch import nn

from fedpfl.core.errors import NoPlainModel
from fedpfl.methods import methods
from fedpfl.models import BaseHeadModel, registry
from fedpfl.results.export import export_personal
from fedpfl.setup.config import Config


def small_with_batchnorm(input_shape, num_classes):
    base = registry.named(
        conv=nn.Conv2d(1, 4, 3, stride=2), norm=nn.BatchNorm2d(4), relu=nn.ReLU(), flatten=nn.Flatten(),
        fc=nn.Linear(36, 8), relu2=nn.ReLU(),
    )  # fmt: skip
    return BaseHeadModel(base, nn.Linear(8, num_classes))


@pytest.fixture
def odd_clients(tmp_path, monkeypatch):
    """Return the settings of a federation of five: one training sample, one class, three classes, all, all."""
    monkeypatch.setitem(registry.MODELS._entries, "small-bn", registry._Entry(small_with_batchnorm, None))
    rng = np.random.default_rng(1)
    labels = [[4, 4], [2] * 12, [0, 1, 3] * 5, range(5), list(range(5)) * 4]
    y = np.concatenate([np.array(list(mine)) for mine in labels])
    x = rng.integers(0, 256, (len(y), 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "odd.npz", x=x, y=y, client=np.repeat(range(5), [len(mine) for mine in labels]))
    return {
        "dataset": "npz", "data": str(tmp_path / "odd.npz"), "partitioner": "natural", "min_samples": 2,
        "model": "small-bn", "batch_size": 4, "local_epochs": 2, "num_server_rounds": 3,
    }  # fmt: skip


@pytest.mark.parametrize("fraction", [0.4, 1.0])
@pytest.mark.parametrize(
    ("method", "own"),
    [*((method, {}) for method in methods()), ("per-fedavg", {"per_fedavg_gradient": "hessian-free"})],
)
def test_no_client_is_too_odd(tmp_path, odd_clients, method, own, fraction):
    settings = {**odd_clients, "fraction_train": fraction, **quick(method), **own}
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
