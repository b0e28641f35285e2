"""Every method with a client that has test samples and none to train on."""

from __future__ import annotations

import numpy as np
import pytest
from support import each_method, needed

import fedpfl


@pytest.mark.parametrize("method", each_method())
def test_a_client_that_is_only_tested_is_tested(method):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    data = fedpfl.Dataset.of("mine", x, y, x, y, np.arange(60) // 30, np.arange(60) // 20)
    few = {"num_server_rounds": 2, "local_epochs": 1, "workers": 0, "quiet": True, **needed(method)}
    run = fedpfl.run(method, data=data, model="mlp", **few)
    last = run.clients.loc[2]
    assert last["samples"].tolist() == [20, 20, 20] and last["trained"].tolist() == [True, True, False]
