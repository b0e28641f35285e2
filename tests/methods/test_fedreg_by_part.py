from __future__ import annotations

import numpy as np
import pytest

from fedpfl.core.errors import LayoutError
from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client, Federation
from fedpfl.methods.fedreg import MeanByPart, MeanOfRebalanced
from fedpfl.rules.mean import Mean

LAYOUT = Layout.of([("base.w", (2,)), ("head.w", (1,)), ("base.v", (1,))])
SIZES = (1, 2, 5)
CLIENTS = [Client(i, n, 5) for i, n in enumerate(SIZES)]
FEDERATION = Federation(tuple(CLIENTS), LAYOUT)
START = np.full(4, 10, np.float32)


def by_part(rule=MeanByPart, **options):
    def weight_of(name):
        return "effective" if name.startswith("head") else "train-samples"

    return rule(FEDERATION, START, weight_of=weight_of, **options)


def reply(client, effective):
    return Payload(metrics={"train-samples": SIZES[client], "effective": effective})


def aggregate(vectors, effective, strategy=None):
    strategy = strategy or by_part()
    strategy.begin_round(1)
    for client, vector in vectors.items():
        strategy.add(CLIENTS[client], np.asarray(vector, np.float32), reply(client, effective[client]))
    strategy.finish()
    return strategy.shared


def test_each_part_has_its_own_weights():
    vectors = {0: [8, 0, 4, 1], 1: [0, 4, 0, 1], 2: [0, 0, 0, 1]}
    # base: 1·8/8, 2·4/8; head: 1·4/(1+1+2)
    assert aggregate(vectors, {0: 1, 1: 1, 2: 2}).tolist() == [1, 1, 1, 1]


def test_equal_weights_are_the_mean_rule_to_the_bit():
    rng = np.random.default_rng(0)
    vectors = {i: rng.normal(size=4).astype(np.float32) for i in range(3)}
    mean = Mean(FEDERATION, START)
    expected = aggregate(vectors, SIZES, mean)
    assert np.array_equal(aggregate(vectors, SIZES), expected)


def test_a_part_without_samples_stays_as_it_is():
    assert aggregate({1: [3, 3, 7, 3]}, {1: 0}).tolist() == [3, 3, 10, 3]


@pytest.mark.parametrize("effective", [None, -1, 2.5, float("nan"), float("inf")])
def test_a_weight_that_is_missing_or_counts_too_much_is_refused(effective):
    strategy = by_part()
    strategy.check(CLIENTS[1], START, reply(1, 2))
    answer = reply(1, effective)
    if effective is None:
        del answer.metrics["effective"]
    with pytest.raises(LayoutError, match="its reply lacks a proper effective"):
        strategy.check(CLIENTS[1], START, answer)


def test_the_threshold_of_all_clients_goes_with_training_only():
    strategy = by_part(MeanOfRebalanced, threshold="average")
    assert strategy.attachments(CLIENTS[0], "train").config == {"rebalance-threshold": 8 / 3}
    assert strategy.attachments(CLIENTS[0], "evaluate") == Payload()
