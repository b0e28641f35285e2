"""The means for each client, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import play, rule

from fedpfl.core.layout import Layout
from fedpfl.methods.factorized_fl.similarity import Similarity, cosines
from fedpfl.rules.mean import Mean

SAMPLES = (1, 2, 5, 8)
# Client 1 is like client 0 to cos 0.8, client 2 to cos 0, client 3 to cos −1; 1 and 2: 0.6, 1 and 3: −0.8.
V = {0: [1, 0], 1: [4, 3], 2: [0, 7], 3: [-2, 0]}
U = {0: [1, 10], 1: [2, 20], 2: [4, 40], 3: [8, 80]}


def similarity(start=(-1.0, -1.0), sizes=SAMPLES, layout=None, **options):
    return rule(Similarity, start, sizes, layout or Layout.of([("u", (len(start),))]), **options)


def run_round(made, number, who, u=U, v=V):
    play(made, number, {i: u[i] for i in who}, compared=v)
    return made


def sent(made):
    return [made.outgoing(client) for client in made.clients.values()]


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
    made = run_round(similarity(threshold=threshold, min_aggregate=least, scaling=scaling), 1, range(4))
    for i, row in matched.items():
        expected = sum(weight * np.array(U[j]) for j, weight in weights_of(i, row, scaling).items())
        np.testing.assert_allclose(sent(made)[i], expected, rtol=1e-6)
    matches = made.arrays["matches"]
    assert {i: np.flatnonzero(matches[i]).tolist() for i in range(4)} == matched


def test_epsilon_0_and_tau_minus_1_is_the_plain_mean_to_the_bit():
    rng = np.random.default_rng(0)
    sizes, start = rng.integers(1, 50, 7).tolist(), np.zeros(5000)
    vectors = {i: rng.normal(size=5000).astype(np.float32) for i in range(7)}
    ours, mean = similarity(start, sizes, threshold=-1.0, scaling=0.0), rule(Mean, start, sizes, weights="uniform")
    play(ours, 1, vectors, compared={i: rng.normal(size=3) for i in vectors})
    play(mean, 1, vectors)
    for vector in sent(ours):
        assert np.array_equal(vector, mean.shared)


def test_tau_above_1_leaves_every_client_its_own_to_the_bit():
    u = {i: np.random.default_rng(i).normal(size=2).astype(np.float32) for i in range(4)}
    same_v = {i: [0.3, -0.1] for i in range(4)}  # even clients that cannot be told apart
    made = run_round(similarity(threshold=1.5), 1, range(4), u, same_v)
    assert np.array_equal(sent(made), list(u.values()))


def test_absent_clients_count_with_what_they_last_sent():
    made = run_round(similarity(threshold=-1.0, scaling=0.0), 1, range(4))
    run_round(made, 2, [1], {1: [10, 100]})
    np.testing.assert_allclose(sent(made), [[(1 + 10 + 4 + 8) / 4, (10 + 100 + 40 + 80) / 4]] * 4)


def test_a_client_never_heard_of_gets_the_mean_weighted_by_samples():
    made = run_round(similarity(threshold=2.0), 1, [1, 2])
    expected = [(2 * 2 + 5 * 4) / 7, (2 * 20 + 5 * 40) / 7]
    np.testing.assert_allclose(sent(made)[0], expected, rtol=1e-6)
    np.testing.assert_allclose(sent(made)[3], expected, rtol=1e-6)
    assert sent(made)[1].tolist() == U[1]


def test_all_means_come_from_one_snapshot():
    made = run_round(similarity(threshold=-1.0, scaling=0.0), 1, range(4))
    assert np.ptp(made.for_clients, axis=0).tolist() == [0, 0]  # written in place, later clients would differ


def test_worst_takes_the_three_least_similar_and_random_three_of_all():
    worst = run_round(similarity(matching="worst"), 1, range(4)).arrays["matches"]
    assert {i: np.flatnonzero(worst[i]).tolist() for i in range(4)} == {
        0: [1, 2, 3], 1: [0, 2, 3], 2: [0, 1, 3], 3: [0, 1, 2],
    }  # fmt: skip
    made = similarity(matching="random")
    drawn = []
    for number in range(1, 5):
        before = made._matches.copy()
        run_round(made, number, range(4))
        drawn.append(made._matches - before)
        assert (drawn[-1].sum(axis=1) == 3).all()
    assert any((a != drawn[0]).any() for a in drawn[1:])
    again = run_round(similarity(matching="random"), 1, range(4))
    assert (again._matches == drawn[0]).all()


def test_compares_by_a_shared_array_if_told_to():
    layout = Layout.of([("u", (2,)), ("a.v", (2,)), ("b.v", (2,))])
    made = similarity(np.zeros(6), layout=layout, threshold=0.5, compared=lambda names: list(names)[1])
    play(made, 1, {i: [*U[i], *V[i], 1, 1] for i in range(4)})
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
