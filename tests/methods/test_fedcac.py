"""FedCAC in whole federations; its equations are in tests/strategies/test_critical.py."""

from __future__ import annotations

import numpy as np
from support import simulate


def test_once_nobody_matches_clients_go_on_from_their_own_critical_values(tmp_path):
    settings = {"num_server_rounds": 2, "local_epochs": 1}
    run = simulate(tmp_path, 4, method="fedcac", fedcac_beta=1e-6, **settings)
    state = run.checkpoint()[1]
    expected = np.where(state["masks"], state["newest"], state["shared"])
    assert np.array_equal(state["for_clients"], expected)
    assert run.metrics()[-1]["details"]["collaborators"] == 0


def test_the_first_round_s_mean_is_fedavg_s_to_the_bit_and_everything_critical_and_matched_is_the_plain_mean(tmp_path):
    settings = {"num_server_rounds": 1, "local_epochs": 1}
    ours = simulate(tmp_path / "a", 4, method="fedcac", fedcac_share=1.0, **settings)
    fedavg = simulate(tmp_path / "b", 4, method="fedavg", **settings)
    state = ours.checkpoint()[1]
    assert np.array_equal(state["shared"], fedavg.checkpoint()[1]["shared"])
    # Masks of everything overlap fully, whatever the round.
    mean = state["newest"].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(state["for_clients"], np.tile(mean, (4, 1)), rtol=1e-5, atol=1e-7)
