"""Values and FLOPs of models, against numbers by hand."""

import pytest
import torch
from support import simulate
from torch import nn

from fedpfl.study.analysis import ANALYSES
from fedpfl.study.analysis.model_size import flops_of


def test_flops_by_hand():
    linear, convolution = nn.Linear(5, 3), nn.Conv2d(2, 4, 3, padding=1)
    assert flops_of(linear, torch.zeros(1, 5)) == 2 * 5 * 3
    assert flops_of(convolution, torch.zeros(1, 2, 6, 6)) == 2 * 4 * 36 * 2 * 9


# Of the model mlp with 64 inputs and 10 classes: two hidden layers of 200.
HEAD = 200 * 10 + 10
VALUES = 64 * 200 + 200 + 200 * 200 + 200 + HEAD
FLOPS = 2 * (64 * 200 + 200 * 200 + 200 * 10)


@pytest.mark.parametrize(
    ("settings", "shared", "personal", "frozen"),
    [
        ({"method": "fedavg"}, VALUES, 0, 0),
        ({"method": "fedper"}, VALUES - HEAD, HEAD, 0),
        ({"method": "local"}, 0, VALUES, 0),
        ({"method": "fedavg", "trainable": "head"}, HEAD, 0, VALUES - HEAD),
    ],
)
def test_what_is_shared_and_what_stays(tmp_path, settings, shared, personal, frozen):
    run = simulate(tmp_path, 2, model="mlp", num_server_rounds=1, local_epochs=1, **settings)
    (table,) = ANALYSES["model-size"].make([run]).tables
    ((_, *numbers),) = table.rows
    assert numbers == [VALUES, shared, personal, frozen, FLOPS]
