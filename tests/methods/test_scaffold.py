"""SCAFFOLD beyond what tests/methods/test_one_round.py holds against the paper's equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support import FEW_SAMPLES, simulate, simulate_and_listen
from torch import nn

from fedpfl import models
from fedpfl.core.layout import Layout
from fedpfl.core.samples import Samples
from fedpfl.results.new_clients import Simulation
from fedpfl.setup.config import Config
from fedpfl.training.loop import run_phase
from fedpfl.training.penalties import Correction
from fedpfl.training.phase import Phase
from fedpfl.training.settings import TrainingSettings


def everything(name):
    return True


def trained(penalty, rate=0.1, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    samples = Samples(torch.randn(11, 4), torch.arange(11) % 3)
    phase = Phase(everything, 2, penalty=penalty, learning_rate=rate)
    run_phase(model, phase, samples, TrainingSettings(batch_size=4, **settings), np.random.default_rng(0))
    return model.state_dict()


def test_the_mean_gradient_is_what_plain_sgd_moved_by():
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(4, 3)).state_dict()
    correction = {"0.weight": torch.full((3, 4), 0.5)}
    gradients = Correction(correction)
    after = trained(gradients, momentum=0.0)
    mean = gradients.mean_gradient()
    assert mean.keys() == {"0.weight"}
    moved = (start["0.weight"] - after["0.weight"]) / (4 * 0.1)  # two epochs of ⌊11 / 4⌋ steps
    torch.testing.assert_close(mean["0.weight"] + correction["0.weight"], moved)


def test_running_statistics_have_no_control_variate(tmp_path):
    run = simulate(tmp_path, 2, method="scaffold", model="resnet8", local_epochs=1, num_server_rounds=1, **FEW_SAMPLES)
    _, state = run.checkpoint()
    control = Simulation.of(run).rule.layout.unflatten(state["control"])
    assert {name for name, array in control.items() if not array.any()} == {n for n in control if "running" in n}


def test_a_classifier_that_stays_has_no_control_variate(tmp_path):
    settings = {"method": "scaffold", "personal_head": True, "num_server_rounds": 2, **FEW_SAMPLES}
    folder, grid = simulate_and_listen(tmp_path, 2, **settings)
    left = Simulation.of(folder)
    for _, message, reply in grid.training():
        sent = Layout.from_text(reply.config["layout"]).size
        assert message.arrays["control"].size == reply.arrays["change"].size == sent
    control = left.load(0).model.control.arrays()
    assert {name for name, array in control.items() if not array.any()} == {"head.weight", "head.bias"}


@pytest.mark.parametrize(("more", "said"), [({}, 1), ({"momentum": 0.0}, 0), ({"optimizer": "adam"}, 0)])
def test_another_momentum_than_the_run_s_is_named_before_the_first_round(more, said):
    chosen = Config.parse({"method": "scaffold", **more}).method
    assert len(chosen.remarks(models.build("small-cnn", (1, 8, 8), 10), clients=4, rounds=5)) == said
