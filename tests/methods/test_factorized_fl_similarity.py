"""The means for each client, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client, Federation
from fedpfl.methods.factorized_fl.similarity import Similarity, cosines
from fedpfl.rules.mean import Mean

LAYOUT = Layout.of([("u", (2,))])
SAMPLES = (1, 2, 5, 8)
CLIENTS = [Client(i, n, 5) for i, n in enumerate(SAMPLES)]
# Client 1 is like client 0 to cos 0.8, client 2 to cos 0, client 3 to cos −1; 1 and 2: 0.6, 1 and 3: −0.8.
V = {0: [1, 0], 1: [4, 3], 2: [0, 7], 3: [-2, 0]}
U = {0: [1, 10], 1: [2, 20], 2: [4, 40], 3: [8, 80]}


def rule(layout=LAYOUT, start=(-1.0, -1.0), clients=CLIENTS, seed=1, **options):
    return Similarity(Federation(tuple(clients), layout, seed=seed), np.array(start, np.float32), **options)


def run_round(made, number, who, u=U, v=V):
    made.begin_round(number)
    for i in who:
        reply = Payload(arrays={"compared": np.array(v[i], np.float32)})
        shared = np.array(u[i], np.float32)
        made.check(made.clients[i], shared, reply)
        made.add(made.clients[i], shared, reply)
    made.finish()
    return made


def weights_of(i, matched, scaling):
    """ω_i as in equation 5, by hand."""
    similarity = {(0, 0): 1, (0, 1): 0.8, (0, 2): 0, (0, 3): -1, (1, 1): 1, (1, 2): 0.6, (1, 3): -0.8}
    similarity.update({(2, 2): 1, (2, 3): 0, (3, 3): 1})
    terms = {j: math.exp(scaling * similarity[min(i, j), max(i, j)]) for j in matched}
    return {j: term / sum(terms.values()) for j, term in terms.items()}


@pytest.mark.parametrize(
    ("threshold", "least", "matched"),
    [
        (-1.0, 1, {0: [0, 1, 2, 3], 1: [0, 1, 2, 3], 2: [0, 1, 2, 3], 3: [0, 1, 2, 3]}),
        (0.5, 1, {0: [0, 1], 1: [0, 1, 2], 2: [1, 2], 3: [3]}),
        (0.8, 1, {0: [0, 1], 1: [0, 1], 2: [2], 3: [3]}),
        (0.5, 3, {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2], 3: [1, 2, 3]}),
        (2.0, 2, {0: [0, 1], 1: [0, 1], 2: [1, 2], 3: [2, 3]}),
        (2.0, 9, {0: [0, 1, 2, 3], 1: [0, 1, 2, 3], 2: [0, 1, 2, 3], 3: [0, 1, 2, 3]}),
    ],
)
@pytest.mark.parametrize("scaling", [0.0, 1.0, 20.0])
def test_weights_are_those_of_the_equation(threshold, least, matched, scaling):
    made = run_round(rule(threshold=threshold, min_aggregate=least, scaling=scaling), 1, range(4))
    for i, row in matched.items():
        expected = sum(weight * np.array(U[j]) for j, weight in weights_of(i, row, scaling).items())
        np.testing.assert_allclose(made.outgoing(CLIENTS[i]), expected, rtol=1e-6)
    matches = made.arrays["matches"]
    assert {i: np.flatnonzero(matches[i]).tolist() for i in range(4)} == matched


def test_epsilon_0_and_tau_minus_1_is_the_plain_mean_to_the_bit():
    rng = np.random.default_rng(0)
    clients = [Client(i, int(rng.integers(1, 50)), 5) for i in range(7)]
    layout, start = Layout.of([("u", (5000,))]), np.zeros(5000, np.float32)
    ours = rule(layout, start, clients, threshold=-1.0, scaling=0.0)
    mean = Mean(Federation(tuple(clients), layout), start, weights="uniform")
    ours.begin_round(1)
    mean.begin_round(1)
    for client in clients:
        shared = rng.normal(size=5000).astype(np.float32)
        ours.add(client, shared, Payload(arrays={"compared": rng.normal(size=3).astype(np.float32)}))
        mean.add(client, shared, Payload())
    ours.finish()
    mean.finish()
    for client in clients:
        assert np.array_equal(ours.outgoing(client), mean.shared)


def test_tau_above_1_leaves_every_client_its_own_to_the_bit():
    u = {i: np.random.default_rng(i).normal(size=2).astype(np.float32) for i in range(4)}
    same_v = {i: [0.3, -0.1] for i in range(4)}  # even clients that cannot be told apart
    made = run_round(rule(threshold=1.5), 1, range(4), u, same_v)
    for client in CLIENTS:
        assert np.array_equal(made.outgoing(client), u[client.id])


def test_absent_clients_count_with_what_they_last_sent():
    made = run_round(rule(threshold=-1.0, scaling=0.0), 1, range(4))
    run_round(made, 2, [1], {1: [10, 100]})
    for client in CLIENTS:
        np.testing.assert_allclose(made.outgoing(client), [(1 + 10 + 4 + 8) / 4, (10 + 100 + 40 + 80) / 4])


def test_a_client_never_heard_of_gets_the_mean_weighted_by_samples():
    made = run_round(rule(threshold=2.0), 1, [1, 2])
    expected = [(2 * 2 + 5 * 4) / 7, (2 * 20 + 5 * 40) / 7]
    np.testing.assert_allclose(made.outgoing(CLIENTS[0]), expected, rtol=1e-6)
    np.testing.assert_allclose(made.outgoing(CLIENTS[3]), expected, rtol=1e-6)
    assert made.outgoing(CLIENTS[1]).tolist() == U[1]


def test_all_means_come_from_one_snapshot():
    made = rule(threshold=-1.0, scaling=0.0)
    run_round(made, 1, range(4))
    assert np.ptp(made.for_clients, axis=0).tolist() == [0, 0]  # written in place, later clients would differ


def test_worst_takes_the_three_least_similar_and_random_three_of_all():
    worst = run_round(rule(matching="worst"), 1, range(4)).arrays["matches"]
    assert {i: np.flatnonzero(worst[i]).tolist() for i in range(4)} == {
        0: [1, 2, 3], 1: [0, 2, 3], 2: [0, 1, 3], 3: [0, 1, 2],
    }  # fmt: skip
    made = rule(matching="random")
    drawn = []
    for number in range(1, 5):
        before = made._matches.copy()
        run_round(made, number, range(4))
        drawn.append(made._matches - before)
        assert (drawn[-1].sum(axis=1) == 3).all()
    assert any((a != drawn[0]).any() for a in drawn[1:])
    again = run_round(rule(matching="random"), 1, range(4))
    assert (again._matches == drawn[0]).all()


def test_compares_by_a_shared_array_if_told_to():
    layout = Layout.of([("u", (2,)), ("a.v", (2,)), ("b.v", (2,))])
    made = rule(layout, np.zeros(6), threshold=0.5, compared=lambda names: list(names)[1])
    made.begin_round(1)
    for i in range(4):
        shared = np.array([*U[i], *V[i], 1, 1], np.float32)
        made.check(CLIENTS[i], shared, Payload())
        made.add(CLIENTS[i], shared, Payload())
    made.finish()
    assert made.arrays["matches"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]


@given(hnp.arrays(np.float32, (4, 3), elements=st.floats(-100, 100, width=32)))
def test_cosines_are_symmetric_bounded_and_1_with_oneself(vectors):
    similarity = cosines(vectors)
    assert np.array_equal(similarity, similarity.T)
    assert np.abs(similarity).max() <= 1
    assert np.diag(similarity).tolist() == [1] * 4
    for i, j in ((0, 1), (2, 3)):
        a, b = vectors[i].astype(np.float64), vectors[j].astype(np.float64)
        lengths = np.linalg.norm(a) * np.linalg.norm(b)
        if lengths > 1e-30:
            assert similarity[i, j] == pytest.approx(a @ b / lengths, abs=1e-9)
        elif not (a.any() and b.any()):
            assert similarity[i, j] == 0
