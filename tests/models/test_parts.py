"""Where a model is cut into features and classifier."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedpfl import models
from fedpfl.core.errors import ConfigError
from fedpfl.models.parts import plain_names
from fedpfl.models.skeleton import skeleton


@pytest.mark.parametrize(
    ("name", "shape", "layers", "in_head"),
    [
        ("convnet", (3, 32, 32), 1, {"head"}),
        ("convnet", (3, 32, 32), 2, {"head", "base.fc2"}),
        ("convnet", (3, 32, 32), 3, {"head", "base.fc2", "base.fc1"}),
        ("resnet8", (3, 32, 32), 1, {"head"}),
    ],
)
def test_head_after_base_is_the_model(name, shape, layers, in_head):
    torch.manual_seed(0)
    model = models.build(name, shape, 10).eval()
    base, head, belongs = models.cut(model, layers)
    x = torch.randn(2, *shape)
    assert torch.equal(head(base(x)), model(x))
    assert {key.rsplit(".", 1)[0] for key in model.state_dict() if belongs(key)} == in_head


@pytest.mark.parametrize(("name", "layers"), [("convnet", 4), ("resnet8", 2), ("convnet", 0)])
def test_a_head_longer_than_the_linear_end_is_refused(name, layers):
    with pytest.raises(ConfigError, match=rf"head-layers = {layers}: the model ends with \d linear layers"):
        models.cut(models.build(name, (3, 32, 32), 10), layers)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(ConfigError, match="model = 'Linear': has no head"):
        models.cut(nn.Linear(3, 2))


def test_arrays_below_the_head_s_name_are_the_head_s():
    names = ("fc1.weight", "fc1.bias", "fc2.bias", "fc2.parametrizations.weight.original0", "fc22.weight")
    model = skeleton({name: np.zeros((2, 2), np.float32) for name in names}, "fc2")
    plain = plain_names(model)
    assert sorted(map(plain, model.state_dict())) == sorted(names)
    assert [plain(name) for name in model.state_dict() if name.startswith("head.")] == [*names[2:4]]


@pytest.mark.parametrize("kind", [np.float32, np.int64])
def test_arrays_of_other_frameworks_may_be_called_as_a_module_s_method_or_layer_is(kind):
    names = ("a", "a.b", "type", "a.forward", "training", "_parameters", "c..d", "fc1.weight", "fc2.weight")
    model = skeleton({name: np.full((2, 2), place, kind) for place, name in enumerate(names)})
    plain = plain_names(model)
    assert {plain(name): int(array[0, 0]) for name, array in model.state_dict().items()} == {
        name: place for place, name in enumerate(names)
    }
