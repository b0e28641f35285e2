"""The least value of a quadratic form over weights that sum to 1."""

from __future__ import annotations

import numpy as np


def least_on_simplex(p: np.ndarray) -> np.ndarray:
    """Return argmin αᵀPα over α ≥ 0 with Σ_j α_j = 1, shape (n,).

    A multiple of α minimises βᵀPβ/2 − Σ_j β_j over β ≥ 0, which is non-negative least squares with P's Cholesky factor.

    Parameters
    ----------
    p : ndarray, shape (n, n)
        P, symmetric and positive semidefinite.
    """
    # Imported here: clients import this file, by way of their methods, and need no SciPy.
    from scipy.optimize import nnls

    size = np.trace(p) / len(p)
    # P may be singular: a trace of one makes it definite.
    lower = np.linalg.cholesky((p / size if size > 0 else p) + 1e-12 * np.eye(len(p)))
    beta: np.ndarray = nnls(lower.T, np.linalg.solve(lower, np.ones(len(p))))[0]
    beta /= beta.sum()
    return beta
