"""Small convolutional networks.

ReLU stands behind max-pooling: the two commute (both are monotone), values and gradients are the same, and ReLU then
sees a quarter of the elements.
"""

from __future__ import annotations

from torch import nn

from .registry import BaseHeadModel, Shape, named, register


def _unpadded(side: int) -> int:
    """Side length after two rounds of an unpadded 5x5 convolution and 2x2 pooling."""
    return ((side - 4) // 2 - 4) // 2


# 16 is the smallest side for which `_unpadded` leaves a pixel.
@register("fedavg-cnn", smallest_side=16)
def fedavg_cnn(input_shape: Shape, num_classes: int) -> BaseHeadModel:
    """Two 5x5 convolutions (32, 64 channels), each with 2x2 max-pooling, and 512 hidden units; no padding.

    The CNN of McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017),
    section 3, as the personalised-learning literature runs it: without padding, 582,026 parameters for 1x28x28 and
    10 classes (the original pads, 1,663,370).
    """
    channels, height, width = input_shape
    base = named(
        conv1=nn.Conv2d(channels, 32, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(32, 64, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * _unpadded(height) * _unpadded(width), 512),
        relu3=nn.ReLU(),
    )
    return BaseHeadModel(base, nn.Linear(512, num_classes))


@register("convnet", smallest_side=16)
def convnet(input_shape: Shape, num_classes: int) -> BaseHeadModel:
    """Two 5x5 convolutions (64, 64 channels), each with 2x2 max-pooling, and 384 and 192 hidden units; no padding.

    The network of FedReG, section 4.1, taken there from FedDyn (Acar et al., 2021) and FedRoD (Chen
    and Chao, 2022): 797,962 parameters for 3x32x32 and 10 classes.
    """
    channels, height, width = input_shape
    base = named(
        conv1=nn.Conv2d(channels, 64, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(64, 64, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(64 * _unpadded(height) * _unpadded(width), 384),
        relu3=nn.ReLU(),
        fc2=nn.Linear(384, 192),
        relu4=nn.ReLU(),
    )
    return BaseHeadModel(base, nn.Linear(192, num_classes))


@register("small-cnn", smallest_side=4)
def small_cnn(input_shape: Shape, num_classes: int) -> BaseHeadModel:
    """Two padded 3x3 convolutions (16, 32 channels), each with 2x2 max-pooling, and 64 hidden units.

    This project's own, for examples and tests in seconds: 13,706 parameters for scikit-learn's 1x8x8 digits.
    """
    channels, height, width = input_shape
    base = named(
        conv1=nn.Conv2d(channels, 16, 3, padding=1),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(16, 32, 3, padding=1),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(32 * (height // 4) * (width // 4), 64),
        relu3=nn.ReLU(),
    )
    return BaseHeadModel(base, nn.Linear(64, num_classes))
