"""Residual networks of basic blocks, with torchvision's names for their arrays."""

from __future__ import annotations

from typing import Sequence

from torch import Tensor, nn

from .registry import BaseHeadModel, Shape, channels, named, register


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut around them (He et al., 2016, figure 2)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, in_channels, h, w) to (n, out_channels, h / stride, w / stride), rounded up."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        activated: Tensor = self.relu(out + self.downsample(x))
        return activated


def _resnet(input_shape: Shape, num_classes: int, blocks: Sequence[int], width: float) -> BaseHeadModel:
    """Build the ImageNet layout of ResNet with ``blocks[i]`` basic blocks in stage i."""
    in_channels = channels(64, width)
    base = named(
        conv1=nn.Conv2d(input_shape[0], in_channels, 7, stride=2, padding=3, bias=False),
        bn1=nn.BatchNorm2d(in_channels),
        # ReLU behind max-pooling: see the note at the top of cnn.py.
        maxpool=nn.MaxPool2d(3, stride=2, padding=1),
        relu=nn.ReLU(),
    )
    for stage, count in enumerate(blocks):
        out_channels = channels(64 * 2**stage, width)
        layer = nn.Sequential()
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            layer.add_module(str(index), BasicBlock(in_channels, out_channels, stride))
            in_channels = out_channels
        base.add_module(f"layer{stage + 1}", layer)
    base.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    base.add_module("flatten", nn.Flatten())
    for module in base.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return BaseHeadModel(base, nn.Linear(in_channels, num_classes))


@register("resnet8", smallest_side=1)
def resnet8(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """Three stages of one basic block (64, 128, 256 channels).

    FedDecomp, section 4.1, for CIFAR-10; layout and initial weights (Kaiming normal over the fan-out) from the authors'
    code. 1,235,274 parameters for 3 channels and 10 classes.
    """
    return _resnet(input_shape, num_classes, (1, 1, 1), width)


@register("resnet10", smallest_side=1)
def resnet10(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """Four stages of one basic block (64, 128, 256, 512 channels).

    FedDecomp, section 4.1, for CIFAR-100 and Tiny ImageNet; as :func:`resnet8` with one more stage. 4,957,092
    parameters for 3 channels and 100 classes.
    """
    return _resnet(input_shape, num_classes, (1, 1, 1, 1), width)


@register("resnet18", smallest_side=1)
def resnet18(input_shape: Shape, num_classes: int, width: float = 1.0) -> BaseHeadModel:
    """Four stages of two basic blocks.

    He et al., "Deep Residual Learning for Image Recognition" (2016), in torchvision's layout, which FedFac, section
    5.1, runs on CIFAR-10 with ImageNet weights. 11,181,642 parameters for 3 channels and 10 classes.
    """
    return _resnet(input_shape, num_classes, (2, 2, 2, 2), width)
