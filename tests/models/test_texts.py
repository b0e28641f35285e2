"""The models of texts: sizes by hand, padding, and pairs of model and data that do not fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedpfl import models
from fedpfl.core.errors import ConfigError
from fedpfl.models.transformer import SelfAttention, sinusoids


def build(name: str, *task: int) -> models.BaseHeadModel:
    torch.manual_seed(0)
    return models.build(name, task[:1], *task[1:])


def test_a_decoder_gives_numbers_for_each_token() -> None:
    model = build("decoder", 80, 100, 100)
    assert model(torch.zeros(3, 80, dtype=torch.int64)).shape == (3, 80, 100) and model.gives_for == "token"


@pytest.mark.parametrize("name", ["char-lstm", "transformer"])
def test_output_shapes_split_and_gradients(name: str) -> None:
    model = build(name, 12, 5, 30)
    x = torch.randint(0, 30, (3, 12))
    assert torch.equal(model(x), model.head(model.base(x))) and model(x).shape == (3, 5)
    assert (model.input_shape, model.vocabulary) == ((12,), 30)
    gradients = torch.autograd.grad(F.cross_entropy(model(x), torch.arange(3)), list(model.parameters()))
    assert all(g.abs().sum() > 0 for g in gradients)
    assert "base.positions" not in model.state_dict()  # nothing to train, nothing to send
    again = model.another()
    assert again.state_dict().keys() == model.state_dict().keys() and again.vocabulary == 30


def test_char_lstm_reads_from_left_to_right() -> None:
    model = build("char-lstm", 20, 7, 30).eval()
    x = torch.randint(0, 30, (2, 20))
    outputs = nn.LSTM.forward(model.base.lstm, model.base.embedding(x))[0]
    expected = model.head(F.relu(model.base.fc1(outputs[:, -1])))
    torch.testing.assert_close(model(x), expected)
    assert not torch.equal(model(x), model(x.flip(1)))


def test_self_attention_is_pytorch_s() -> None:
    torch.manual_seed(0)
    ours, theirs = SelfAttention(16, 4), nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        layers = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in layers]))
        theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in layers]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    x, ignored = torch.randn(3, 6, 16), torch.arange(6) >= torch.tensor([[6], [4], [1]])
    expected = theirs(x, x, x, key_padding_mask=ignored, need_weights=False)[0]
    torch.testing.assert_close(ours(x, ignored[:, None, None]), expected)


def test_padding_does_not_count() -> None:
    short, long = build("transformer", 5, 4, 30).eval(), build("transformer", 9, 4, 30).eval()
    long.load_state_dict(short.state_dict())
    tokens = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
    torch.testing.assert_close(long(F.pad(tokens, (0, 4))), short(tokens))
    assert torch.isfinite(short(torch.zeros(1, 5, dtype=torch.int64))).all()  # a text without words


def test_word_order_counts() -> None:
    model = build("transformer", 3, 4, 30).eval()
    assert not torch.allclose(model(torch.tensor([[1, 2, 3]])), model(torch.tensor([[3, 2, 1]])), atol=1e-4)
    position, pair = 2.0, 5
    angle = torch.tensor(position / 10_000 ** (2 * pair / 64))
    torch.testing.assert_close(sinusoids(3)[2, 2 * pair : 2 * pair + 2], torch.stack([angle.sin(), angle.cos()]))


@pytest.mark.parametrize("name", ["char-lstm", "transformer"])
@pytest.mark.parametrize(("shape", "vocabulary"), [((3, 32, 32), 0), ((80,), 0), ((9, 128), 50), ((0,), 50)])
def test_models_of_texts_refuse_other_inputs(name: str, shape: tuple[int, ...], vocabulary: int) -> None:
    with pytest.raises(ConfigError, match=rf"model = '{name}': needs texts, but the input is {shape[0]}"):
        models.build(name, shape, 4, vocabulary)


@pytest.mark.parametrize("name", sorted(set(models.names()) - {"char-lstm", "decoder", "transformer"}))
def test_other_models_refuse_texts(name: str) -> None:
    kinds = {"mlp": "numeric input", "mlp-200": "numeric input"}
    needs = {**kinds, "cnn-1d": "series", "gru": "series"}.get(name, "images")
    with pytest.raises(ConfigError, match=rf"model = '{name}': needs {needs}.*, but the input is 80 tokens of text"):
        models.build(name, (80,), 100, 100)
