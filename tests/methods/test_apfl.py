"""APFL beyond what tests/methods/test_one_round.py holds against the paper's equations."""

from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import load_file
from support import simulate
from torch import nn

from fedpfl import models
from fedpfl.methods.apfl import ALPHA
from fedpfl.results.export import export_personal
from fedpfl.results.new_clients import Simulation
from fedpfl.training.penalties import keep_in_unit


def test_a_share_never_leaves_0_to_1():
    for step, kept in ((-7.0, 0.0), (0.25, 0.25), (7.0, 1.0)):
        alpha = nn.Parameter(torch.tensor([step]))
        keep_in_unit([ALPHA], [alpha])
        assert alpha.item() == kept


def test_the_exported_model_predicts_as_the_client_does(tmp_path):
    run = simulate(tmp_path, 2, method="apfl", model="resnet8", num_server_rounds=1, local_epochs=1)
    path = export_personal(run)[0]
    left = Simulation.of(run)
    local, samples = left.load(0), left.engine.test_samples(0)
    plain = models.build("resnet8", (1, 8, 8), 10)
    plain.load_state_dict(load_file(path), strict=False)
    expected = left.engine.config.method.personalised(local.model.eval())(samples.x)
    torch.testing.assert_close(plain.eval()(samples.x), expected, rtol=1e-5, atol=1e-5)
    assert np.isfinite(expected.detach().numpy()).all()
