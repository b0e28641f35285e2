"""Divisions of flwr-datasets' partitioners are theirs, sample by sample."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from fedpfl.core.errors import ConfigError
from fedpfl.core.rng import generator
from fedpfl.data import FederatedData, Pool
from fedpfl.data.flower_datasets import deal
from fedpfl.data.reading import load
from fedpfl.data.settings import DataSettings

# Their import takes seconds: one process alone has them for these tests.
pytestmark = pytest.mark.xdist_group("flwr-datasets")


@pytest.fixture(scope="module")
def theirs():
    pytest.importorskip("datasets")
    return pytest.importorskip("flwr_datasets.partitioner")


def ours(partitioner, clients=5):
    options = DataSettings(partitioner=partitioner, min_samples=2, partition_seed=7)
    data = FederatedData(options, clients, 1)
    return [np.sort(np.concatenate(data.share(i))).tolist() for i in range(clients)]


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("DirichletPartitioner(alpha=0.5)", lambda by, n: by.DirichletPartitioner(5, "label", 0.5, seed=7)),
        ("PathologicalPartitioner(num_classes_per_partition=3)",
         lambda by, n: by.PathologicalPartitioner(5, "label", 3, seed=7)),
        ("ShardPartitioner(num_shards_per_partition=2)", lambda by, n: by.ShardPartitioner(5, "label", 2, seed=7)),
        ("InnerDirichletPartitioner(alpha=1.0)",
         lambda by, n: by.InnerDirichletPartitioner([n // 5] * 5, "label", 1.0, seed=7)),
        ("LinearPartitioner", lambda by, n: by.LinearPartitioner(5)),
        ("ExponentialPartitioner()", lambda by, n: by.ExponentialPartitioner(5)),
    ],
)  # fmt: skip
def test_each_client_has_their_samples(theirs, text, made):
    data = load(DataSettings())
    labels = data.y_train if data.y_test is None else np.concatenate([data.y_train, data.y_test])
    expected = made(theirs, len(labels))
    order = generator(7, "partition").permutation(len(labels))
    expected.dataset = import_module("datasets").Dataset.from_dict({"label": labels[order], "place": order})
    assert ours(f"flwr:{text}") == [sorted(expected.load_partition(i)["place"]) for i in range(5)]


def test_sorted_data_are_shuffled_before_they_are_cut():
    for name in ("IidPartitioner", "LinearPartitioner"):
        pool = Pool(np.repeat(np.arange(4), 75), 4)
        parts = deal(pool, 4, DataSettings(partitioner=f"flwr:{name}"), 1)
        assert all(np.bincount(pool.labels[part], minlength=4).min() for part in parts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flwr:Dirichlet", "must be flwr: and one of ContinuousPartitioner, DirichletPartitioner"),
        ("flwr:DirichletPartitioner(0.5)", "must be flwr: and one of"),
        ("flwr:DirichletPartitioner(alpha=", "must have the form flwr:NAME"),
        ("flwr:DirichletPartitioner(alpha=open('x'))", "must have the form flwr:NAME"),
        ("flwr:DirichletPartitioner(beta=1)", "flwr-datasets says TypeError"),
        ("flwr:DirichletPartitioner(alpha=0.5, num_partitions=3)", "num-clients = 5: .* makes 3 parts"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(text, message):
    with pytest.raises(ConfigError, match=message):
        ours(text)
