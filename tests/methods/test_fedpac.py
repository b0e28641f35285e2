"""FedPAC: the combination of heads, the least quadratic form over weights that sum to 1."""

from __future__ import annotations

import numpy as np
import pytest
from support import FEW_SAMPLES, play, rule, simulate

from fedpfl.core.layout import Layout
from fedpfl.methods.fedpac import HeadCombination, least_on_simplex
from fedpfl.rules.running_mean import Averages
from fedpfl.setup.options.robust import RobustSettings
from fedpfl.setup.robust_rule import RobustAverages


def test_the_share_of_the_own_head_is_recorded(tmp_path):
    run = simulate(tmp_path, 3, method="fedpac", num_server_rounds=2, **FEW_SAMPLES)
    for line in run.metrics():
        assert 0 < line["details"]["own-head"] <= 1


def combination(sizes):
    layout = Layout.of([("base", (2,)), ("head", (2,))])
    return rule(HeadCombination, np.zeros(4), sizes, layout, in_head=lambda name: name == "head")


@pytest.mark.parametrize("said", [0.0, -5.0, 1e-9])
def test_a_variance_of_nothing_does_not_make_ones_head_everybodys(said):
    """Four clients with the same features: the one that says that its head is exact has a bounded weight."""
    moments, means, counts = np.ones((2, 2)), np.zeros((2, 2)), np.full(2, 5)
    made = combination([10] * 4)
    play(
        made, 1, {i: np.full(4, float(i == 3)) for i in range(4)}, moments=[moments] * 4, prototypes=[means] * 4,
        counts=[counts] * 4, variance=[[1.0], [1.0], [1.0], [said]],
    )  # fmt: skip
    # Weights go as 1 / V, and V is at least a tenth of the usual one.
    np.testing.assert_allclose(made.heads, 10 / 13, rtol=1e-5)


def test_a_robust_mean_is_that_of_the_bases_and_heads_are_combined_as_ever():
    """The head's length differs between clients, each of whom has its own: it tells nothing of who lies."""

    def played(averages):
        made = combination([10 + i for i in range(5)])
        made.averages = averages
        vectors = {i: [base, base, *2 * [100.0 * i]] for i, base in enumerate([1.0, 2.0, 3.0, 4.0, -50.0])}
        moments = [np.full((2, 2), i % 2) for i in range(5)]
        play(made, 1, vectors, moments=moments, prototypes=moments, variance=[[1]] * 5, counts=[[5, 5]] * 5)
        return made

    usual, robust = played(Averages()), played(RobustAverages(RobustSettings(robust_aggregation="median")))
    np.testing.assert_array_equal(robust.shared[:2], [2, 2])
    assert usual.shared[0] == pytest.approx(sum((10 + i) * (-50 if i == 4 else 1 + i) for i in range(5)) / 60)
    assert robust.shared[2] == usual.shared[2] == pytest.approx(100 * sum(i * (10 + i) for i in range(5)) / 60)
    np.testing.assert_array_equal(robust.heads, usual.heads)


minimize = pytest.importorskip("scipy.optimize").minimize  # a device has no SciPy


def objective(weights, variances, gaps):
    return np.sum(weights**2 * variances) + np.sum(np.square(weights @ gaps))


@pytest.mark.parametrize("clients", [2, 5, 20])
def test_the_combination_is_the_least_on_the_simplex(clients):
    rng = np.random.default_rng(clients)
    for client in range(2):
        moments = rng.normal(size=(clients, 12))
        gaps, variances = moments - moments[client], rng.uniform(0.1, 20, clients)
        weights = least_on_simplex(np.diag(variances) + gaps @ gaps.T)
        assert weights.sum() == pytest.approx(1)
        assert weights.min() >= 0
        start = np.full(clients, 1 / clients)
        other = minimize(
            objective, start, (variances, gaps), bounds=[(0, 1)] * clients, tol=1e-12,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1}, options={"maxiter": 500},
        )  # fmt: skip
        assert objective(weights, variances, gaps) <= other.fun * (1 + 1e-6)
        assert weights == pytest.approx(other.x, abs=1e-3)


def test_clients_with_the_same_features_weigh_by_what_they_vary():
    assert least_on_simplex(np.eye(4)) == pytest.approx([0.25] * 4)
    assert least_on_simplex(np.diag([1.0, 3])) == pytest.approx([0.75, 0.25])


def test_a_client_that_is_far_from_all_others_keeps_its_head():
    gaps = np.array([0.0, 1e4, -1e4])[:, None]
    assert least_on_simplex(np.eye(3) + gaps @ gaps.T)[0] == pytest.approx(1 / 3), "errors that cancel are no errors"
    gaps = np.array([0.0, 1e4, 1e4])[:, None]
    assert least_on_simplex(np.eye(3) + gaps @ gaps.T) == pytest.approx([1, 0, 0], abs=1e-6)


@pytest.mark.parametrize("variances", [[0.0, 0.0], [0.0, 1.0]])
def test_no_variance_is_too_odd(variances):
    """A client with one sample has none."""
    weights = least_on_simplex(np.diag(variances))
    assert weights.sum() == pytest.approx(1)
    assert np.isfinite(weights).all()
    if variances[1] == 1:
        assert weights == pytest.approx([1, 0], abs=1e-6)
    else:
        assert weights == pytest.approx([0.5, 0.5])


def test_a_client_alone_keeps_its_head():
    assert least_on_simplex(np.array([[3.0]])) == pytest.approx([1])
