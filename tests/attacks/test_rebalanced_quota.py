"""FedReG: what one client says of itself does not make the others work, and the paper's cases stay as they are."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from support import LocalGrid, federation, run_federation, simulate

from fedpfl.core.errors import FedpflError
from fedpfl.data.dataset import Dataset
from fedpfl.data.partitioners import partition
from fedpfl.data.settings import DataSettings
from fedpfl.methods import fedreg
from fedpfl.methods.fedreg import THRESHOLDS, max_rebalanced, quota, rebalance

CLAIM = 999_999


class FalseCount(LocalGrid):
    """Client 0 claims a number of training samples that it does not have."""

    def answer(self, kind, payload, node_config):
        reply = super().answer(kind, payload, node_config)
        if kind == "query" and node_config["partition-id"] == 0:
            reply.metrics["train-samples"] = CLAIM
        return reply


def test_a_false_count_does_not_make_the_other_clients_work(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    made = []

    def counted(samples, size, *rest):
        # Before anything of that size is made.
        assert size * len(samples.y.unique()) <= 1000
        made.append(size)
        return rebalance(samples, size, *rest)

    monkeypatch.setattr(fedreg, "rebalance", counted)
    monkeypatch.setattr(fedreg, "MAX_GROWTH", 1.0)
    settings = {"fedreg_augmentation": "none", "num_server_rounds": 2, "local_epochs": 1}
    values = federation(tmp_path, 4, method="fedreg", **settings)
    run = run_federation(FalseCount(4, values), values)
    assert len(made) == 4
    assert all("failed" not in line for line in run.metrics())
    warned = [record.getMessage() for record in caplog.records if "rebalanced set" in record.getMessage()]
    # Once for each client, although there are two rounds.
    assert len(warned) == len(set(warned)) == 4
    assert "the rebalanced set has 1000 instead of 25" in warned[0]


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), -1.0, "many", True])
def test_a_threshold_that_is_no_number_of_samples_is_refused(tmp_path, threshold):
    def changed(kind, client, payload):
        if kind == "train":
            payload.config["rebalance-threshold"] = threshold

    values = federation(tmp_path, 3, method="fedreg", num_server_rounds=1)
    with pytest.raises(FedpflError, match=r"rebalance-threshold = .*: must be a number of samples, at least 0"):
        run_federation(LocalGrid(3, values, intercept=changed), values)


def test_a_message_without_a_threshold_is_refused(tmp_path):
    def removed(kind, client, payload):
        payload.config.pop("rebalance-threshold", None)

    values = federation(tmp_path, 3, method="fedreg", num_server_rounds=1)
    with pytest.raises(FedpflError, match="rebalance-threshold = None"):
        run_federation(LocalGrid(3, values, intercept=removed), values)


def test_a_bound_that_does_not_bite_changes_no_bit(tmp_path, monkeypatch):
    few = {"method": "fedreg", "num_server_rounds": 1, "local_epochs": 1, "fedreg_augmentation": "none"}
    first = simulate(tmp_path / "a", 3, **few).checkpoint()[1]["shared"]
    monkeypatch.setattr(fedreg, "MAX_GROWTH", 10_000.0)
    second = simulate(tmp_path / "b", 3, **few).checkpoint()[1]["shared"]
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("growth", "counts", "threshold", "expected"),
    [
        (2.0, [3000, 0, 1000], 1e9, 4000),  # twice its own 4,000, in two classes
        (2.0, [3, 0, 1], 1e9, 1000),  # as if it had 1,000
        (1.0, [1000, 500, 1], 1e9, 500),  # 1,501 samples, three classes: never more than the bound
        (2.0, [3, 0, 1], 1999.0, 1000),
        (2.0, [3, 0, 1], 9.0, 5),
    ],
)
def test_the_quota_is_bounded_by_a_multiple_of_the_client_s_own_samples(growth, counts, threshold, expected):
    assert quota(np.array(counts), threshold, growth) == expected
    assert expected * np.count_nonzero(counts) <= max_rebalanced(np.array(counts), growth)


def test_a_client_with_more_classes_than_the_bound_has_one_sample_of_each():
    assert quota(np.ones(3000, int), 1e9, 1.0) == 1


# (samples of each class, classes, clients, α); α 0.1 and the fewest clients make the largest factors.
PAPER = [(6000, 10, 20, 0.1), (6000, 10, 50, 0.1), (7000, 10, 30, 0.1), (7000, 10, 100, 0.5), (2800, 47, 50, 0.1)]


@pytest.mark.parametrize(("size", "classes", "clients", "alpha"), PAPER)
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_bound_bites_in_none_of_the_paper_s_cases(size, classes, clients, alpha, seed):
    labels = np.repeat(np.arange(classes), size)
    data = Dataset.of("labels", np.zeros((len(labels), 1), np.float32), labels)
    settings = DataSettings(partitioner="dirichlet", dirichlet_alpha=alpha, split="mixed", test_fraction=0.25)
    shares = partition(data, settings, clients, seed)
    counts = [np.bincount(labels[share.train], minlength=classes) for share in shares]
    threshold = max(of([int(row.sum()) for row in counts]) for of in THRESHOLDS.values())
    assert threshold <= min(max_rebalanced(row, fedreg.MAX_GROWTH) for row in counts)
