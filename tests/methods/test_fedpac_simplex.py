"""The least quadratic form over weights that sum to 1, as FedPAC combines heads."""

from __future__ import annotations

import numpy as np
import pytest

from fedpfl.methods.fedpac import least_on_simplex

minimize = pytest.importorskip("scipy.optimize").minimize  # a device has no SciPy


def objective(weights, variances, gaps):
    return np.sum(weights**2 * variances) + np.sum(np.square(weights @ gaps))


@pytest.mark.parametrize("clients", [2, 5, 20])
def test_the_combination_is_the_least_on_the_simplex(clients):
    rng = np.random.default_rng(clients)
    for own in range(2):
        moments = rng.normal(size=(clients, 12))
        gaps, variances = moments - moments[own], rng.uniform(0.1, 20, clients)
        found = least_on_simplex(np.diag(variances) + gaps @ gaps.T)
        assert found.sum() == pytest.approx(1)
        assert found.min() >= 0
        start = np.full(clients, 1 / clients)
        other = minimize(
            objective, start, (variances, gaps), bounds=[(0, 1)] * clients, tol=1e-12,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1}, options={"maxiter": 500},
        )  # fmt: skip
        assert objective(found, variances, gaps) <= other.fun * (1 + 1e-6)
        assert found == pytest.approx(other.x, abs=1e-3)


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
    found = least_on_simplex(np.diag(variances))
    assert found.sum() == pytest.approx(1)
    assert np.isfinite(found).all()
    if variances[1] == 1:
        assert found == pytest.approx([1, 0], abs=1e-6)
    else:
        assert found == pytest.approx([0.5, 0.5])


def test_a_client_alone_keeps_its_head():
    assert least_on_simplex(np.array([[3.0]])) == pytest.approx([1])
