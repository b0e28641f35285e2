from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpfl import models
from fedpfl.core.errors import ConfigError
from fedpfl.models.weight_files import from_torchvision

torchvision = pytest.importorskip("torchvision")


def randomise_statistics(model: nn.Module) -> nn.Module:
    """Give the running statistics values that a wrong name would show."""
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5)
    return model


@pytest.mark.parametrize(("name", "theirs", "classes"), [("resnet18", "resnet18", 10), ("vgg16", "vgg16_bn", 10)])
def test_same_outputs_as_torchvision(name: str, theirs: str, classes: int) -> None:
    torch.manual_seed(0)
    reference = randomise_statistics(getattr(torchvision.models, theirs)(num_classes=classes)).eval()
    model = models.build(name, (3, 32, 32), classes).eval()
    model.load_state_dict(from_torchvision(name, reference.state_dict()))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model(x), reference(x))


def test_resnet10_is_torchvisions_resnet_with_one_block_a_stage() -> None:
    from torchvision.models.resnet import BasicBlock, ResNet

    torch.manual_seed(0)
    reference = randomise_statistics(ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5)).eval()
    model = models.build("resnet10", (3, 32, 32), 5).eval()
    model.load_state_dict(from_torchvision("resnet18", reference.state_dict()))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model(x), reference(x))


def test_weights_for_other_classes_load_without_the_head() -> None:
    reference = torchvision.models.resnet18(num_classes=1000)
    model = models.build("resnet18", (3, 32, 32), 10)
    weights = from_torchvision("resnet18", reference.state_dict())
    base = {name: array for name, array in weights.items() if not name.startswith("head.")}
    report = model.load_state_dict(base, strict=False)
    assert sorted(report.missing_keys) == ["head.bias", "head.weight"]
    assert not report.unexpected_keys


def test_other_models_have_no_counterpart() -> None:
    with pytest.raises(ConfigError) as error:
        from_torchvision("resnet9", {})
    assert str(error.value) == "model = 'resnet9': torchvision weights exist only for resnet18, vgg16"
