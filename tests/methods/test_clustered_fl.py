"""When clusters split, how, and what their clients get; and whole federations."""

from __future__ import annotations

import numpy as np
import pytest
from support import FEW_SAMPLES, play, rule, simulate

from fedpfl.core.layout import Layout
from fedpfl.methods import clustered_fl
from fedpfl.methods.clustered_fl import ClusteredFLSettings, Clusters, bipartition, cosines

OPTIONS = {"epsilon1": 0.5, "epsilon2": 1.0, "first_split": 1}
LEFT, RIGHT = {0: [2, 0], 2: [2, 0.1]}, {1: [-2, 0], 3: [-2, 0.1]}


@pytest.fixture
def two_may_split(monkeypatch):
    monkeypatch.setattr(clustered_fl, "SMALLEST_SPLIT", 2)


def clusters(**options):
    return rule(Clusters, [0, 0], (1, 1, 1, 1), settings=ClusteredFLSettings(**{**OPTIONS, **options}))


def test_without_a_split_it_is_fedavg_to_the_bit(tmp_path):
    settings = {"fraction_train": 0.5, "num_server_rounds": 2, "local_epochs": 1, **FEW_SAMPLES}
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


@pytest.mark.usefixtures("two_may_split")
def test_two_planted_groups_part_and_get_their_own_means():
    strategy = clusters()
    play(strategy, 1, {**LEFT, **RIGHT})
    assert strategy.cluster.tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(strategy.for_clients, [[2, 0.05], [-2, 0.05]] * 2)
    assert strategy.numbers == {"clusters": 2}
    assert strategy.arrays["clusters"].tolist() == [0, 1, 0, 1]
    play(strategy, 2, {0: [3, 0], 1: [-3, 0]})  # updates of one client each: nothing to split
    np.testing.assert_allclose(strategy.for_clients, [[3, 0], [-3, 0]] * 2)


@pytest.mark.parametrize("options", [{"epsilon1": 0.0}, {"epsilon2": 3.0}])
def test_a_cluster_that_moves_or_has_nowhere_to_go_stays(options):
    strategy = clusters(**options)
    play(strategy, 1, {**LEFT, **RIGHT})
    assert strategy.cluster.tolist() == [0] * 4
    np.testing.assert_allclose(strategy.for_clients, [[0, 0.05]] * 4, atol=1e-7)


@pytest.mark.usefixtures("two_may_split")
def test_clusters_stay_whole_in_the_first_rounds():
    strategy = clusters(first_split=3)
    for number in (1, 2):
        play(strategy, number, {**LEFT, **RIGHT})
        strategy.for_clients[:] = 0  # the same updates again
        assert strategy.cluster.tolist() == [0] * 4
    play(strategy, 3, {**LEFT, **RIGHT})
    assert strategy.cluster.tolist() == [0, 1, 0, 1]


def test_small_clusters_do_not_split_and_clients_that_never_answered_do_not_count(monkeypatch):
    monkeypatch.setattr(clustered_fl, "SMALLEST_SPLIT", 3)
    updates = {0: [2, 0], 1: [-2, 0]}
    strategy = clusters()
    play(strategy, 1, updates)
    assert strategy.cluster.tolist() == [0] * 4
    strategy.for_clients[:] = 0
    play(strategy, 2, {**updates, 2: [1, 0.1]})
    assert strategy.cluster.tolist() == [0, 1, 0, 0]


@pytest.mark.usefixtures("two_may_split")
def test_absent_clients_part_by_their_latest_update_and_unknown_ones_stay_with_the_larger_part():
    strategy = rule(Clusters, [0, 0], [1] * 6, settings=ClusteredFLSettings(**OPTIONS))
    play(strategy, 1, {0: [2, 0], 4: [2, 0.2]})
    assert strategy.cluster.tolist() == [0] * 6
    start = strategy.for_clients[0].copy()
    play(strategy, 2, {i: start + v for i, v in {1: [-2, 0], 2: [2, 0]}.items()})
    assert strategy.cluster.tolist() == [0, 1, 0, 0, 0, 0]  # 3 and 5 have never answered
    np.testing.assert_allclose(strategy.for_clients[[0, 1]], start + np.array([[2, 0], [-2, 0]]))


@pytest.mark.usefixtures("two_may_split")
def test_weights_by_samples_decide_about_splits_and_means():
    strategy = rule(Clusters, [0], (3, 1), settings=ClusteredFLSettings(**OPTIONS))
    play(strategy, 1, {0: [2], 1: [-2]})  # the mean update is 1, above ε1
    assert strategy.cluster.tolist() == [0, 0]
    assert strategy.for_clients.tolist() == [[1], [1]]


@pytest.mark.usefixtures("two_may_split")
def test_running_statistics_have_means_but_part_nobody():
    layout = Layout.of([("w", (1,)), ("norm.running_mean", (1,))])
    strategy = rule(Clusters, [0, 0], [1] * 4, layout, settings=ClusteredFLSettings(**OPTIONS))
    play(strategy, 1, {0: [0.1, 5], 1: [0.1, -5], 2: [0.1, 5], 3: [0.1, -5]})
    assert strategy.cluster.tolist() == [0] * 4
    np.testing.assert_allclose(strategy.for_clients, [[0.1, 0]] * 4)


def test_complete_linkage_joins_by_the_least_similar_members():
    angles = np.radians([0, 20, 50, 90])
    similarities = cosines(np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32))
    assert bipartition(similarities) == ([0, 1], [2, 3])  # single linkage would leave 3 alone


def test_updates_of_zero_and_equal_ones_can_be_divided():
    assert cosines(np.zeros((2, 3))).tolist() == [[0, 0], [0, 0]]
    larger, smaller = bipartition(np.ones((3, 3)))
    assert sorted(larger + smaller) == [0, 1, 2]
    assert len(larger) == 2
