"""FedCAC in whole federations; its equations are in test_fedcac_rule.py."""

from __future__ import annotations

import numpy as np
from support import simulate

from fedpfl.methods.fedcac import overlaps, threshold


def test_once_nobody_matches_clients_go_on_from_their_own_critical_values(tmp_path):
    settings = {"num_server_rounds": 2, "local_epochs": 1}
    run = simulate(tmp_path, 4, method="fedcac", fedcac_beta=1e-6, **settings)
    state = run.checkpoint()[1]
    expected = np.where(state["masks"], state["newest"], state["shared"])
    assert np.array_equal(state["for_clients"], expected)
    assert run.metrics()[-1]["details"]["collaborators"] == 0


def test_the_first_round_s_mean_is_fedavg_s_to_the_bit_and_all_that_moved_is_critical_with_share_1(tmp_path):
    settings = {"num_server_rounds": 1, "local_epochs": 1}
    ours = simulate(tmp_path / "a", 4, method="fedcac", fedcac_share=1.0, **settings)
    fedavg = simulate(tmp_path / "b", 4, method="fedavg", **settings)
    state = ours.checkpoint()[1]
    assert np.array_equal(state["shared"], fedavg.checkpoint()[1]["shared"])
    # Where a unit is dead for a client, or pixels are always 0, nothing moves.
    assert state["masks"].any(axis=1).all()
    assert not state["masks"].all()
    overlap = overlaps(state["masks"])
    matched = (overlap >= threshold(overlap, 1, 100.0)) | np.eye(4, dtype=bool)
    custom = (matched / matched.sum(axis=1, keepdims=True)) @ state["newest"].astype(np.float64)
    expected = np.where(state["masks"], custom, state["shared"])
    np.testing.assert_allclose(state["for_clients"], expected, rtol=1e-5, atol=1e-7)
