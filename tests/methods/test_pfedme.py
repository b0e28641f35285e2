"""pFedMe beyond what tests/methods/test_one_round.py holds against the paper's equations."""

from __future__ import annotations

import torch
from support import FEW_SAMPLES, simulate

from fedpfl.results.new_clients import Simulation


def test_running_statistics_are_those_of_theta(tmp_path):
    run = simulate(tmp_path, 1, method="pfedme", model="resnet8", local_epochs=1, num_server_rounds=1, **FEW_SAMPLES)
    model = Simulation.of(run).load(0).model
    ours, theta = dict(model.named_buffers()), dict(model.personal.named_buffers())
    moved = [name for name in theta if name.endswith("running_var")]
    assert moved
    for name in moved:
        assert torch.equal(ours[name], theta[name])
        assert not torch.equal(theta[name], torch.ones_like(theta[name]))
