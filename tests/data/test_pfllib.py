"""PFLlib's divisions: the rule on made-up labels, and the published clients where the real data are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from real_data import UNPACK, real_data_dir

from fedpfl.core.errors import ConfigError, DataError
from fedpfl.data import Dataset, DataSettings, FederatedData, Share, partition


def labelled(y_train: np.ndarray, y_test: np.ndarray, classes: int) -> Dataset:
    x_train, x_test = (np.zeros((len(y), 1), np.float32) for y in (y_train, y_test))
    return Dataset.of("made", x_train, y_train, x_test, y_test, num_classes=classes)


def made(each: int = 40, classes: int = 4) -> Dataset:
    """Return as many samples of each class, a fifth of them in the test set."""
    y = np.arange(each * classes) % classes
    return labelled(y[: len(y) * 4 // 5], y[len(y) * 4 // 5 :], classes)


def dirichlet_by_hand(labels: np.ndarray, clients: int, alpha: float, least: int, seed: int) -> list[tuple[set, set]]:
    """Return each client's training and test samples by the rule as its description words it."""
    rng = np.random.RandomState(seed)
    while True:
        owned: list[list[int]] = [[] for _ in range(clients)]
        for label in range(labels.max() + 1):
            positions = np.where(labels == label)[0]
            rng.shuffle(positions)
            shares = rng.dirichlet(np.repeat(alpha, clients))
            for client in range(clients):
                if len(owned[client]) >= len(labels) / clients:
                    shares[client] = 0
            ends = (np.cumsum(shares / shares.sum()) * len(positions)).astype(int)
            ends[-1] = len(positions)
            for client, (start, end) in enumerate(zip([0, *ends[:-1]], ends)):
                owned[client] += positions[start:end].tolist()
        if min(map(len, owned)) >= least:
            break
    cut = []
    for mine in owned:
        order = rng.permutation(len(mine))
        tests = len(mine) - int(np.floor(0.75 * len(mine)))
        cut.append(({mine[i] for i in order[tests:]}, {mine[i] for i in order[:tests]}))
    return cut


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_dirichlet_follows_the_rule(seed):
    data = made()
    settings = DataSettings(partitioner="pfllib-dirichlet", dirichlet_alpha=0.5, min_samples=12)
    shares = partition(data, settings, 5, seed)
    expected = dirichlet_by_hand(np.concatenate([data.y_train, data.y_test]), 5, 0.5, 12, seed)
    assert [(set(share.train), set(share.test)) for share in shares] == expected
    assert all((np.diff(part) > 0).all() for share in shares for part in share)


def test_pathological_gives_each_class_to_the_first_clients_that_have_room():
    data = made(each=200, classes=4)
    labels = np.concatenate([data.y_train, data.y_test])
    shares = partition(data, DataSettings(partitioner="pfllib-pathological", classes_per_client=2), 6, 1)
    has = [set(labels[np.concatenate(share)]) for share in shares]
    assert has == [{0, 1}, {0, 1}, {0, 1}, {2, 3}, {2, 3}, {2, 3}]
    # An even share is 200/3: all but the last of a class draw from 6 to 65 samples, in the order of the samples.
    rng = np.random.RandomState(1)
    for label in range(4):
        first, second = rng.randint(6, 66, 2)
        mine = [np.sort(np.concatenate(share)) for share, classes in zip(shares, has) if label in classes]
        mine = [positions[labels[positions] == label] for positions in mine]
        assert [len(positions) for positions in mine] == [first, second, 200 - first - second]
        assert (np.diff(np.concatenate(mine)) > 0).all()
    assert [len(share.test) for share in shares] == [-(-len(np.concatenate(share)) // 4) for share in shares]


def test_a_draw_in_which_nobody_takes_a_class_is_not_used():
    settings = DataSettings(partitioner="pfllib-dirichlet", dirichlet_alpha=0.001, min_samples=2)
    for classes in ([0, 1, 2], [0, 2, 3], [1, 2, 3], [0, 1, 3]):  # the data may lack some
        data = labelled(np.repeat(classes, 40), np.empty(0, np.int64), 5)
        for seed in range(10):
            shares = partition(data, settings, 2, seed)
            assert sorted(np.concatenate([part for share in shares for part in share])) == list(range(120))


def test_the_same_clients_for_every_seed_of_a_run():
    settings = DataSettings(num_clients=5, min_samples=5, partitioner="pfllib-dirichlet", partition_seed=3)
    first, second = (FederatedData(settings, 5, seed) for seed in (1, 2))
    assert first.checksum == second.checksum
    assert first.checksum != FederatedData(DataSettings(min_samples=5, partitioner="pfllib-dirichlet"), 5, 1).checksum


@pytest.mark.parametrize(
    ("settings", "clients", "error", "message"),
    [
        ({"split": "given"}, 4, ConfigError, 'must be "mixed"'),
        ({"split": "stratified"}, 4, ConfigError, 'must be "mixed"'),
        ({"min_samples": 60}, 4, DataError, "1000 draws left one of 4 clients with less than 60 samples"),
        ({"partitioner": "pfllib-pathological"}, 100, DataError, "too small for 50 clients"),
        ({"partitioner": "pfllib-pathological", "classes_per_client": 5}, 4, ConfigError, "4 of the 4 classes"),
    ],
)
def test_what_cannot_be_divided_is_refused(settings, clients, error, message):
    chosen = DataSettings(**{"partitioner": "pfllib-dirichlet", "dirichlet_alpha": 0.05, **settings})
    with pytest.raises(error, match=message):
        partition(made(), chosen, clients, 1)


@pytest.mark.parametrize(
    ("name", "file"), [("pfllib-dirichlet", "pfllib_fmnist_dir01"), ("pfllib-pathological", "pfllib_fmnist_pat2")]
)
def test_the_published_clients_of_fashion_mnist(name, file):
    folder, published = real_data_dir(), Path(UNPACK.parent / f"{file}.npz")
    if not published.is_file():
        pytest.skip(f"{published.name} is not there")
    settings = DataSettings(
        dataset="fashion-mnist", data_dir=str(folder), partitioner=name, dirichlet_alpha=0.1, min_samples=40,
        partition_seed=1,
    )  # fmt: skip
    data = FederatedData(settings, 20, 5)
    with np.load(published) as arrays:
        client, test = arrays["client"], arrays["test"]
    shares = [data.share(i) for i in range(20)]
    expected = [Share(*(np.flatnonzero((client == i) & (test == part)) for part in (False, True))) for i in range(20)]
    for mine, theirs in zip(shares, expected):
        np.testing.assert_array_equal(mine.train, theirs.train)
        np.testing.assert_array_equal(mine.test, theirs.test)
