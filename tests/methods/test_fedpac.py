"""FedPAC: the combination of heads."""

from __future__ import annotations

from support import FEW_SAMPLES, simulate


def test_the_share_of_the_own_head_is_recorded(tmp_path):
    run = simulate(tmp_path, 3, method="fedpac", num_server_rounds=2, **FEW_SAMPLES)
    for line in run.metrics():
        assert 0 < line["details"]["own-head"] <= 1
