"""The factor analysis against an independent implementation, by hand, and on the paper's planted parameters."""

from __future__ import annotations

import numpy as np
import pytest

from fedpfl.methods.fedfac.factor_analysis import (
    Moments,
    eigenvector_shares,
    number_of_factors,
    principal_axis,
    shared_channels,
)


def random_correlation(seed, channels, factors):
    """Return the correlation matrix of data that has some common factors, and is not exactly of that form."""
    rng = np.random.default_rng(seed)
    loadings = rng.normal(size=(channels, factors))
    noise = rng.uniform(0.8, 1.5, channels)
    data = rng.normal(size=(400, factors)) @ loadings.T + rng.normal(size=(400, channels)) * noise
    return np.corrcoef(data.T)


@pytest.mark.parametrize(("seed", "channels", "factors"), [(0, 8, 1), (1, 10, 2), (2, 12, 3), (3, 20, 4), (4, 30, 2)])
def test_communalities_agree_with_statsmodels_on_random_correlations(seed, channels, factors):
    factor = pytest.importorskip("statsmodels.multivariate.factor")
    correlation = random_correlation(seed, channels, factors)
    # It starts from squared multiple correlations, we from the eigenpairs of R: only the fixed point is the same.
    theirs = factor.Factor(corr=correlation, n_factor=factors, method="pa", smc=True).fit(maxiter=50_000, tol=1e-13)
    ours = principal_axis(correlation, factors, 1e-12, 50_000)
    assert ours.converged
    assert np.abs(ours.communalities - theirs.communality).max() < 1e-6


def test_one_factor_is_found_to_the_loading():
    loadings = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    correlation = np.outer(loadings, loadings)
    np.fill_diagonal(correlation, 1)
    solution = principal_axis(correlation, 1, 1e-14, 10_000)
    np.testing.assert_allclose(solution.communalities, loadings**2, atol=1e-10)


def test_the_first_step_is_the_paper_s():
    correlation = random_correlation(5, 6, 2)
    values, vectors = np.linalg.eigh(correlation)
    loadings = vectors[:, -2:] * np.sqrt(values[-2:])
    reduced = correlation - np.diag(np.diag(correlation - loadings @ loadings.T))
    values, vectors = np.linalg.eigh(reduced)
    second = vectors[:, -2:] * np.sqrt(values[-2:])
    solution = principal_axis(correlation, 2, 1e-9, 1)
    np.testing.assert_allclose(solution.communalities, (second**2).sum(axis=1), atol=1e-12)
    assert (solution.iterations, solution.converged) == (1, False)


def test_a_heywood_case_is_clamped():
    # One factor with loadings ab, ac, bc such that one of them would have to be above 1.
    correlation = np.array([[1, 0.9, 0.9], [0.9, 1, 0.5], [0.9, 0.5, 1]])
    solution = principal_axis(correlation, 1, 1e-9, 5000)
    assert solution.communalities[0] == 1  # 0.9·0.9 / 0.5 = 1.62 without the clamp
    assert (solution.communalities <= 1).all()


def test_the_number_of_factors_is_the_least_that_reaches_kappa():
    correlation = np.kron(np.eye(2), [[1, 0.5], [0.5, 1]])  # eigenvalues 1.5, 1.5, 0.5, 0.5
    assert [number_of_factors(correlation, k) for k in (0.3, 0.375, 0.38, 0.75, 0.8, 1.0)] == [1, 1, 2, 2, 3, 4]
    assert number_of_factors(np.zeros((3, 3)), 0.85) == 0


def test_the_authors_variant_takes_unscaled_eigenvectors_and_one_factor_less():
    correlation = random_correlation(6, 7, 3)
    vectors = np.linalg.eigh(correlation)[1][:, ::-1]
    shares = eigenvector_shares(correlation, 4)
    assert shares.count == 3
    np.testing.assert_allclose(shares.communalities, (vectors[:, :3] ** 2).sum(axis=1))
    assert eigenvector_shares(correlation, 1).count == 1


def test_correlations_come_together_from_blocks():
    rng = np.random.default_rng(7)
    blocks = [rng.normal(loc=100, size=(n, 5)) * [1, 2, 3, 4, 5] for n in (1, 20, 300)]
    moments = Moments(5)
    for block in blocks:
        moments.add(block.astype(np.float32))
    together = np.concatenate(blocks).astype(np.float32)
    np.testing.assert_allclose(moments.correlation(), np.corrcoef(together.T.astype(np.float64)), atol=1e-10)


@pytest.mark.parametrize("value", [0.0, 0.1, -3e20])
def test_a_channel_that_never_varies_is_explained_by_nothing(value):
    block = np.random.default_rng(8).normal(size=(50, 4)).astype(np.float32)
    block[:, 2] = value
    moments = Moments(4)
    moments.add(block)
    moments.add(block[:7])
    correlation = moments.correlation()
    assert not correlation[2].any()
    assert not correlation[:, 2].any()
    solution = principal_axis(correlation, 2, 1e-6, 100)
    assert solution.communalities[2] == 0
    assert np.isfinite(solution.communalities).all()


def test_tau_is_a_quantile_or_infinite():
    nu = np.array([0.1, 0.4, 0.2, 0.3])
    assert shared_channels(nu, 0.5).tolist() == [False, True, False, True]
    assert shared_channels(nu, 0.75).tolist() == [False, True, False, False]
    assert shared_channels(nu, float("inf")).sum() == 0
    assert shared_channels(nu, float("-inf")).all()
    assert shared_channels(np.zeros(3), 0.5).all()


def test_the_mean_of_the_communalities_is_a_threshold():
    nu = np.array([0.1, 0.2, 0.9])  # mean 0.4, median 0.2
    assert shared_channels(nu, "mean").tolist() == [False, False, True]
    assert shared_channels(np.full(3, 0.5), "mean").all()
