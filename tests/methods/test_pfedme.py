"""pFedMe beyond what tests/methods/test_one_round.py holds against the paper's equations."""

from __future__ import annotations

import numpy as np
import torch
from support import FEW_SAMPLES, linear_round, simulate, train

from fedpfl.results.new_clients import Simulation
from fedpfl.setup.config import Config


def test_a_strong_pull_keeps_theta_near_w():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4)), np.arange(12) % 3
    apart = []
    for pull in (1.0, 100.0):
        settings = {"pfedme-pull": pull, "pfedme-personal-learning-rate": 0.5 / pull, "learning-rate": 1e-9}
        method = Config.parse({"method": "pfedme", "batch-size": 12, "pfedme-steps": 50, **settings}).method
        local = linear_round(method, x, y, 3)
        train(method, local)
        model = local.model
        apart.append(float((model.personal.head.weight - model.head.weight).norm()))
        # Where the envelope is at its least: ∇f(θ) + λ·(θ − w) = 0.
        loss = torch.nn.functional.cross_entropy(model.personal(local.samples.x), local.samples.y)
        (slope,) = torch.autograd.grad(loss, [model.personal.head.weight])
        torch.testing.assert_close(slope, pull * (model.head.weight - model.personal.head.weight), rtol=1e-4, atol=1e-6)
    assert apart[1] < 0.1 * apart[0]


def test_running_statistics_are_those_of_theta(tmp_path):
    run = simulate(tmp_path, 1, method="pfedme", model="resnet8", local_epochs=1, num_server_rounds=1, **FEW_SAMPLES)
    model = Simulation.of(run).load(0).model
    ours, theta = dict(model.named_buffers()), dict(model.personal.named_buffers())
    moved = [name for name in theta if name.endswith("running_var")]
    assert moved
    for name in moved:
        assert torch.equal(ours[name], theta[name])
        assert not torch.equal(theta[name], torch.ones_like(theta[name]))
