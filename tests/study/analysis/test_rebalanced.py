"""FedReG's figure 4: what the clients have, and what they make of it."""

from __future__ import annotations

import numpy as np
import pytest

from fedpfl.study.analysis import ANALYSES, NotRecorded


def test_original_and_rebalanced_samples_are_counted(make_run):
    run = make_run("fedreg", [{}], num_clients=4, dataset="digits", fedreg_threshold="average", seed=2)
    result = ANALYSES["rebalanced"].make([run])
    (table,) = result.tables
    original, rebalanced = result.figures
    assert original.values.sum() == sum(row[1] for row in table.rows)
    average = original.values.sum(axis=1).mean()
    for client, samples, classes, size, made, kept in table.rows:
        counts = original.values[client]
        assert (samples, classes) == (counts.sum(), (counts > 0).sum())
        assert size == int(average / classes + 0.5)  # Equation 7
        assert made == size * classes == rebalanced.values[client].sum()
        assert kept == np.minimum(counts, size).sum()  # Equation 6


def test_without_rebalanced_data_it_says_what_makes_them(make_run):
    with pytest.raises(NotRecorded, match='method = "fedreg"'):
        ANALYSES["rebalanced"].make([make_run("fedavg", [{}])])
