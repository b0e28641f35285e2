"""FedALA beyond what tests/methods/test_one_round.py holds against the paper's equations."""

from __future__ import annotations

import numpy as np
import pytest
from support import FEW_SAMPLES, simulate

from fedpfl import models
from fedpfl.methods.fedala import mixing
from fedpfl.setup.config import Config


def mixed_arrays(model="convnet", **settings):
    method = Config.parse({"method": "fedala", **settings}).method
    return set(mixing(method.build(models.build(model, (3, 32, 32), 10))))


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({"fedala-layers": 0}, set()),
        ({}, {"head"}),
        ({"fedala-layers": 2}, {"head", "base.fc2"}),
        ({"fedala-layers": 4}, {"head", "base.fc2", "base.fc1", "base.conv2"}),
        ({"fedala-layers": 99}, {"head", "base.fc2", "base.fc1", "base.conv2", "base.conv1"}),
        # A classifier that stays is the client's own anyway.
        ({"fedala-layers": 1, "personal-head": True}, {"base.fc2"}),
    ],
)
def test_the_highest_layers_that_travel_are_mixed(settings, layers):
    assert {name.rpartition(".")[0] for name in mixed_arrays(**settings)} == layers


def test_what_has_just_been_trained_is_tested_as_it_is(tmp_path):
    # With one client its own model is the mean: there is nothing to mix. All samples are one batch.
    settings = {"num_server_rounds": 2, "evaluate_trained": True, **FEW_SAMPLES, "batch_size": 64}
    ours = simulate(tmp_path / "a", 1, method="fedala", **settings).metrics()
    theirs = simulate(tmp_path / "b", 1, method="fedavg", **settings).metrics()
    for mine, other in zip(ours, theirs, strict=True):
        for key in ("trained", "personalised", "global"):
            assert mine[key]["loss"] == pytest.approx(other[key]["loss"], rel=1e-5)


def test_a_test_learns_on_a_copy(tmp_path):
    settings = {"method": "fedala", "num_server_rounds": 3, **FEW_SAMPLES}
    every = simulate(tmp_path / "a", 2, evaluate_every=1, **settings)
    last = simulate(tmp_path / "b", 2, evaluate_every=0, **settings)
    assert every.metrics()[-1]["personalised"] == last.metrics()[-1]["personalised"]
    assert np.array_equal(every.checkpoint()[1]["shared"], last.checkpoint()[1]["shared"])
