"""FedAMP's mixtures against the equations written out."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
from support import play, rule

from fedpfl.core.errors import ConfigError
from fedpfl.core.layout import Layout
from fedpfl.methods.fedamp import Attentive

W = {0: [0.0, 0.0], 1: [1.0, 0.0], 2: [0.0, 2.0]}


def test_mixtures_follow_the_equations():
    attentive = rule(Attentive, [9, 9], (1, 1, 1), alpha=2.0, sigma=5.0)
    play(attentive, 1, W)
    squared = {(0, 1): 1, (0, 2): 4, (1, 2): 5}
    for i in range(3):
        xi = {j: 2 * exp(-squared[min(i, j), max(i, j)] / 5) / 5 for j in range(3) if j != i}
        u = (1 - sum(xi.values())) * np.array(W[i]) + sum(x * np.array(W[j]) for j, x in xi.items())
        np.testing.assert_allclose(attentive.for_clients[i], u, rtol=1e-6, atol=1e-7)


def test_absent_clients_count_with_their_newest_model_and_unknown_ones_not_at_all():
    attentive = rule(Attentive, [0, 0], (1, 1, 1), alpha=1.0, sigma=4.0)
    play(attentive, 1, {1: [1, 0]})
    xi = exp(-1 / 4) / 4
    np.testing.assert_allclose(attentive.for_clients, [[xi, 0], [1, 0], [xi, 0]], rtol=1e-6)
    play(attentive, 2, {0: [3, 0]})
    xi = exp(-4 / 4) / 4
    np.testing.assert_allclose(attentive.for_clients[:2], [[3 - 2 * xi, 0], [1 + 2 * xi, 0]], rtol=1e-6)


def test_running_statistics_are_mixed_but_make_no_distance():
    layout = Layout.of([("w", (1,)), ("bn.running_mean", (1,))])
    attentive = rule(Attentive, [0, 0], (1, 1), layout, alpha=1.0, sigma=4.0)
    play(attentive, 1, {0: [1, 0], 1: [1, 8]})
    np.testing.assert_allclose(attentive.for_clients, [[1, 2], [1, 6]])


def test_too_small_a_sigma_is_one_clear_line():
    attentive = rule(Attentive, [0, 0], (1, 1, 1), alpha=1.0, sigma=2.0)
    with pytest.raises(
        ConfigError,
        match=r"fedamp-sigma = 2.0: the weights of the other clients in the mixture of client 0 add up to 1 in round "
        r"7, they must stay below 1; more than fedamp-alpha × \(clients − 1\) = 2 is always enough",
    ):
        play(attentive, 7, {i: [1, 1] for i in range(3)})
