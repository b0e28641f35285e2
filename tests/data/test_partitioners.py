"""Partitioners: what they promise, and what they have in common with Flower's own."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpfl.core.errors import ConfigError, DataError
from fedpfl.core.rng import generator
from fedpfl.data import Dataset, DataSettings, FederatedData, partition
from fedpfl.data.paper_partitioners import dirichlet_classes, dirichlet_equal, dirichlet_sizes, pathological
from fedpfl.data.partitioners import Pool, label_permutation, top_up


def made(n: int, classes: int, test: int = 0, owners: int = 0, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset.of(
        "made",
        np.zeros((n, 3), np.float32),
        rng.integers(0, classes, n),
        np.zeros((test, 3), np.float32) if test else None,
        rng.integers(0, classes, test) if test else None,
        rng.integers(0, owners, n) if owners else None,
        rng.integers(0, owners, test) if owners and test else None,
        num_classes=classes,
    )


def balanced(n: int, classes: int = 10, test: int = 0) -> Dataset:
    y, z = np.arange(n) % classes, np.arange(test) % classes
    x, x_test = (np.zeros((count, 1), np.float32) for count in (n, test))
    return Dataset.of("balanced", x, y, x_test, z, num_classes=classes)


def counts_of(labels: np.ndarray, shares: list[np.ndarray], classes: int) -> np.ndarray:
    return np.stack([np.bincount(labels[mine], minlength=classes) for mine in shares])


def entropy(counts: np.ndarray) -> float:
    q = counts / counts.sum(axis=1, keepdims=True)
    return float(-(q * np.log(np.maximum(q, 1e-12))).sum(axis=1).mean())


# -- properties --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(
        [
            "iid",
            "dirichlet",
            "dirichlet-classes",
            "dirichlet-equal",
            "dirichlet-sizes",
            "pathological",
            "natural",
        ]
    ),
    split=st.sampled_from(["mixed", "given"]),
    clients=st.integers(1, 12),
    classes=st.integers(2, 7),
    n=st.integers(200, 500),
    alpha=st.floats(0.05, 50),
    fraction=st.floats(0.05, 0.9),
    seed=st.integers(0, 2**40),
)
def test_shares_are_disjoint_sorted_and_large_enough(
    name: str, split: str, clients: int, classes: int, n: int, alpha: float, fraction: float, seed: int
) -> None:
    data = made(n, classes, test=120, owners=clients, seed=seed % 1000)
    s = DataSettings(
        partitioner=name,
        split=split,
        dirichlet_alpha=alpha,
        test_fraction=fraction,
        min_samples=4,
        classes_per_client=2,
    )
    try:
        shares = partition(data, s, clients, seed)
    except DataError as refused:  # a tiny α among many clients: allowed, but it has to say what to do
        assert "use" in str(refused)
        return
    again = partition(data, s, clients, seed)
    everything = np.concatenate([part for share in shares for part in share])
    assert len(np.unique(everything)) == len(everything)
    assert len(shares) == clients
    for share, twin in zip(shares, again):
        assert np.array_equal(share.train, twin.train) and np.array_equal(share.test, twin.test)
        assert (np.diff(share.train) > 0).all() and (np.diff(share.test) > 0).all()
        assert len(share.test) >= 1
        assert len(share.train) + (len(share.test) if split == "mixed" else 0) >= 4
        if split == "given":
            assert share.train.max() < n <= share.test.min()
        else:
            total = len(share.train) + len(share.test)
            assert len(share.test) == min(max(int(total * fraction + 0.5), 1), total - 1)
    uses_all = name in ("iid", "dirichlet", "dirichlet-equal", "dirichlet-sizes")
    uses_all = uses_all or (name in ("pathological", "dirichlet-classes") and 2 * clients >= classes)
    if uses_all or name == "natural":
        assert len(everything) == n + 120


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 60),
    classes=st.integers(2, 12),
    each=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
def test_pathological_gives_exactly_s_classes(clients: int, classes: int, each: int, seed: int) -> None:
    data = balanced(classes * 80, classes)
    s = DataSettings(partitioner="pathological", classes_per_client=each, min_samples=2)
    pool = Pool(data.y_train, classes)
    if each > classes:
        with pytest.raises(ConfigError, match="classes-per-client"):
            pathological(pool, clients, s, seed)
        return
    counts = counts_of(data.y_train, pathological(pool, clients, s, seed), classes)
    assert ((counts > 0).sum(axis=1) == each).all()
    shards = (counts > 0).sum(axis=0)
    assert shards.max() - shards.min() <= 1
    assert (shards > 0).sum() == min(classes, clients * each)
    assert set(counts.sum(axis=0)) <= {0, 80}


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(2, 20), alpha=st.floats(0.05, 20), seed=st.integers(0, 10**6))
def test_what_differs_between_the_clients_of_a_dirichlet_partitioner(clients: int, alpha: float, seed: int) -> None:
    data = balanced(2000)
    s = DataSettings(dirichlet_alpha=alpha, classes_per_client=3, min_samples=5)
    pool = Pool(data.y_train, 10)
    sizes = [len(mine) for mine in dirichlet_equal(pool, clients, s, seed)]
    assert max(sizes) - min(sizes) <= 1 and sum(sizes) == 2000
    counts = counts_of(data.y_train, dirichlet_classes(pool, clients, s, seed), 10)
    assert ((counts > 0).sum(axis=1) <= 3).all() and (counts.sum(axis=1) >= 5).all()
    assert sum(len(mine) for mine in dirichlet_sizes(pool, clients, s, seed)) == 2000


def test_alpha_decides_how_much_they_differ() -> None:
    data = balanced(5000)
    pool, measures = Pool(data.y_train, 10), {}
    for alpha in (0.1, 100):
        s = DataSettings(dirichlet_alpha=alpha, classes_per_client=3, min_samples=5)
        by_class = counts_of(data.y_train, dirichlet_classes(pool, 10, s, 1), 10)
        mixed = counts_of(data.y_train, dirichlet_equal(pool, 10, s, 1), 10)
        sizes = counts_of(data.y_train, dirichlet_sizes(pool, 10, s, 1), 10)
        measures[alpha] = [by_class.sum(1).std(), -entropy(mixed), sizes.sum(1).std()]
        large = sizes[sizes.sum(1) > 200]
        assert entropy(large) > 2.2  # of 2.3: their mixes of classes are alike
    assert all(a > b for a, b in zip(measures[0.1], measures[100]))


def test_pathological_copes_with_rare_classes() -> None:
    y = np.concatenate([np.zeros(3, int), np.ones(100, int), np.full(100, 2)])
    shares = pathological(Pool(y, 3), 10, DataSettings(partitioner="pathological"), 0)
    counts = counts_of(y, shares, 3)
    assert ((counts > 0).sum(axis=1) == 2).all() and counts.sum() == 203
    with pytest.raises(DataError, match=r"samples for 23 shards, 20 clients with 2 classes each need 40"):
        pathological(Pool(np.repeat([0, 1], [3, 20]), 2), 20, DataSettings(partitioner="pathological"), 0)


def test_client_draws_have_fixed_sizes_and_do_not_use_the_pool_up() -> None:
    data = balanced(5000, test=1000)
    s = DataSettings(partitioner="dirichlet-client", split="given", dirichlet_alpha=0.5)
    shares = partition(data, s, 40, 1)
    labels = np.concatenate([data.y_train, data.y_test])
    for share in shares:
        # ⌊500·q + ½⌋ summed over 10 classes is within 5 of 500 unless a class of 500 (test: 100) was exhausted
        assert 495 <= len(share.train) <= 500 and 95 <= len(share.test) <= 100
        assert len(np.unique(share.train)) == len(share.train)
        train, test = counts_of(labels, [share.train, share.test], 10)
        assert np.abs(train / 500 - test / 100).max() < 0.06, "both are drawn by the same class mix"
    assert len(np.unique(np.concatenate([share.train for share in shares]))) < sum(len(x.train) for x in shares)
    few = partition(data, s, 3, 1)
    assert all(np.array_equal(a.train, b.train) for a, b in zip(few, shares[:3]))


def test_client_draws_are_cut_off_as_the_authors_cut_them() -> None:
    data = balanced(60000, test=10000)
    s = DataSettings(partitioner="dirichlet-client", split="given", dirichlet_alpha=1.0)
    sums = []
    for client, share in enumerate(partition(data, s, 60, 7)):
        mix = generator(7, "class mix", client).dirichlet(np.ones(10))
        for part, labels, n in ((share.train, data.y_train, 500), (share.test - 60000, data.y_test, 100)):
            left, expected = n, []
            for q in mix:
                expected.append(min(int(n * q + 0.5), left))
                left -= expected[-1]
            sums.append(sum(int(n * q + 0.5) for q in mix) - n)
            assert np.bincount(labels[part], minlength=10).tolist() == expected
    assert min(sums) < 0 < max(sums), "some clients are cut off, others end under n"


def test_client_draws_take_all_of_a_small_class() -> None:
    data = balanced(200, test=100)
    s = DataSettings(partitioner="dirichlet-client", split="given", dirichlet_alpha=1e-6, train_samples=500)
    for share in partition(data, s, 5, 0):
        assert len(share.train) == 20 and len(share.test) == 10


def test_client_draws_from_a_mixed_pool_never_test_on_what_another_client_trains_on() -> None:
    data = balanced(2000)
    data = Dataset.of("no test set", data.x_train, data.y_train, num_classes=10)
    s = DataSettings(partitioner="dirichlet-client", train_samples=100, test_samples=50)
    shares = partition(data, s, 30, 0)
    train = np.concatenate([share.train for share in shares])
    test = np.concatenate([share.test for share in shares])
    assert not np.intersect1d(train, test).size


def test_given_split_follows_the_training_mix() -> None:
    data = balanced(60000, test=10000)
    for name in ("iid", "dirichlet", "pathological"):
        shares = partition(data, DataSettings(partitioner=name, split="given"), 20, 3)
        train = counts_of(data.y_train, [share.train for share in shares], 10)
        test = counts_of(data.y_test, [share.test - 60000 for share in shares], 10)
        assert np.abs(test - train / 6).max() <= 1.01, name
        assert test.sum() == 10000


def test_natural_uses_its_owners_test_samples_and_passes_over_small_ones() -> None:
    owner = np.repeat([0, 1, 2, 3], [40, 5, 30, 20])
    test_owner = np.repeat([0, 2, 3], [4, 3, 2])
    data = Dataset.of(
        "n", np.zeros((95, 1), np.float32), np.zeros(95, int), np.zeros((9, 1), np.float32), np.zeros(9, int), owner,
        test_owner, num_classes=2,
    )  # fmt: skip
    s = DataSettings(partitioner="natural", split="given")
    shares = partition(data, s, 3, 0)
    assert [(len(x.train), len(x.test)) for x in shares] == [(40, 4), (30, 3), (20, 2)]
    assert [set(test_owner[x.test - 95]) for x in shares] == [{0}, {2}, {3}]
    mixed = partition(data, DataSettings(partitioner="natural"), 2, 0)
    assert [len(x.train) + len(x.test) for x in mixed] == [44, 33]
    with pytest.raises(ConfigError, match=r"num-clients = 4: must be at most 3, the number of natural clients"):
        partition(data, s, 4, 0)


def test_natural_without_owners_of_the_test_set_matches_classes() -> None:
    data = made(300, 3, test=90, owners=4)
    data = Dataset.of("n", data.x_train, data.y_train, data.x_test, data.y_test, data.client_train, None, 3)
    shares = partition(data, DataSettings(partitioner="natural", split="given"), 4, 0)
    assert sum(len(x.test) for x in shares) == 90
    mixed = partition(data, DataSettings(partitioner="natural"), 4, 0)
    assert sum(len(x.train) + len(x.test) for x in mixed) == 300, "test samples without an owner stay with nobody"


def test_many_clients_are_completed_rather_than_refused() -> None:
    data = balanced(60000)
    s = DataSettings(dirichlet_alpha=0.1)
    shares = partition(data, s, 500, 0)
    sizes = np.array([len(x.train) + len(x.test) for x in shares])
    assert sizes.min() == 10 and sizes.sum() == 60000
    counts = counts_of(data.y_train, [np.concatenate(x) for x in shares], 10)
    # What Dir(0.1) gives without a minimum, from NumPy directly
    q = np.random.default_rng(0).dirichlet(np.full(500, 0.1), size=10).T * 6000
    free = entropy(np.floor(q)[np.floor(q).sum(axis=1) > 0])
    assert abs(entropy(counts) - free) < 0.1


def test_who_lacks_samples_gets_those_of_its_commonest_class_from_who_has_most_of_it() -> None:
    counts, liking = np.array([[6, 2, 0], [5, 9, 0]]), np.array([[1, 1, 4], [1, 1, 3]])
    assert top_up(counts, 2, liking).tolist() == [[4, 2, 2], [5, 9, 0]]
    assert top_up(counts, 2, -liking).tolist() == [[6, 2, 0], [5, 7, 2]]
    # The client in the middle has too small a share of both classes for a test sample.
    labels, owner = np.repeat([0, 1] * 3, [330, 330, 3, 7, 300, 300]), np.repeat([0, 1, 2], [660, 10, 600])
    test = np.repeat([0, 1], 20)
    x, x_test = (np.zeros((len(y), 1), np.float32) for y in (labels, test))
    data = Dataset.of("n", x, labels, x_test, test, owner, None, 2)
    share = partition(data, DataSettings(partitioner="natural", split="given"), 3, 0)[1]
    assert test[share.test - len(labels)].tolist() == [1]


def test_partitions_never_change_silently() -> None:
    """A seed is a promise: results of one version can be repeated with the next."""
    data = made(2000, 10, test=500, owners=12, seed=5)
    digests = {}
    for name in ("iid", "dirichlet", "dirichlet-client", "dirichlet-classes", "dirichlet-equal", "dirichlet-sizes",
                 "pathological", "natural"):  # fmt: skip
        for split in ("mixed", "given"):
            shares = partition(data, DataSettings(partitioner=name, split=split), 10, 42)
            digest = hashlib.sha256()
            for part in (part for share in shares for part in share):
                digest.update(part.astype("<i8").tobytes() + b"|")
            digests[f"{name} {split}"] = digest.hexdigest()[:12]
    assert digests == GOLDEN


GOLDEN = {
    "iid mixed": "3d0065d3798a",
    "iid given": "82e55048d851",
    "dirichlet mixed": "aeb6bc31243a",
    "dirichlet given": "21f00a290d45",
    "dirichlet-client mixed": "18a7f98d1d3e",
    "dirichlet-client given": "1de0338b4337",
    "dirichlet-classes mixed": "1ed1fd1457fb",
    "dirichlet-classes given": "ba2796f78643",
    "dirichlet-equal mixed": "9d785b10bb42",
    "dirichlet-equal given": "a792a5bcf942",
    "dirichlet-sizes mixed": "9b6b06d5bbf1",
    "dirichlet-sizes given": "d06c9782985b",
    "pathological mixed": "41e4e62b87d4",
    "pathological given": "fde86542c0be",
    "natural mixed": "d811d43eefeb",
    "natural given": "6432bf1ffc49",
}


def test_another_seed_gives_another_partition() -> None:
    data = made(2000, 10, test=500, seed=5)
    for name in ("iid", "dirichlet", "dirichlet-client", "pathological"):
        a, b = (partition(data, DataSettings(partitioner=name), 10, seed) for seed in (0, 1))
        assert not np.array_equal(a[0].train, b[0].train), name


# -- against flwr-datasets ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return np.random.default_rng(1).permutation(np.arange(3000) % 10)


def theirs(partitioner: object, labels: np.ndarray, clients: int) -> np.ndarray:
    datasets = pytest.importorskip("datasets")
    partitioner.dataset = datasets.Dataset.from_dict({"label": labels, "position": np.arange(len(labels))})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = [partitioner.load_partition(i) for i in range(clients)]
    return np.stack([np.bincount(part["label"], minlength=10) for part in parts])


def ours(labels: np.ndarray, clients: int, seed: int, **values: object) -> np.ndarray:
    data = Dataset.of("d", np.zeros((len(labels), 1), np.float32), labels, num_classes=10)
    shares = partition(data, DataSettings(**values), clients, seed)
    return counts_of(labels, [np.concatenate(share) for share in shares], 10)


def spread(counts: np.ndarray) -> float:
    sizes = counts.sum(axis=1)
    return float(sizes.std() / sizes.mean())


@pytest.mark.parametrize("alpha", [0.1, 5.0])
def test_dirichlet_is_distributed_as_in_flwr_datasets(labels: np.ndarray, alpha: float) -> None:
    flwr = pytest.importorskip("flwr_datasets.partitioner")
    a, b = [], []
    for seed in range(8):
        mine = ours(labels, 10, seed, partitioner="dirichlet", dirichlet_alpha=alpha, min_samples=10)
        reference = theirs(flwr.DirichletPartitioner(10, "label", alpha, 10, False, seed=seed), labels, 10)
        a.append((entropy(mine), (mine > 0).sum(axis=1).mean(), spread(mine)))
        b.append((entropy(reference), (reference > 0).sum(axis=1).mean(), spread(reference)))
    a, b = np.array(a), np.array(b)
    # Both are means of 8 independent seeds: four standard errors of their difference
    tolerance = 4 * np.sqrt((a.var(axis=0) + b.var(axis=0)) / 8) + 1e-9
    assert (np.abs(a.mean(axis=0) - b.mean(axis=0)) < tolerance).all(), (a.mean(axis=0), b.mean(axis=0), tolerance)
    assert tolerance[0] < 0.35, "the comparison must be able to fail"


# -- labels ------------------------------------------------------------------------------------------------------------


def test_label_permutations_are_those_of_the_paper() -> None:
    """Factorized-FL, appendix table of CIFAR-10: airplane, automobile and truck at clients 1 … 20."""
    airplane = [2, 5, 3, 0, 8, 2, 4, 4, 2, 2, 0, 6, 1, 8, 4, 0, 0, 6, 9, 7]
    automobile = [8, 4, 1, 5, 1, 8, 1, 0, 9, 7, 7, 3, 6, 2, 0, 4, 1, 8, 1, 4]
    truck = [7, 6, 8, 2, 0, 1, 7, 9, 1, 8, 4, 8, 2, 1, 9, 8, 2, 9, 4, 3]
    table = np.stack([label_permutation(i, 10) for i in range(20)], axis=1)
    assert table[0].tolist() == airplane
    assert table[1].tolist() == automobile
    assert table[9].tolist() == truck


# -- the five domains of CIFAR-100 -------------------------------------------------------------------------------------

# Factorized-FL, appendix C, table of the label permutations: the classes of each domain, and the numbers that the first
# client of each gives to them, from the domain's first class to its tenth.
TABLE = {
    "Household Objects": ([5, 20, 22, 25, 39, 40, 84, 86, 87, 94], [2, 8, 3, 5, 6, 4, 9, 0, 1, 7]),
    "Fruits & Foods": ([0, 9, 10, 16, 28, 51, 53, 57, 61, 83], [8, 1, 4, 9, 6, 5, 2, 3, 7, 0]),
    "Trees & Flowers": ([47, 52, 54, 56, 59, 62, 70, 82, 92, 96], [2, 9, 4, 7, 0, 3, 6, 5, 8, 1]),
    "Transport": ([8, 13, 41, 48, 58, 69, 81, 85, 89, 90], [1, 6, 3, 8, 7, 4, 5, 9, 0, 2]),
    "Animals": ([3, 34, 42, 43, 63, 64, 66, 75, 88, 97], [0, 1, 3, 4, 5, 8, 7, 9, 6, 2]),
}


def cifar100() -> Dataset:
    """Stand in for CIFAR-100, with 500 training and 100 test samples of each class; its pictures are their labels."""
    labels = [np.random.default_rng(n).permutation(np.arange(100 * n) % 100) for n in (500, 100)]
    pixels = [y[:, None].astype(np.float32) for y in labels]
    return Dataset.of("made", pixels[0], labels[0], pixels[1], labels[1])


@pytest.mark.parametrize("clients", [5, 20])
def test_domains_are_those_of_the_paper(clients: int) -> None:
    data = cifar100()
    labels = np.concatenate([data.y_train, data.y_test])
    shares = partition(data, DataSettings(partitioner="domains", test_fraction=0.2), clients, 0)
    for i, share in enumerate(shares):
        classes, _ = list(TABLE.values())[i * 5 // clients]
        assert sorted(set(labels[share.train].tolist())) == classes
        assert len(share.train) == 24_000 // clients, "1,200 with 20 clients"
        assert len(share.test) == 6_000 // clients
    owned = np.concatenate([position for share in shares for position in share])
    assert len(set(owned.tolist())) == len(owned) == 5 * 10 * 600, "nobody has another one's sample"


def test_domains_follow_from_the_seed() -> None:
    data, domains = cifar100(), DataSettings(partitioner="domains")
    a, b, c = (partition(data, domains, 10, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(x.train, y.train) and np.array_equal(x.test, y.test) for x, y in zip(a, b))
    assert not np.array_equal(a[0].train, c[0].train)


@pytest.mark.parametrize("permuted", [False, True])
def test_in_a_domain_labels_are_places_in_its_list_and_permuted_as_in_the_paper(tmp_path: Path, permuted: bool) -> None:
    raw = cifar100()
    np.savez(
        tmp_path / "c.npz",
        x_train=raw.x_train, y_train=raw.y_train, x_test=raw.x_test, y_test=raw.y_test,
        classes=np.arange(100).astype(str),
    )  # fmt: skip
    chosen = DataSettings(dataset="npz", data=str(tmp_path / "c.npz"), partitioner="domains", permute_labels=permuted)
    data = FederatedData(chosen, 20, 0)
    assert data.num_classes == 10
    for i, (classes, numbers) in zip(range(0, 20, 4), TABLE.values()):
        number_of = dict(zip(classes, numbers if permuted else range(10)))
        for x, y in (data.train(i), data.test(i)):
            assert y.tolist() == [number_of[int(label)] for label in x[:, 0]]
        assert data.labels(i).tolist() == data.train(i).y.tolist()


@pytest.mark.parametrize(
    ("classes", "clients", "message"),
    [(10, 5, "partitioner = 'domains': needs the 100 classes"), (100, 7, "num-clients = 7: must be a multiple of 5")],
)
def test_domains_refuse_what_they_cannot_divide(classes: int, clients: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        partition(made(2000, classes), DataSettings(partitioner="domains"), clients, 0)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "clients", "seed", "message"),
    [
        ({}, 0, 0, r"num-clients = 0: must be at least 1"),
        ({}, 2, -1, r"seed = -1: must be at least 0"),
        ({"partitioner": "magic"}, 2, 0, r"partitioner = 'magic': must be one of iid, dirichlet, dirichlet-client"),
        ({"split": "given"}, 2, 0, r"split = 'given': made has no separate test set, use \"mixed\""),
        ({"partitioner": "natural"}, 2, 0, r"partitioner = 'natural': needs data that name the owner"),
        ({"partitioner": "iid"}, 40, 0, r"made: client \d+ of 40 would have 7 samples, min-samples is 10"),
        ({"partitioner": "pathological", "classes_per_client": 6}, 2, 0, r"classes-per-client = 6: must be at most 5"),
        ({"min_samples": 60}, 10, 0, r"300 samples cannot give 10 clients 60 each .* use [1-5] clients"),
        ({"dirichlet_alpha": 0.01}, 30, 0, r"with dirichlet-alpha 0.01: use \d+ clients"),
    ],
)
def test_errors_are_one_line(values: dict[str, object], clients: int, seed: int, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        partition(made(300, 5), DataSettings(**values), clients, seed)
    assert "\n" not in str(caught.value)


def test_number_of_clients_in_the_message_works() -> None:
    data, s = made(300, 5), DataSettings(dirichlet_alpha=0.05)
    with pytest.raises(DataError) as caught:
        partition(data, s, 30, 0)
    advised = int(str(caught.value).split("use ")[1].split()[0])
    assert len(partition(data, s, advised, 0)) == advised


def test_test_set_too_small_for_the_clients() -> None:
    with pytest.raises(DataError, match="5 test samples cannot be divided among 8 clients"):
        partition(made(300, 5, test=5), DataSettings(split="given", partitioner="iid"), 8, 0)
