from __future__ import annotations

import pytest
import torch

from fedpfl import models
from fedpfl.core.errors import ConfigError
from fedpfl.models import registry

SMALLEST_SIDES = {
    "fedavg-cnn": 16,
    "convnet": 16,
    "small-cnn": 4,
    "small-cnn-bn": 4,
    "resnet9": 11,
    "resnet9-narrow": 11,
}
NO_IMAGES = {"mlp", "mlp-200", "char-lstm", "decoder", "transformer", "cnn-1d", "gru"}


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as error:
        models.build("resnet7", (3, 32, 32), 10)
    assert str(error.value).startswith(f"model = 'resnet7': must be one of {', '.join(models.names())}")


def test_too_small_image_is_one_clear_line() -> None:
    with pytest.raises(ConfigError) as error:
        models.build("fedavg-cnn", (1, 8, 8), 10)
    assert str(error.value).startswith(
        "model = 'fedavg-cnn': needs images (channels x height x width) of at least 16x16 pixels, "
        "but the input is 1x8x8"
    )


@pytest.mark.parametrize(
    ("shape", "vocabulary", "tokens", "name"),
    [
        ((3, 32, 32), 0, False, "small-cnn"),
        ((1, 3, 8), 0, False, "mlp"),
        ((9, 128), 0, False, "cnn-1d"),
        ((9, 12), 0, False, "gru"),
        ((30,), 0, False, "mlp"),
        ((64,), 100, False, "transformer"),
        ((64,), 100, True, "decoder"),
    ],
)
def test_auto_is_the_model_for_the_input(shape: tuple[int, ...], vocabulary: int, tokens: bool, name: str) -> None:
    assert models.chosen("auto", shape, vocabulary, tokens) == name
    arrays = []
    for asked in ("auto", name):
        torch.manual_seed(1)
        arrays.append(models.build(asked, shape, 100 if tokens else 4, vocabulary, tokens=tokens).state_dict())
    assert arrays[0].keys() == arrays[1].keys()
    assert all(torch.equal(array, arrays[1][key]) for key, array in arrays[0].items())


def test_auto_has_a_width_where_the_model_has_one() -> None:
    assert models.chosen("auto@0.5", (1, 8, 8)) == "small-cnn@0.5"
    with pytest.raises(ConfigError, match=r"model = 'gru@0\.5': has one width"):
        models.build("auto@0.5", (9, 12), 4)


@pytest.mark.parametrize("shape", [(561,), (9, 128), (3, 3, 32, 32), (), (0, 32, 32)])
@pytest.mark.parametrize("name", sorted(set(models.names()) - NO_IMAGES))
def test_image_models_refuse_other_inputs(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="needs images"):
        models.build(name, shape, 10)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 32)])
def test_mlp_refuses_an_empty_input(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="at least one value"):
        models.build("mlp", shape, 10)


@pytest.mark.parametrize(("name", "side"), SMALLEST_SIDES.items())
def test_smallest_side_is_exact(name: str, side: int) -> None:
    model = models.build(name, (1, side, side + 1), 10).eval()
    assert model(torch.zeros(2, 1, side, side + 1)).shape == (2, 10)
    for shape in [(1, side - 1, side), (1, side, side - 1)]:
        with pytest.raises(ConfigError, match=f"at least {side}x{side} pixels"):
            models.build(name, shape, 10)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(("name", "side"), SMALLEST_SIDES.items())
def test_smallest_side_is_not_too_strict(name: str, side: int) -> None:
    with pytest.raises(RuntimeError):
        registry.MODELS[name].builder((1, side - 1, side - 1), 10).eval()(torch.zeros(2, 1, side - 1, side - 1))


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="model 'mlp' is already registered"):
        models.register("mlp")(registry.MODELS["mlp"].builder)


def test_a_registered_model_can_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.MODELS, "_entries", dict(registry.MODELS._entries))

    @models.register("linear", smallest_side=2)
    def linear(input_shape: tuple[int, ...], num_classes: int) -> models.BaseHeadModel:
        channels, height, width = input_shape
        return models.BaseHeadModel(torch.nn.Flatten(), torch.nn.Linear(channels * height * width, num_classes))

    assert models.build("linear", (1, 2, 3), 4)(torch.zeros(5, 1, 2, 3)).shape == (5, 4)


def test_every_builder_says_where_it_comes_from() -> None:
    for entry in registry.MODELS.values():
        doc = entry.builder.__doc__ or ""
        assert "section" in doc or "appendix" in doc or "This project's own" in doc
