"""Factor analysis of the channels of a layer: how much of each is explained by what all have in common.

Wang, Tang, Li: Factor-Assisted Federated Learning for Personalized Optimization with Heterogeneous Data, Section 4.1.
The channels are the variables, and every weight of a channel in every client's update is an observation. Only the
d × d correlation matrix is ever formed, d being the number of channels; the clients' weights are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Where the principal-axis iteration stops: at this change of the communalities, or after so many iterations a layer.
TOLERANCE, MAX_ITERATIONS = 1e-3, 200


class Moments:
    """Means and centred cross products of observations of d channels that come in blocks.

    Blocks are merged with the pairwise update of Chan, Golub and LeVeque (1983): nothing cancels, and all but one block
    can be forgotten.
    """

    def __init__(self, channels: int) -> None:
        self._count = 0
        self._mean = np.zeros(channels)
        self._products = np.zeros((channels, channels))

    def add(self, block: np.ndarray) -> None:
        """Add observations, shape (n, d)."""
        n, values = len(block), block.astype(np.float64)
        mean = values.mean(axis=0)
        values -= mean
        apart = mean - self._mean
        total = self._count + n
        self._products += values.T @ values + np.outer(apart, apart) * (self._count * n / total)
        self._mean += apart * (n / total)
        self._count = total

    def correlation(self) -> np.ndarray:
        """Return the correlation matrix R, shape (d, d).

        A channel that never varies (a dead one, whose update is zero everywhere) has no correlation: its row and
        column are zero, the diagonal included.
        """
        deviation = np.sqrt(np.diag(self._products))
        # Equal values leave a rounding error behind rather than a zero.
        largest = np.abs(self._mean) + deviation
        varies = deviation > 1e-12 * largest * np.sqrt(self._count)
        scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=varies)
        correlation: np.ndarray = self._products * np.outer(scale, scale)
        np.fill_diagonal(correlation, varies.astype(np.float64))
        return correlation


@dataclass(frozen=True)
class Factors:
    """The result of a factor analysis.

    ``communalities`` are ν_j in [0, 1], float64 of shape (d,): the share of channel j's variance that the common
    factors explain. ``count`` is their number G, ``iterations`` is 0 where there is nothing to iterate, and
    ``converged`` whether the tolerance was met before the iterations ran out.
    """

    communalities: np.ndarray
    count: int
    iterations: int = 0
    converged: bool = True


def number_of_factors(correlation: np.ndarray, kappa: float) -> int:
    """Return G = min{m : γ_1 + … + γ_m ≥ κ·(γ_1 + … + γ_d)}, γ being R's eigenvalues in falling order."""
    shares = np.cumsum(np.clip(np.linalg.eigvalsh(correlation)[::-1], 0.0, None))
    if shares[-1] == 0:
        return 0
    return min(int(np.searchsorted(shares, kappa * shares[-1])) + 1, len(shares))


def principal_axis(
    correlation: np.ndarray, count: int, tolerance: float = TOLERANCE, max_iterations: int = MAX_ITERATIONS
) -> Factors:
    """Estimate the communalities by principal-axis iteration (Equation 7 and below).

    Â = (√γ_1·u_1, …, √γ_G·u_G) of R; then, until no entry of Σ_ε moves by more than the tolerance, Σ_ε = diag(R − ÂÂᵀ)
    and Â from the top G positive eigenvalues of R − Σ_ε. The paper writes Σ_ε = R − ÂÂᵀ, with which the iteration would
    end where it begins. A communality above 1 (a Heywood case) is set to 1; a channel with a zero on R's diagonal is
    left out and gets 0.
    """
    varies = np.diag(correlation) > 0
    inner = correlation[np.ix_(varies, varies)]
    nu = _explained(inner, count)
    iterations, converged = 0, False
    while not converged and iterations < max_iterations:
        reduced = inner.copy()
        np.fill_diagonal(reduced, nu)  # R − Σ_ε, since Σ_ε = 1 − ν on the diagonal
        before, nu = nu, _explained(reduced, count)
        iterations += 1
        converged = bool(np.abs(nu - before).max(initial=0.0) <= tolerance)
    communalities = np.zeros(len(correlation))
    communalities[varies] = nu
    return Factors(communalities, count, iterations, converged)


def eigenvector_shares(correlation: np.ndarray, count: int) -> Factors:
    """Return the communalities of the authors' code: ν_j = Σ_{m<G} u_jm², with one factor less than G.

    Its eigenvectors are not scaled by √γ, and nothing is iterated. At least one factor stays.
    """
    fewer = max(1, count - 1) if count else 0
    vectors = np.linalg.eigh(correlation)[1][:, ::-1]
    return Factors((vectors[:, :fewer] ** 2).sum(axis=1), fewer)


def shared_channels(communalities: np.ndarray, tau: float | str) -> np.ndarray:
    """Mark the shared channels j of a layer (bool, shape (d,)): those with ν_j ≥ τ_l.

    τ_l is a quantile of ν in [0, 1]; +∞ makes all channels client-specific, −∞ all shared. ``mean``: the mean of ν,
    which is where the authors' code draws the line unless it is told another place.
    """
    if isinstance(tau, str):
        threshold = communalities.mean()
    else:
        threshold = tau if np.isinf(tau) else np.quantile(communalities, tau)
    return communalities >= threshold


def _explained(matrix: np.ndarray, count: int) -> np.ndarray:
    """Return diag(ÂÂᵀ) from the top ``count`` positive eigenvalues, clamped to [0, 1]."""
    values, vectors = np.linalg.eigh(matrix)
    top = np.clip(values[::-1][:count], 0.0, None)
    return np.clip((vectors[:, ::-1][:, :count] ** 2) @ top, 0.0, 1.0)
