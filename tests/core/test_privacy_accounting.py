"""ε of Gaussian releases against its definition and Google's accountants, and the noise that a budget takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from fedpfl.core.privacy_accounting import epsilon, most_draws, noise_multiplier


def test_epsilon_is_where_delta_is_reached():
    phi = stats.norm.cdf
    assert epsilon(0.0, 1e-5) == 0
    assert epsilon(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)
    for mu, delta in ((1.5, 1e-3), (0.2, 1e-7), (8.0, 1e-9)):
        e = epsilon(mu, delta)
        assert phi(mu / 2 - e / mu) - np.exp(e) * phi(-mu / 2 - e / mu) == pytest.approx(delta, rel=1e-6)
    assert epsilon(1e-6, 0.1) == 0, "δ alone is enough"
    assert math.isfinite(epsilon(1e4, 1e-9))
    assert epsilon(math.inf, 1e-5) == math.inf


@pytest.mark.parametrize(("multiplier", "releases"), [(0.7, 1), (1.0, 10)])
def test_epsilon_against_google_s_accountants(multiplier, releases):
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting import pld, rdp

    ours = epsilon(math.sqrt(releases) / multiplier, 1e-5)
    event = dp_accounting.GaussianDpEvent(multiplier)
    exact = pld.PLDAccountant().compose(event, releases).get_epsilon(1e-5)
    bound = rdp.RdpAccountant().compose(event, releases).get_epsilon(1e-5)
    assert ours == pytest.approx(exact, rel=2e-3)
    assert ours <= bound < 1.2 * ours, "Rényi's is a bound, and near"


def test_the_noise_of_a_budget_spends_it_and_no_more():
    for budget in (0.1, 1.0, 8.0, 50.0):
        for releases in (1, 10, 1000):
            z = noise_multiplier(budget, 1e-5, releases)
            assert budget * (1 - 1e-9) < epsilon(math.sqrt(releases) / z, 1e-5) <= budget


def test_a_client_is_hardly_ever_drawn_more_often():
    for rounds, share in ((100, 0.1), (1000, 0.01), (2000, 0.5)):
        assert most_draws(rounds, share) == stats.binom.ppf(1 - 1e-6, rounds, share)
    assert most_draws(7, 1.0) == 7
    assert most_draws(5, 1e-9) == 1
