"""FedPAC: the combination of heads."""

from __future__ import annotations

import numpy as np
import pytest
from support import FEW_SAMPLES, simulate

from fedpfl.core.layout import Layout
from fedpfl.core.payload import Payload
from fedpfl.core.server_view import Client, Federation
from fedpfl.methods.fedpac import HeadCombination


def test_the_share_of_the_own_head_is_recorded(tmp_path):
    run = simulate(tmp_path, 3, method="fedpac", num_server_rounds=2, **FEW_SAMPLES)
    for line in run.metrics():
        assert 0 < line["details"]["own-head"] <= 1


@pytest.mark.parametrize("said", [0.0, -5.0, 1e-9])
def test_a_variance_of_nothing_does_not_make_ones_head_everybodys(said):
    """Four clients with the same features: the one that says that its head is exact has a bounded weight."""
    clients = tuple(Client(number, 10, 5) for number in range(4))
    federation = Federation(clients, Layout.of([("base", (2,)), ("head", (2,))]))
    made = HeadCombination(federation, np.zeros(4, np.float32), in_head=lambda name: name == "head")
    made.begin()
    moments, means = np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32)
    for client in clients:
        variance = np.array([said if client.id == 3 else 1.0], np.float32)
        arrays = {"moments": moments, "variance": variance, "prototypes": means, "counts": np.full(2, 5, np.float32)}
        made.add(client, np.full(4, float(client.id == 3), np.float32), Payload(arrays=arrays))
    made.finish()
    # Weights go as 1 / V, and V is at least a tenth of the usual one.
    np.testing.assert_allclose(made.heads, 10 / 13, rtol=1e-5)
