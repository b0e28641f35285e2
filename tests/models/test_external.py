"""External models: cut before their last linear layer, or refused in one line."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from fedpfl import models
from fedpfl.core.errors import ConfigError
from fedpfl.models import external
from fedpfl.models.external import with_head
from fedpfl.setup.config import Config


class Small(nn.Module):
    """A module as a user writes it."""

    def __init__(self, classes=3, last=None):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.inner = nn.Linear(16, 8)
        self.classifier = nn.Linear(8, classes)
        self.last = last or nn.Identity()

    def forward(self, x):
        return self.last(self.classifier(torch.relu(self.inner(self.features(x)))))


def refusal(make, *arguments, **options):
    with pytest.raises(ConfigError) as error:
        make(*arguments, **options)
    text = str(error.value)
    assert "\n" not in text
    return text


class Scaled(nn.Module):
    """A learned factor and term of what a model gives, as of a temperature."""

    def __init__(self, factor: float, term: float) -> None:
        super().__init__()
        self.factor, self.term = nn.Parameter(torch.tensor(factor)), nn.Parameter(torch.tensor(term))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + self.term


class WithSparse(Small):
    """A model with a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("graph", torch.eye(3).to_sparse())


class Expanded(nn.Module):
    """A layer whose weights are one number in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1).expand(4))

    def forward(self, x):
        return x * self.scale


class Tokens(nn.EmbeddingBag):
    """An embedding with sparse gradients, and a buffer that no state dict has."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__(9, 2, sparse=sparse)
        self.register_buffer("mask", torch.ones(2), persistent=False)

    def forward(self, x):
        return super().forward((x.abs() * 3).long()) * self.mask


def test_a_buffer_that_stays_as_it_is_does_not_count_as_changed():
    assert with_head(nn.Sequential(Tokens(sparse=False), nn.Linear(2, 3)), (4,), 3).unkept == ()


def test_the_last_linear_layer_is_the_head():
    torch.manual_seed(0)
    module = Small()
    x = torch.randn(5, 1, 8, 8)
    wanted = module(x)
    model = with_head(module, (1, 8, 8), 3)
    assert model.head is not None
    assert model.head.weight.shape == (3, 8)
    torch.testing.assert_close(model(x), wanted)
    assert {name.split(".")[0] for name in model.state_dict()} == {"base", "head"}
    assert models.cut(model).in_head("head.weight")
    assert model.training


def test_lazy_layers_are_made_before_their_arrays_are_looked_at():
    model = with_head(nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3)), (4,), 3)
    assert [tuple(array.shape) for array in model.parameters()] == [(8, 4), (8,), (3, 8), (3,)]


def test_a_module_may_be_the_layer_itself():
    model = with_head(nn.Linear(6, 2), (6,), 2)
    assert model(torch.zeros(4, 6)).shape == (4, 2)


def test_what_is_cut_already_stays_as_it_is():
    model = models.build("mlp", (6,), 2)
    assert with_head(model, (6,), 2) is model


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), "has no nn.Linear; the method needs a head"),
        (Small(last=nn.Tanh()), "does not end in its last nn.Linear, 'classifier'; the method needs a head"),
        (Small(last=Scaled(1.0, 0.0)), "does not end in its last nn.Linear, 'classifier'; the method needs a head"),
    ],
    ids=["none", "not the last", "scaled by 1 at first"],
)
def test_a_model_without_a_head_is_all_base_and_stays_as_it_was(module, message):
    x = torch.randn(5, 1, 8, 8)
    wanted, names = module(x), [*module.state_dict()]
    model = with_head(module, (1, 8, 8), 3)
    torch.testing.assert_close(model(x), wanted)
    assert models.original_module(model) is module and [*module.state_dict()] == names
    assert [*model.state_dict()] == [f"base.{name}" for name in names]
    assert message in refusal(models.cut, model)


@pytest.mark.parametrize(
    ("module", "shape", "classes", "options", "message"),
    [
        (Small(), (3, 8, 8), 3, {}, "model = 'Small': does not take inputs of 3x8x8: Given groups=1, weight of size"),
        (Small(), (1, 8, 8), 5, {}, "model = 'Small': gives 3 numbers for a sample; the data need 5"),
        (nn.Flatten(), (2,), 2, {}, "model = 'Flatten': has no parameters"),
        (WithSparse(), (1, 8, 8), 3, {}, "model = 'WithSparse': its array graph is sparse; must be dense: to_dense()"),
        (nn.Sequential(Expanded(), nn.Linear(4, 3)), (4,), 3, {}, "its array 0.scale is expanded and cannot train"),
        (nn.Sequential(Tokens(), nn.Linear(2, 3)), (4,), 3, {}, "gives sparse gradients; must give dense ones"),
        (Small(), (1, 8, 8), 3, {"head": "out"}, "model = 'Small': has no nn.Linear called 'out'"),
        (Small(last=nn.Softmax(1)), (1, 8, 8), 3, {}, "gives probabilities; leave out the softmax"),
        (Small(), (1, 8, 8), 3, {"head": "inner"}, "does not end in the nn.Linear 'inner'"),
        (nn.LSTM(4, 4), (5, 4), 4, {}, "model = 'LSTM': gives a tuple; must give a tensor of n x 4"),
        (
            nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)),
            (4,),
            3,
            {},
            "changes its inputs in place, as x -= 0.5 and a first ReLU(inplace=True) do: others need them; write x = x",
        ),
        (
            nn.Sequential(nn.Dropout(inplace=True), nn.Linear(4, 3)),
            (4,),
            3,
            {},
            "changes its inputs in place in training mode",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(module, shape, classes, options, message):
    assert message in refusal(with_head, module, shape, classes, **options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision:resnet19", "torchvision has no model 'resnet19'; did you mean resnet18"),
        ("torchvision:fasterrcnn_resnet50_fpn", "torchvision has no model 'fasterrcnn_resnet50_fpn'"),
    ],
)
def test_torchvision_s_models_that_do_not_fit(name, message):
    assert message in refusal(models.build, name, (3, 32, 32), 10)


