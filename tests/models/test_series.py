"""The models of series: sizes by hand, what they compute, and inputs that do not fit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedpfl import models
from fedpfl.core.errors import ConfigError

SERIES_MODELS = ["cnn-1d", "gru"]


def build(name: str, channels: int = 9, steps: int = 128, classes: int = 6) -> models.BaseHeadModel:
    torch.manual_seed(0)
    return models.build(name, (channels, steps), classes)


@pytest.mark.parametrize(("channels", "steps"), [(9, 128), (1, 28), (3, 29), (6, 200)])
@pytest.mark.parametrize("name", SERIES_MODELS)
def test_output_shapes_split_and_gradients(name: str, channels: int, steps: int) -> None:
    model = build(name, channels, steps, 5)
    x = torch.randn(4, channels, steps)
    assert model.base(x).shape == (4, model.head.in_features)
    assert torch.equal(model(x), model.head(model.base(x))) and model(x).shape == (4, 5)
    assert model.input_shape == (channels, steps)
    gradients = torch.autograd.grad(F.cross_entropy(model(x), torch.arange(4)), list(model.parameters()))
    assert all(g.abs().sum() > 0 for g in gradients)
    assert model.another().state_dict().keys() == model.state_dict().keys()


def test_cnn_1d_is_a_chain_of_convolutions_over_time() -> None:
    model = build("cnn-1d")
    x, base = torch.randn(3, 9, 128), model.base
    expected = x
    for layer in (base.conv1, base.conv2):
        convolved = F.conv1d(expected, layer.weight.squeeze(2), layer.bias)
        expected = F.max_pool1d(F.relu(convolved), 2)
    expected = model.head(F.relu(base.fc1(expected.flatten(1))))
    torch.testing.assert_close(model(x), expected)
    torch.testing.assert_close(model.to(memory_format=torch.channels_last)(x), expected)


def test_gru_reads_from_left_to_right() -> None:
    model = build("gru", 3, 20, 7)
    x = torch.randn(2, 3, 20)
    states = nn.GRU.forward(model.base.gru, x.transpose(1, 2))[0]
    torch.testing.assert_close(model(x), model.head(F.relu(model.base.fc1(states[:, -1]))))
    assert not torch.allclose(model(x), model(x.flip(2)), atol=1e-4)


def test_gru_is_computed_in_float32_in_a_step_in_bf16() -> None:
    model, x = build("gru", 3, 8), torch.randn(2, 3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.base.gru(x).dtype == torch.float32
        assert model(x).dtype == torch.bfloat16


@pytest.mark.parametrize("name", SERIES_MODELS)
@pytest.mark.parametrize("shape", [(3, 32, 32), (561,), (), (0, 128), (9, 0)])
def test_models_of_series_refuse_other_inputs(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=rf"^model = '{name}': needs series \(channels x time\) of at least \d+ step"):
        models.build(name, shape, 4)


def test_the_smallest_length_is_exact() -> None:
    assert build("cnn-1d", steps=28)(torch.zeros(2, 9, 28)).shape == (2, 6)
    with pytest.raises(ConfigError) as error:
        build("cnn-1d", steps=27)
    assert str(error.value).startswith(
        "model = 'cnn-1d': needs series (channels x time) of at least 28 steps, but the input is 9x27"
    )
    with pytest.raises(ConfigError, match="of at least 1 step, but the input is 80 tokens of text"):
        models.build("gru", (80,), 4, 100)
    assert build("gru", steps=1)(torch.zeros(2, 9, 1)).shape == (2, 6)
