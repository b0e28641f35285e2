from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedpfl
from fedpfl import models
from fedpfl.core.errors import ConfigError
from fedpfl.models.weight_files import from_torchvision, load_weights
from fedpfl.setup.assembly import assemble
from fedpfl.setup.config import Config

PACKAGE = Path(fedpfl.__file__).parent


def saved(path, arrays):
    (save_file if path.suffix == ".safetensors" else torch.save)(
        {name: array.clone().contiguous() for name, array in arrays.items()}, path
    )
    return str(path)


def start(path, num_classes=4, **settings):
    config = Config.parse({"model": "resnet8", "method": "fedavg", "initial-weights": path, **settings})
    return assemble(config, (3, 16, 16), num_classes)[0].state_dict()


@pytest.fixture
def weights():
    torch.manual_seed(5)
    return models.build("resnet8", (3, 16, 16), 4).state_dict()


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_a_run_starts_from_the_file(tmp_path, weights, name):
    arrays = start(saved(tmp_path / name, weights))
    assert all(torch.equal(arrays[key], weights[key]) for key in weights)


@pytest.mark.parametrize("method", ["factorized-fl", "pfedpara"])
def test_a_method_without_a_place_for_them_refuses_them(tmp_path, weights, method):
    with pytest.raises(
        ConfigError, match=rf"initial-weights = .*must be empty for {method}, which draws base.conv1.weight"
    ):
        start(saved(tmp_path / "w.pt", weights), method=method)


def test_the_last_layer_starts_afresh_where_the_classes_differ(tmp_path, weights):
    arrays = start(saved(tmp_path / "w.pt", weights), num_classes=6)
    fresh = start("", num_classes=6)
    for key, array in arrays.items():
        assert torch.equal(array, (fresh if key.startswith("head.") else weights)[key])


def test_the_start_is_the_same_for_all_and_the_method_builds_on_it(tmp_path, weights):
    path = saved(tmp_path / "w.safetensors", weights)
    ours = start(path, method="feddecomp")
    again = start(path, method="feddecomp")
    assert all(torch.equal(ours[key], again[key]) for key in ours)
    assert all(torch.equal(ours[key], weights[key]) for key in weights)  # σ
    fresh = start("", method="feddecomp")
    taus = ours.keys() - weights.keys()
    assert taus
    assert all(torch.equal(ours[key], fresh[key]) for key in taus)


