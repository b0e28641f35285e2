"""Clustered federated learning in whole federations."""

from __future__ import annotations

import numpy as np
import pytest
from support import simulate


@pytest.mark.parametrize(("model", "weights"), [("small-cnn", "uniform"), ("resnet8", "examples")])
def test_without_a_split_it_is_fedavg_to_the_bit(tmp_path, model, weights):
    settings = {"model": model, "fraction_train": 0.5, "num_server_rounds": 2, "local_epochs": 1}
    ours = simulate(
        tmp_path / "a", 4, method="clustered-fl", clustered_fl_epsilon1=0.0, clustered_fl_weights=weights, **settings
    )
    fedavg = simulate(tmp_path / "b", 4, method="fedavg", fedavg_weights=weights, **settings)
    for row in ours.checkpoint()[1]["for_clients"]:
        assert np.array_equal(row, fedavg.checkpoint()[1]["shared"])
    assert [line["personalised"] for line in ours.metrics()] == [line["personalised"] for line in fedavg.metrics()]


def test_clients_with_contradicting_labels_part(tmp_path):
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(4), 60)
    x = rng.normal(size=(240, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(int)
    np.savez(tmp_path / "data.npz", x=x, y=np.where(client % 2, 1 - y, y), client=client)
    run = simulate(
        tmp_path, 4, method="clustered-fl", clustered_fl_epsilon1=1.0, clustered_fl_epsilon2=0.2, dataset="npz",
        data=str(tmp_path / "data.npz"), partitioner="natural", model="mlp", num_server_rounds=4, learning_rate=0.05,
    )  # fmt: skip
    assert [line["details"]["clusters"] for line in run.metrics()][-1] >= 2
    last = np.load(sorted((run.path / "arrays" / "clusters").glob("*.npy"))[-1])
    assert not set(last[::2]) & set(last[1::2])
    assert run.metrics()[-1]["personalised"]["accuracy"] > 0.8
    assert not (run.path / "global.safetensors").exists()
