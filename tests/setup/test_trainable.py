"""What of a model trains: frozen arrays are no parameters, are in no state dict, and have a hash."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedpfl import models
from fedpfl.core.errors import ConfigError, LayoutError
from fedpfl.core.frozen import copy_trained, frozen, frozen_hash
from fedpfl.core.layout import Layout
from fedpfl.core.samples import Samples
from fedpfl.core.sharing import Sharing
from fedpfl.models.adapters import add_personal, in_adapter, merged
from fedpfl.setup.options.trainable import TrainableSettings
from fedpfl.setup.trainable import adapt
from fedpfl.training.loop import run_phase
from fedpfl.training.phase import Phase
from fedpfl.training.settings import TrainingSettings

SHAPES = {"small-cnn": (1, 8, 8), "resnet8": (3, 16, 16), "small-vit": (3, 8, 8), "gru": (3, 12)}
# Why there is no test of adapters on it: its base has no linear layer.
WITHOUT_LORA = {"gru"}


def model(name, trainable="head", seed=0, **settings):
    torch.manual_seed(seed)
    plain = models.build(name, SHAPES[name], 5)
    return adapt(plain, TrainableSettings(trainable=trainable, **settings))


def batch(name, n=6):
    return torch.randn(n, *SHAPES[name], generator=torch.Generator().manual_seed(1))


def train(built, name):
    samples, rng = Samples(batch(name), torch.arange(6) % 5), np.random.default_rng(0)
    settings = TrainingSettings(batch_size=3, learning_rate=0.1)
    return run_phase(built, Phase(train=lambda name: True, epochs=2), samples, settings, rng)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("trainable", ["head", "lora"])
def test_only_adapters_and_head_get_gradients_and_move(name, trainable):
    if trainable == "lora":
        pytest.importorskip("peft")
        if name in WITHOUT_LORA:
            pytest.skip("no linear layer in its base")
    built = model(name, trainable)
    trained = [n for n, _ in built.named_parameters()]
    assert trained
    assert all(n.startswith("head.") or in_adapter(n) for n in trained)
    still = {n: array.clone() for n, array in frozen(built)}
    before = {n: array.clone() for n, array in built.state_dict().items()}
    train(built, name)
    assert all(torch.equal(array, still[n]) for n, array in frozen(built))
    moved = {n for n, array in built.state_dict().items() if not torch.equal(array, before[n])}
    # B starts at 0, so A has a gradient from the second step on.
    assert moved == set(before)
    assert not set(before) & set(still)


@pytest.mark.parametrize("name", ["small-cnn", "resnet8", "gru"])
def test_freezing_changes_no_output_in_tests(name):
    plain, built = model(name, "all").eval(), model(name).eval()
    x = batch(name)
    assert torch.equal(plain(x), built(x))
    assert {n: a.shape for n, a in merged(built).items()} == {n: a.shape for n, a in plain.state_dict().items()}


def test_a_frozen_batchnorm_normalises_by_its_running_statistics_in_training():
    built = model("resnet8")
    wanted = built.eval()(batch("resnet8")).detach()
    seen = []
    built.base.register_forward_hook(lambda module, args, out: seen.append(out))
    hook = Phase(train=lambda name: True, epochs=1, loss=lambda m, b: m(b.x).sum() * 0)
    samples, rng = Samples(batch("resnet8"), torch.zeros(6, dtype=torch.int64)), np.random.default_rng(0)
    run_phase(built, hook, samples, TrainingSettings(batch_size=6, last_batch="keep"), rng)
    shuffled = built.head(seen[-1].detach())
    torch.testing.assert_close(shuffled.sort(0).values, wanted.sort(0).values)


def test_patterns_choose_arrays_of_the_base():
    built = model("small-cnn", "base.fc*, base.conv2.bias")
    trained = {n for n, _ in built.named_parameters()}
    assert {"head.weight", "head.bias", "base.conv2.bias"} < trained
    assert "base.conv2.weight" not in trained
    with pytest.raises(
        ConfigError, match=r"trainable = 'base.nothing.\*': must be all, head, lora, adapters or a pattern"
    ) as error:
        model("small-cnn", "base.nothing.*")
    assert "'base.nothing.*' fits none" in str(error.value)


def test_the_hash_tells_backbones_apart():
    one, same, other = model("small-cnn"), model("small-cnn"), model("small-cnn", seed=1)
    assert frozen_hash(one) == frozen_hash(same) != frozen_hash(other)
    assert frozen_hash(model("small-cnn", "all")) == ""
    mine, theirs = (Sharing(built, lambda name: True).layout for built in (one, other))
    received = Layout.from_text(theirs.to_text())
    assert received == theirs
    with pytest.raises(LayoutError, match=f"frozen arrays differ: the hash {theirs.frozen} arrived, expected the hash"):
        mine.require(received)
    with pytest.raises(LayoutError, match="none arrived"):
        mine.require(Layout(mine.entries))
    assert "frozen" not in Layout(mine.entries).to_text()


@pytest.mark.parametrize("text", ['{"frozen": 1, "arrays": []}', '{"frozen": "a"}', '{"arrays": []}', "{}"])
def test_a_damaged_layout_with_a_hash_is_refused(text):
    with pytest.raises(LayoutError, match="not a list"):
        Layout.from_text(text)


def test_copies_and_fresh_models_have_the_frozen_arrays_in_common():
    built = model("small-cnn")
    for other in (copy_trained(built), built.another()):
        assert all(a is b for (_, a), (_, b) in zip(frozen(built), frozen(other), strict=True))
        assert frozen_hash(other) == frozen_hash(built)
        assert other.state_dict().keys() == built.state_dict().keys()
        assert all(a is not b for a, b in zip(other.parameters(), built.parameters(), strict=True))
    assert not torch.equal(built.another().head.weight, built.head.weight)


@pytest.mark.parametrize("name", ["small-cnn", "resnet8", "small-vit"])
def test_merged_arrays_compute_what_adapters_do(name):
    pytest.importorskip("peft")
    built = add_personal(model(name, "lora"))
    with torch.no_grad():
        for array_name, array in built.named_parameters():
            if in_adapter(array_name):
                array.normal_(std=0.1)
    plain = model(name, "all")
    x = batch(name)
    before = plain.eval()(x)
    plain.load_state_dict(merged(built))
    torch.testing.assert_close(plain.eval()(x), built.eval()(x), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(plain(x), before, atol=1e-3)


def test_adapters_can_be_had_for_some_layers_alone():
    pytest.importorskip("peft")
    chosen = model("small-vit", "lora", lora_rank=2, lora_targets="*attention.query, *attention.value")
    adapted = {n.split(".lora_")[0] for n, _ in chosen.named_parameters() if in_adapter(n)}
    assert adapted == {f"base.blocks.block{i}.attention.{part}" for i in range(1, 7) for part in ("query", "value")}
    assert chosen.get_parameter("base.blocks.block1.attention.query.lora_A.default.weight").shape == (2, 128)
    with pytest.raises(
        ConfigError, match="lora-targets = 'nothing': fits no linear layer or 2-D convolution of the base"
    ):
        model("small-vit", "lora", lora_targets="nothing")


def test_all_is_the_model_as_it_is():
    built = model("small-cnn", "all")
    assert not list(frozen(built))
    assert merged(built).keys() == built.state_dict().keys()
    assert isinstance(built.head, nn.Linear)
