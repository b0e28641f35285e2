"""Clustered federated learning in whole federations."""

from __future__ import annotations

import numpy as np
import pytest
from support import simulate


@pytest.mark.parametrize("model", ["small-cnn", "resnet8"])
def test_without_a_split_it_is_fedavg_to_the_bit(tmp_path, model):
    settings = {"model": model, "fraction_train": 0.5, "num_server_rounds": 2, "local_epochs": 1}
    ours = simulate(tmp_path / "a", 4, method="clustered-fl", clustered_fl_epsilon1=0.0, **settings)
    fedavg = simulate(tmp_path / "b", 4, method="fedavg", **settings)
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
        clustered_fl_first_split=1, last_batch="keep",
        data=str(tmp_path / "data.npz"), partitioner="natural", model="mlp", num_server_rounds=4, learning_rate=0.05,
    )  # fmt: skip
    assert [line["details"]["clusters"] for line in run.metrics()][-1] >= 2
    last = np.load(sorted((run.path / "arrays" / "clusters").glob("*.npy"))[-1])
    assert not set(last[::2]) & set(last[1::2])
    # One model for all is right for half of the samples.
    assert run.metrics()[-1]["personalised"]["accuracy"] > 0.65
    assert not (run.path / "global.safetensors").exists()


def test_a_run_in_which_nothing_can_split_says_so(tmp_path):
    def said(clients, **settings):
        run = simulate(tmp_path / str(len(list(tmp_path.iterdir()))), clients, method="clustered-fl", **settings)
        return run.task()["remarks"]

    quick = {"num_server_rounds": 1, "local_epochs": 1, "train_samples": 20, "partitioner": "dirichlet-client"}
    end = ": all clients stay in one cluster, as in fedavg"
    first = "before round 21 (clustered-fl-first-split), and the run has 1"
    assert said(3, **quick) == [f"clustered-fl: no cluster splits {first}{end}"]
    small = "of fewer than 3 clients, and the run has 2"
    assert said(2, clustered_fl_first_split=1, **quick) == [f"clustered-fl: no cluster splits {small}{end}"]
    assert said(3, clustered_fl_first_split=1, **quick) == []
