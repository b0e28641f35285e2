"""pFedFDA: the shares of a client's own statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from fedpfl.methods.pfedfda import best_shares


def statistics(z, y, means):
    counts = np.bincount(y, minlength=len(means))
    class_means = np.stack([z[y == c].mean(0) if counts[c] > 2 else means[c] for c in range(len(means))])
    return class_means, (z - class_means[y]).T @ (z - class_means[y]) / (len(y) - 1) + np.eye(z.shape[1])


def held_out(beta, z, y, fold, means, covariance, priors):
    """Return the cross-entropy of both folds."""
    total = 0.0
    for part in (0, 1):
        class_means, spread = statistics(z[fold != part], y[fold != part], means)
        mixed = beta[0] * class_means + (1 - beta[0]) * means
        inverse = np.linalg.inv(beta[1] * spread + (1 - beta[1]) * covariance)
        scores = z[fold == part] @ inverse @ mixed.T - np.diag(mixed @ inverse @ mixed.T) / 2 + np.log(priors)
        scores -= scores.max(1, keepdims=True)
        chosen = scores[np.arange(len(scores)), y[fold == part]] - np.log(np.exp(scores).sum(1))
        total -= chosen.mean()
    return total


@pytest.mark.parametrize("seed", range(3))
def test_they_predict_held_out_samples_as_well_as_scipy_s(seed):
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(3, 4))
    y = np.r_[rng.integers(0, 3, 59), [3]]  # one class has one sample, which is in neither fold
    means = np.r_[means, rng.normal(size=(1, 4))]
    z = means[y] + rng.normal(size=(60, 4)) @ rng.normal(size=(4, 4)) + 0.3
    shared = means, np.eye(4), np.bincount(y, minlength=4) / 60
    order = np.random.default_rng(9).permutation(60)
    y_in_order = y[order]
    fold = np.array([np.sum(y_in_order[: place + 1] == label) % 2 for place, label in enumerate(y_in_order)])
    many = y_in_order != 3
    args = z[order][many], y_in_order[many], fold[many], *shared
    best = minimize(held_out, [0.5, 0.5], args, bounds=[(0, 1)] * 2, method="L-BFGS-B")
    tensors = [torch.tensor(array) for array in (z, y, *shared)]
    shares = best_shares(*tensors, np.random.default_rng(9)).numpy()
    assert ((shares >= 0) & (shares <= 1)).all()
    assert held_out(shares, *args) == pytest.approx(best.fun, rel=0.02)
    assert held_out(shares, *args) < held_out([0.5, 0.5], *args)


def test_without_two_samples_of_a_class_the_others_statistics_are_taken():
    z, y = torch.randn(3, 2).double(), torch.arange(3)
    means, covariance = torch.zeros(3, 2).double(), torch.eye(2).double()
    shares = best_shares(z, y, means, covariance, torch.full((3,), 1 / 3), np.random.default_rng(0))
    assert shares.tolist() == [0, 0]