def narrow_vgg16(vgg):
    """Return torchvision's vgg16_bn with an eighth of its channels and units: the whole has half a gigabyte."""
    features = vgg.make_layers([size if size == "M" else size // 8 for size in vgg.cfgs["D"]], batch_norm=True)
    with torch.device("meta"):
        model = vgg.VGG(features, init_weights=False)
    units = [64 * 49, 512, 512]
    hidden = [layer for pair in zip(units, units[1:]) for layer in (nn.Linear(*pair), nn.ReLU(), nn.Dropout())]
    model.classifier = nn.Sequential(*hidden, nn.Linear(512, 10))
    return model


def test_torchvision_s_models_give_the_same_numbers_under_the_names_here(tmp_path):
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    resnet = torchvision.models.resnet
    for name, like, theirs in (
        ("resnet18", "resnet18", torchvision.models.resnet18(num_classes=10)),
        ("vgg16@0.125", "vgg16", narrow_vgg16(torchvision.models.vgg)),
        ("resnet10", "resnet18", resnet.ResNet(resnet.BasicBlock, [1] * 4, num_classes=10)),
    ):
        for array, buffer in theirs.eval().named_buffers():
            if "running" in array:
                buffer.uniform_(0.5, 1.5)  # which a wrong name would show
        model, x = models.build(name, (3, 32, 32), 10).eval(), torch.randn(2, 3, 32, 32)
        model.load_state_dict(from_torchvision(like, theirs.state_dict()))
        with torch.no_grad():
            assert torch.equal(model(x), theirs(x)), name
    # A head of other classes starts afresh.
    theirs = torchvision.models.resnet18(num_classes=1000).state_dict()
    model = models.build("resnet18", (3, 32, 32), 10)
    load_weights(model, "resnet18", saved(tmp_path / "resnet18.pth", theirs))
    assert torch.equal(model.state_dict()["base.layer4.1.conv2.weight"], theirs["layer4.1.conv2.weight"])
    with pytest.raises(ConfigError, match="'resnet9': torchvision weights exist only for resnet18, vgg16"):
        from_torchvision("resnet9", {})


def test_what_does_not_fit_is_one_line(tmp_path, weights):
    def complaint(change):
        with pytest.raises(ConfigError) as error:
            start(saved(tmp_path / "w.pt", change))
        line = str(error.value)
        assert line.startswith(f"initial-weights = {str(tmp_path / 'w.pt')!r}: ")
        return line

    conv = "base.conv1.weight"
    assert f"{conv} is missing" in complaint({k: v for k, v in weights.items() if k != conv})
    assert f"{conv} has shape (64, 1, 7, 7), expected (64, 3, 7, 7)" in complaint(
        {**weights, conv: weights[conv][:, :1]}
    )
    assert "base.extra is not in the model" in complaint({**weights, "base.extra": torch.zeros(1)})


class Evil:
    def __reduce__(self):
        return (print, ("run",))


@pytest.mark.parametrize("content", [None, b"", b"junk", pickle.dumps({"w": Evil()}, protocol=2)])
@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
def test_a_file_that_cannot_be_read_is_one_line_and_runs_nothing(tmp_path, capsys, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=r"initial-weights = .* cannot be read on this machine") as error:
        start(str(tmp_path / name))
    assert "\n" not in str(error.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("version", ["1.13.0", "2.5.1", "2.5.0a0+872d972e41.nv24.08", "2.9.1+cu128"])
@pytest.mark.parametrize("content", ["weights", "junk"])
def test_where_weights_only_runs_code_pytorch_s_reader_is_never_called(
    tmp_path, weights, monkeypatch, version, content
):
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: pytest.fail("it was read"))
    path = tmp_path / "w.pt"
    if content == "weights":
        saved(path, weights)
    else:
        path.write_bytes(b"junk")
    with pytest.raises(
        ConfigError, match=rf"must be safetensors on a machine with PyTorch {re.escape(version)}"
    ) as error:
        start(str(path))
    assert "\n" not in str(error.value)
    start(saved(tmp_path / "w.safetensors", weights))


@pytest.mark.parametrize("version", ["2.10.0", "2.15.0+cpu", "3.0.0"])
def test_versions_without_that_hole_read_state_dicts(tmp_path, weights, monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    start(saved(tmp_path / "w.pt", weights))


def test_nothing_else_in_the_package_unpickles():
    sources = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    paths = [str(path) for path, text in sources.items() if re.search(r"torch\.load\(|allow_pickle=True\)(?!\[)", text)]
    assert paths == ["models/weight_files.py"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: one.to_sparse(), "plain arrays by name"),
        (lambda one: one.to("meta"), "plain arrays by name"),
        (lambda one: torch.quantize_per_tensor(one, 0.1, 0, torch.qint8), "plain arrays by name"),
        (lambda one: one.to(torch.complex64), r"holds torch.complex64, expected torch.float32"),
        (lambda one: one > 0, r"holds torch.bool, expected torch.float32"),
        (lambda one: one * float("nan"), "not finite"),
        (lambda one: one.double() + 1e300, "not finite in torch.float32"),
    ],
)
def test_arrays_that_are_no_weights_are_refused(tmp_path, weights, change, message):
    name = next(iter(weights))
    torch.save({**weights, name: change(weights[name])}, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=message):
        start(str(tmp_path / "w.pt"))


@pytest.mark.parametrize(
    ("key", "message"),
    [(1, "plain arrays by name"), (None, "plain arrays by name"), ("a\x1b[2J\n", "is not in the model")],
)
def test_names_that_are_none_are_refused_in_one_line(tmp_path, weights, key, message):
    torch.save({**weights, key: torch.ones(1)}, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match=message) as error:
        start(str(tmp_path / "w.pt"))
    assert str(error.value).isprintable()


def test_a_file_of_something_else_is_refused(tmp_path):
    torch.save([torch.zeros(1)], tmp_path / "w.pt")
    with pytest.raises(ConfigError, match="must hold a state dict"):
        start(str(tmp_path / "w.pt"))
