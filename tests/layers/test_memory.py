"""What clients remember beside the model."""

from __future__ import annotations

import torch
from torch import nn

from fedpfl.layers.memory import Memory, add_twin, in_twin, refresh_twin


def test_memory_is_part_of_the_state_but_not_of_what_trains():
    memory = Memory({"base.conv1.weight": torch.ones(2, 2)})
    memory.arrays()["base.conv1.weight"].mul_(3)
    assert list(memory.parameters()) == []
    assert torch.equal(memory.state_dict()["base/conv1/weight"], torch.full((2, 2), 3.0))


def test_a_twin_is_a_copy_that_follows_on_request():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    plain = set(model.state_dict())
    add_twin(model)
    assert {name for name in model.state_dict() if not in_twin(name)} == plain
    with torch.no_grad():
        model[0].weight.add_(1)
        model[1].running_mean.add_(1)
    assert not torch.equal(model.personal[0].weight, model[0].weight)
    refresh_twin(model)
    assert torch.equal(model.personal[0].weight, model[0].weight)
    assert torch.equal(model.personal[1].running_mean, model[1].running_mean)
    assert model.personal[0].weight is not model[0].weight