def test_a_model_of_torchvision_is_the_same_for_the_same_seed():
    built = []
    for _ in range(2):
        torch.manual_seed(5)
        built.append(models.build("torchvision:mobilenet_v3_small", (3, 32, 32), 7))
    one, other = built
    assert one.head.weight.shape == (7, 1024)
    assert one.state_dict().keys() == other.state_dict().keys()
    assert all(torch.equal(one.state_dict()[name], array) for name, array in other.state_dict().items())
    assert one.input_shape == (3, 32, 32)
    assert not torch.equal(one.another().head.weight, one.head.weight)


def test_grey_images_are_refused_by_a_network_for_colours():
    assert "does not take inputs of 1x28x28" in refusal(models.build, "torchvision:resnet18", (1, 28, 28), 10)


def test_timm_takes_the_data_s_channels_and_size():
    pytest.importorskip("timm")
    model = models.build("timm:vit_tiny_patch16_224", (1, 32, 32), 4)
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 4)
    assert models.build("timm:resnet10t", (1, 32, 32), 4)(torch.zeros(2, 1, 32, 32)).shape == (2, 4)
    assert "timm has no model 'vit_tinny'; did you mean" in refusal(models.build, "timm:vit_tinny", (3, 32, 32), 4)


VIT = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 16, "image_size": 8, "patch_size": 4, "num_channels": 1,
}  # fmt: skip
BERT = {
    "model_type": "bert", "architectures": ["BertForSequenceClassification"], "hidden_size": 16, "vocab_size": 20,
    "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 12,
}  # fmt: skip


def folder(path, config):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return f"hf:{path}"


def test_a_folder_of_transformers_for_images(tmp_path):
    transformers = pytest.importorskip("transformers")
    name = folder(tmp_path / "vit", VIT)
    model = models.build(name, (1, 8, 8), 3)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 3)
    assert model.head.weight.shape == (3, 16)
    # Weights in the folder are read; a head for other classes starts afresh.
    torch.manual_seed(9)
    stored = transformers.AutoModelForImageClassification.from_config(
        transformers.AutoConfig.from_pretrained(tmp_path / "vit", num_labels=5)
    )
    stored.save_pretrained(tmp_path / "vit")
    read = models.build(name, (1, 8, 8), 3)
    parameters = dict(stored.named_parameters())
    arrays = {n.replace("base.module.", ""): p for n, p in read.named_parameters() if n.startswith("base.")}
    assert arrays
    assert all(torch.equal(array, parameters[n]) for n, array in arrays.items())
    assert "does not take inputs of 1x9x9" in refusal(models.build, name, (1, 9, 9), 3)


def test_a_folder_of_transformers_for_texts(tmp_path):
    pytest.importorskip("transformers")
    name = folder(tmp_path / "bert", BERT)
    model = models.build(name, (10,), 4, vocabulary=20).eval()
    tokens = torch.randint(1, 20, (3, 10))
    tokens[:, 6:] = 0
    longer = model(tokens)
    tokens_short = tokens.clone()
    assert longer.shape == (3, 4)
    assert torch.allclose(model(tokens_short[:, :8]), longer, atol=1e-5)  # padding does not count
    assert "does not take inputs of 13 tokens of text" in refusal(models.build, name, (13,), 4, vocabulary=20)


def test_a_folder_that_is_none(tmp_path):
    pytest.importorskip("transformers")
    text = refusal(models.build, f"hf:{tmp_path}/nothing", (3, 32, 32), 10)
    assert text.startswith(f"model = 'hf:{tmp_path}/nothing': is no folder with a config.json on this machine")
    (tmp_path / "config.json").write_text("{")
    assert "cannot be made on this machine" in refusal(models.build, f"hf:{tmp_path}", (3, 32, 32), 10)


@pytest.mark.parametrize(("name", "package", "extra"), [("timm:x", "timm", "timm"), ("hf:x", "transformers", "hf")])
def test_a_missing_extra_is_one_line(monkeypatch, name, package, extra):
    there = external.importlib.import_module

    def absent(module):
        if module.startswith("fedpfl."):
            return there(module)
        raise ImportError(f"No module named {module!r}")

    monkeypatch.setattr(external.importlib, "import_module", absent)
    wanted = (
        f"needs {package}, which is not installed here: pip install \"fedpfl[{extra}]\" (No module named '{package}')"
    )
    assert refusal(models.build, name, (3, 32, 32), 10) == f"model = '{name}': {wanted}"


def test_the_setting_takes_names_of_sources():
    for name in ("torchvision:resnet18", "timm:x", "hf:~/vit"):
        assert Config.parse({"model": name}).run.model == name
    for name in ("torchvision:", "resnet7"):
        text = refusal(Config.parse, {"model": name})
        assert "must be one of auto, char-lstm" in text
        assert "torchvision:NAME" in text
